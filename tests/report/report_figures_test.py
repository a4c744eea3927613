"""Figures: what the pixels show, checked against the numbers they stand for."""

import dataclasses
import io

import matplotlib
import numpy as np
import PIL.Image
import pytest
import report_example as example
from matplotlib.colors import to_rgb

from ncl_jax import metrics
from ncl_jax.report import figures
from ncl_jax.report.figures import (
  drawing,
  results,
)
from ncl_jax.report.figures import (
  features as features_lib,
)
from ncl_jax.report.figures import (
  images as images_lib,
)
from ncl_jax.report.figures import (
  runs as runs_lib,
)


def pixels(image: drawing.Image) -> np.ndarray:
  with PIL.Image.open(io.BytesIO(image.png)) as opened:
    return np.asarray(opened.convert("RGB")).astype(int)


def close_to(image: drawing.Image, color, tolerance: int = 1) -> np.ndarray:
  """Where the picture has a colour, [height, width] bool."""
  rgb = np.round(255 * np.array(to_rgb(color)))
  return (np.abs(pixels(image) - rgb[None, None]) <= tolerance).all(axis=-1)


def longest_runs(mask: np.ndarray) -> list[int]:
  """Length of the longest horizontal run, for each block of rows that has one."""
  runs, block = [], 0
  for line in mask:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
    longest = int((edges[1::2] - edges[::2]).max()) if edges.size else 0
    if longest > 25:  # more than a legend's or a letter's width
      block = max(block, longest)
    elif block:
      runs.append(block)
      block = 0
  return runs


@pytest.fixture
def pictures():
  return dict(zip(figures.NAMES, example.pictures(), strict=True))


@pytest.mark.parametrize("name", figures.NAMES)
def test_every_figure_is_a_readable_png(pictures, name):
  picture = pictures[name]
  assert picture.wide.file == f"figures/{name}.png"
  assert picture.narrow.file == f"figures/{name}_narrow.png"
  for image in (picture.wide, picture.narrow):
    with PIL.Image.open(io.BytesIO(image.png)) as opened:
      opened.load()
      assert opened.format == "PNG"
      assert opened.size == image.size
      assert opened.info["dpi"] == pytest.approx((150, 150), abs=0.1)
      shades = opened.convert("RGB").getcolors(2**24)
    assert len(shades) > 20  # something is drawn
    assert 300 < image.size[0] < 1700
    assert 150 < image.size[1] < 2500
  assert picture.narrow.size[0] < 720
  assert picture.title
  assert len(picture.caption) > 80
  assert len(picture.description) > 20


def test_every_arm_keeps_its_colour(pictures):
  for name in ("interpretability", "accuracy", "expected_activation", "curves"):
    for color in (drawing.BASELINE, drawing.METHOD):
      assert close_to(pictures[name].wide, color).sum() > 50, (name, color)
  # The control was not trained and has no curve.
  grey = drawing.CONTROLS[0]  # of which the edges of letters have a little
  assert close_to(pictures["interpretability"].wide, grey).sum() > 2000
  assert close_to(pictures["curves"].wide, grey).sum() < 300


def test_bars_start_at_zero():
  """Lengths are as the values: a truncated axis would not be."""
  values = {"cl": (0.2, 0.4), "ncl": (0.8, 0.6)}
  comparison = example.with_methods(
    dataclasses.replace(example.with_seeds(example.make(), 1), chance={}),
    values=lambda method: {
      key: (values[method.key][i],) if method.key in values else ()
      for i, key in enumerate(("sparsity", "purity"))
    },
  )
  image = results.interpretability(comparison).wide
  cl = longest_runs(close_to(image, drawing.BASELINE))[-2:]  # before: the legend
  ncl = longest_runs(close_to(image, drawing.METHOD))[-2:]
  unit = cl[0] / 0.2
  np.testing.assert_allclose(np.array(cl) / unit, [0.2, 0.4], atol=0.01)
  np.testing.assert_allclose(np.array(ncl) / unit, [0.8, 0.6], atol=0.01)


def test_captions_say_what_is_seen(pictures):
  bars = pictures["interpretability"]
  assert "the 3 seeds" in bars.caption
  assert "number of active dimensions" in bars.caption
  assert "|f| < 1e-5." in bars.caption  # the metric's own note
  assert "sparsity, %: CL 0.0, NCL 80.0, untrained 50.0." in bars.description
  dots = pictures["accuracy"]
  assert "Chance is 25.0 %." in dots.caption
  assert "nearest neighbours, h, %: CL 91.0, NCL 93.0." in dots.description
  f = example.make().methods[1].features
  live = int((np.abs(f) > 1e-5).any(axis=0).sum())
  assert f"NCL: {live} of 12 dimensions are active" in (
    pictures["expected_activation"].description
  )
  mean = float(metrics.orthogonality(f))
  assert f"NCL: {live} dimensions, mean |C - I| {mean:.3f}." in (
    pictures["correlation"].description
  )


def test_top_images_caption_gives_the_share_of_every_method(pictures):
  caption = pictures["top_images"].caption
  assert "Green frame" in caption
  for name in ("CL", "NCL", "untrained"):
    assert f"{name} " in caption.split("mean over the rows:")[1]


