"""The figure of classifiers."""

import numpy as np

from ncl_jax.report.figures import classifiers

CE = [[(10, 0.2), (20, 0.5), (30, 0.8)], [(10, 0.1), (20, 0.3), (30, 0.6)]]
NCE = [[(10, 0.4), (20, 0.7), (30, 0.7)], [(10, 0.4), (20, 0.6), (30, 0.6)]]


def test_the_figure_says_where_the_lines_end():
  picture = classifiers.draw({"from scratch": {"CE": CE, "NCE": NCE}})
  assert "from scratch: CE 70.0 %, NCE 65.0 %" in picture.description
  figure = picture.draw(False)
  lines = figure.axes[0].get_lines()
  np.testing.assert_allclose(lines[0].get_ydata(), [15, 40, 70])
  assert [line.get_label() for line in lines] == ["CE", "NCE"]
  assert picture.wide.png.startswith(b"\x89PNG")
