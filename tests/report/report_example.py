"""A small comparison with every kind of row, and changes of it for the edge cases."""

import dataclasses
import functools

import numpy as np

from ncl_jax.report import Comparison, Method, Metric, figures
from ncl_jax.report.figures import drawing

NAN = float("nan")

METRICS = (
  Metric("knn_h", "nearest neighbours, h", "Accuracy", "%", "higher", "k = 20."),
  Metric("probe_h", "linear probe, h", "Accuracy", "%", "higher"),
  Metric("sparsity", "sparsity", "Interpretability", "%", "higher", "|f| < 1e-5."),
  Metric("purity", "purity at 3 % activity", "Interpretability", "%", "higher"),
  Metric("orthogonality", "mean |C - I|", "Interpretability", "", "lower"),
  Metric("active_dimensions", "active dimensions", "Health"),
)
VALUES = {
  "cl": {
    "knn_h": (0.900, 0.910, 0.920),
    "probe_h": (0.95, 0.95, 0.95),
    "sparsity": (0.0, 0.0, 0.0),
    "purity": (0.40, 0.38, 0.42),
    "orthogonality": (0.31, 0.30, 0.32),
    "active_dimensions": (12, 12, 12),
  },
  "ncl": {
    "knn_h": (0.910, 0.930, 0.950),
    "probe_h": (0.95, NAN, 0.97),
    "sparsity": (0.80, 0.80, 0.80),
    "purity": (0.80, 0.78, 0.82),
    "orthogonality": (0.05, 0.05, 0.05),
    "active_dimensions": (8, 9, 8),
  },
  "untrained": {"sparsity": (0.5, 0.5, 0.5), "purity": (0.5, 0.5, 0.5)},
}


def curve(loss: float, every: float = 0.5, rows: int = 6) -> tuple[dict, ...]:
  """Logged rows, some without a statistic, one with a NaN."""
  logged: list[dict] = [
    {"step": 10 * i, "epoch": every * i, "loss": loss / i, "learning_rate": 0.1}
    for i in range(1, rows + 1)
  ]
  for row in logged[1::2]:
    row.update(probe_accuracy=0.5, sparsity=0.4, active_dimensions=9)
  logged[0]["sparsity"] = NAN
  return tuple(logged)


def features(kind: str, labels: np.ndarray, dimensions: int) -> np.ndarray:
  """Unit rows: one-hot by class ("ncl", a third of the dimensions dead), or rotated."""
  rng = np.random.default_rng(0)
  f = np.zeros((len(labels), dimensions))
  hot = (labels % max(1, dimensions // 3)) + rng.integers(0, 2, len(labels))
  f[np.arange(len(labels)), hot] = rng.uniform(0.5, 1, len(labels))
  if kind != "ncl":
    rotation, _ = np.linalg.qr(rng.normal(size=(dimensions, dimensions)))
    f = f @ rotation
  return (f / np.linalg.norm(f, axis=1, keepdims=True)).astype(np.float32)


def make(**changes) -> Comparison:
  """CL, NCL and a control with three seeds on 20 images; fields may be replaced."""
  labels = np.arange(20) % 4
  rng = np.random.default_rng(1)
  methods = tuple(
    Method(key, label, VALUES[key], rows, features(key, labels, 12))
    for key, label, rows in [
      ("cl", "CL", curve(3.0)),
      ("ncl", "NCL", curve(4.0)),
      ("untrained", "untrained", ()),
    ]
  )
  comparison = Comparison(
    title="CL and NCL on an example",
    facts=(("data set", "20 images"), ("command", "python -m launch.compare --a=b_c")),
    remarks=("The control has random weights.",),
    metrics=METRICS,
    methods=methods,
    chance={"knn_h": 0.25, "purity": 0.3},
    expected={"ncl": {"sparsity": 0.93}},
    seeds=(3, 5, 7),
    labels=labels,
    images=rng.integers(0, 256, (20, 6, 6, 1), np.uint8),
    class_names=("ant", "bee", "cat", "dog"),
  )
  return dataclasses.replace(comparison, **changes)


@functools.cache
def pictures() -> tuple[drawing.Picture, ...]:
  """The figures of the unchanged example: drawn once, they take seconds."""
  return figures.draw(make())


def with_methods(comparison: Comparison, **changes) -> Comparison:
  """The comparison with fields of every method replaced by `changes[field](method)`."""
  methods = tuple(
    dataclasses.replace(method, **{name: new(method) for name, new in changes.items()})
    for method in comparison.methods
  )
  return dataclasses.replace(comparison, methods=methods)


def with_seeds(comparison: Comparison, count: int) -> Comparison:
  """The comparison with the first seed's values repeated, each a little larger."""

  def repeat(method):
    return {
      key: tuple(x[0] + 0.001 * i for i in range(count))
      for key, x in method.values.items()
    }

  methods = tuple(
    dataclasses.replace(method, values=repeat(method)) for method in comparison.methods
  )
  return dataclasses.replace(comparison, methods=methods, seeds=tuple(range(count)))