def test_frames_tell_majority_from_others():
  """One dimension, four images of one class and one of another."""
  f = np.zeros((5, 2), np.float32)
  f[:, 0] = 1
  comparison = example.make(
    labels=np.array([1, 1, 1, 1, 0]),
    images=np.zeros((5, 4, 4, 1), np.uint8),
    methods=tuple(dataclasses.replace(a, features=f) for a in example.make().methods),
  )
  same = dataclasses.replace(comparison, labels=np.ones(5, int))
  unlabelled = dataclasses.replace(comparison, labels=np.full(5, -1))
  framed = {}
  for name, case in (("both", comparison), ("same", same), ("none", unlabelled)):
    image = images_lib.top_images(case).wide
    framed[name] = [
      close_to(image, color, 12).any() for color in (drawing.AGREES, drawing.DIFFERS)
    ]
  assert framed == {"both": [True, True], "same": [True, False], "none": [False, False]}


def test_images_are_enlarged_without_blur():
  """A chequered image keeps its two colours, and each stays one solid square."""
  red, blue = (255, 0, 0), (0, 0, 255)
  chequered = np.array([[red, blue], [blue, red]], np.uint8)
  comparison = example.make(
    labels=np.full(20, -1), images=np.repeat(chequered[None], 20, axis=0)
  )
  shown = pixels(images_lib.top_images(comparison).wide)
  is_red = (shown == red).all(-1)
  is_blue = (shown == blue).all(-1)
  mixed = (shown[..., 0] > 40) & (shown[..., 2] > 40) & (shown[..., 1] < 20)
  assert is_red.sum() > 5000
  assert abs(is_red.sum() - is_blue.sum()) < 0.1 * is_red.sum()
  assert mixed.sum() < 0.01 * is_red.sum()


def test_heat_map_shows_the_sign_of_the_correlation():
  """Two opposite dimensions and an orthogonal one: red, blue and white squares."""
  f = np.zeros((20, 3), np.float32)
  f[:10, 0], f[:10, 1], f[10:, 2] = 1, -1, 1
  comparison = example.with_methods(example.make(), features=lambda _: f)
  image = features_lib.correlation(comparison).wide
  scale = matplotlib.colormaps["RdBu_r"]
  red, blue, white = (close_to(image, scale(x)[:3], 2).sum() for x in (1.0, 0.0, 0.5))
  # Of nine squares 3 are on the diagonal, 2 are opposite, 4 orthogonal.
  assert red / blue == pytest.approx(3 / 2, rel=0.1)
  assert white / blue == pytest.approx(4 / 2, rel=0.1)


@pytest.mark.parametrize(
  ("every", "axis"), [(0.5, "epochs"), (0.0, "steps"), (float("nan"), "steps")]
)
def test_curves_run_over_epochs_where_these_tell_rows_apart(every, axis):
  comparison = example.with_methods(
    example.make(),
    curve=lambda method: example.curve(2.0, every) if method.curve else (),
  )
  picture = results.curves(comparison)
  assert f"line charts over {axis}" in picture.description


def test_curves_show_what_was_logged():
  full = results.curves(example.make())
  assert full.description.startswith("4 line charts")
  only_loss = example.with_methods(
    example.make(),
    curve=lambda method: ({"step": 1, "loss": 2.0},) if method.curve else (),
  )
  assert results.curves(only_loss).description.startswith("1 line chart")
  untrained = example.with_methods(example.make(), curve=lambda _: ())
  assert results.curves(untrained) is None


@pytest.mark.parametrize("name", ["interpretability", "accuracy"])
def test_figures_of_shares_need_a_number(name):
  function = getattr(results, name)
  assert function(example.make(metrics=())) is None
  missing = example.with_methods(
    example.make(),
    values=lambda method: dict.fromkeys(method.values, (example.NAN,) * 3),
  )
  assert function(missing) is None


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings(pictures):
  again = results.accuracy(example.make())
  with matplotlib.rc_context({"font.size": 30, "figure.facecolor": "red"}):
    before = dict(matplotlib.rcParams)
    drawn = again.wide
    assert dict(matplotlib.rcParams) == before
  assert again == pictures["accuracy"] and drawn == pictures["accuracy"].wide


@pytest.mark.parametrize(
  ("text", "most", "shown"),
  [("a\n b", 60, "a b"), ("$x$", 60, r"\$x\$"), ("abcdef", 4, "abc…"), ("", 4, "")],
)
def test_plain_text(text, most, shown):
  assert drawing.plain(text, most) == shown


def test_figures_count_as_active_what_the_numbers_do():
  scale = np.linspace(0.3, 1, 12, dtype=np.float32)
  comparison = example.with_methods(
    example.make(threshold=0.5), features=lambda method: method.features * scale
  )
  live = (np.abs(comparison.method.features) > 0.5).any(axis=0).sum()
  assert live != (np.abs(comparison.method.features) > 1e-5).any(axis=0).sum()
  picture = features_lib.expected_activation(comparison)
  assert f"NCL: {live} of 12 dimensions are active" in picture.description
  for function, says in (
    (features_lib.expected_activation, "(|f| > 0.5)"),
    (images_lib.top_images, "(only values above 0.5)"),
    (results.interpretability, "(|f| > 0.5 for at least"),
    (runs_lib.activations, "(|f| < 0.5)"),
  ):
    assert says in function(comparison).caption
