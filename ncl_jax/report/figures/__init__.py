"""All figures of the report, in the order of the page."""

from ncl_jax.report.comparison import Comparison
from ncl_jax.report.figures import drawing, features, images, results

NAMES = (
  "top_images",
  "interpretability",
  "accuracy",
  "expected_activation",
  "correlation",
  "curves",
)


def draw(comparison: Comparison) -> tuple[drawing.Picture, ...]:
  """The figures that the comparison has the numbers for."""
  pictures = (
    # Of texts a picture shows the bytes; the explorer has the words.
    None if comparison.texts else images.top_images(comparison),
    results.interpretability(comparison),
    results.accuracy(comparison),
    features.expected_activation(comparison),
    features.correlation(comparison),
    results.curves(comparison),
  )
  return tuple(picture for picture in pictures if picture is not None)
