"""All figures of the report, in the order of the page."""

from ncl_jax.report import drawing, figures_features, figures_images, figures_results
from ncl_jax.report.comparison import Comparison

NAMES = (
  "top_images",
  "interpretability",
  "accuracy",
  "expected_activation",
  "correlation",
  "curves",
)


def draw(comparison: Comparison) -> tuple[drawing.Picture, ...]:
  """Draws the figures that the comparison has the numbers for."""
  with drawing.style():
    pictures = (
      # Of texts a picture shows the bytes; the explorer has the words.
      None if comparison.texts else figures_images.top_images(comparison),
      figures_results.interpretability(comparison),
      figures_results.accuracy(comparison),
      figures_features.expected_activation(comparison),
      figures_features.correlation(comparison),
      figures_results.curves(comparison),
    )
  return tuple(picture for picture in pictures if picture is not None)
