"""Figures of two runs: what is drawn, against the numbers it stands for."""

import dataclasses
import xml.etree.ElementTree

import numpy as np
import pytest
import report_example as example

from ncl_jax.report.figures import drawing, runs


def draw(function, *arguments):
  with drawing.style():
    picture = function(*arguments)
    return picture, picture.draw(False) if picture else None


def test_activations_are_a_histogram_of_the_values():
  comparison = example.make()
  picture, figure = draw(runs.activations, comparison)
  for ax, method in zip(figure.axes, comparison.methods, strict=False):
    f = method.features
    zero = 100 * np.mean(np.abs(f) < 1e-5)
    assert ax.get_title(loc="left") == f"{method.label}: {zero:.0f} % zeros"
    assert f"{method.label}: {zero:.1f} % of the values are zero" in picture.description
    heights, edges, _ = ax.patches[0].get_data()
    assert heights.sum() == pytest.approx(100 - zero)
    middle = len(edges) // 2
    above = 100 * np.mean((f >= edges[middle]) & (np.abs(f) > 1e-5))
    assert heights[middle:].sum() == pytest.approx(above, abs=0.5)
  assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_dead_features_have_a_histogram_too():
  dead = example.with_methods(
    example.make(), features=lambda method: np.zeros_like(method.features)
  )
  picture, _ = draw(runs.activations, dead)
  assert "NCL: 100.0 % of the values are zero" in picture.description


def test_a_map_keeps_neighbours_together():
  rng = np.random.default_rng(0)
  labels = np.arange(60) % 3
  x = np.eye(8)[labels] + 0.05 * rng.normal(size=(60, 8))
  xy = runs.map_of(x, seed=0)
  distance = np.linalg.norm(xy[:, None] - xy[None], axis=-1)
  np.fill_diagonal(distance, np.inf)
  assert (labels[distance.argmin(axis=1)] == labels).all()
  np.testing.assert_array_equal(runs.map_of(x, seed=0), xy)


@pytest.mark.parametrize("rows", [5, 40])
def test_a_map_of_equal_rows(rows):
  assert np.isfinite(runs.map_of(np.zeros((rows, 6)), seed=0)).all()


def test_maps_show_each_image_in_its_class(monkeypatch):
  labels = np.arange(20) % 5 - 1
  comparison = dataclasses.replace(example.make(), labels=labels)
  x = np.random.default_rng(0).normal(size=(20, 2))
  monkeypatch.setattr(runs, "map_of", lambda x, seed: x)
  picture, figure = draw(runs.maps, comparison, [("$h$", x), ("f", -x)])
  assert [ax.get_title(loc="left") for ax in figure.axes] == [r"\$h\$", "f"]
  for sign, ax in zip((1, -1), figure.axes, strict=True):
    # First the unlabelled, then class by class.
    for k, drawn in zip(range(-1, 4), ax.collections, strict=True):
      here = {tuple(row) for row in np.float32(sign * x[labels == k]).tolist()}
      assert {tuple(row) for row in drawn.get_offsets().tolist()} == here
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.texts] == list(comparison.class_names)
  assert "t-SNE of 20 test images" in picture.caption


def test_the_selection_curve_is_the_programs():
  def row(k, base):
    names = ("random", "ea_signed", "ea_relu")
    return {"k": k} | {n: {"probe": base + i / 100} for i, n in enumerate(names)}

  result = {"curve": [row(4, 0.5), row(8, 0.6), row(16, 0.7)]}
  comparison = example.make()
  picture, figure = draw(runs.selection_curve, comparison, [None, result])
  lines = figure.axes[0].lines
  assert [list(line.get_xdata()) for line in lines] == [[4, 8, 16]] * 3
  for i, line in enumerate(lines):
    np.testing.assert_allclose(line.get_ydata(), [50 + i, 60 + i, 70 + i])
  assert "NCL 70.0 % with all 16" in picture.description
  assert draw(runs.selection_curve, comparison, [None, None])[0] is None


def test_svg_is_whole_and_the_same_each_time():
  picture, _ = draw(runs.activations, example.make())
  svg = drawing.as_svg(picture)
  root = xml.etree.ElementTree.fromstring(svg)
  assert root.tag.endswith("svg")
  assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10
  assert drawing.as_svg(picture) == svg
