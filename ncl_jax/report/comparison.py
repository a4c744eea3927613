"""What a report is made from: metrics, methods and test images, as plain arrays."""

import dataclasses
from collections.abc import Sized

import numpy as np

from ncl_jax import checks
from ncl_jax.data.source import Images
from ncl_jax.report import statistics


@dataclasses.dataclass(frozen=True)
class Metric:
  """One row of the table.

  Attributes:
    key: short name, e.g. "knn_h".
    label: what a reader sees, e.g. "nearest neighbours, h".
    group: section of the table; percentages of "Interpretability" become bars, those of
      "Accuracy" dots.
    unit: "%" for shares in [0, 1], shown times 100; "" for a plain number.
    better: "higher", "lower" or "" where neither is better.
    note: one sentence: definition, rule, threshold, number of images.
    margin: a loss of this size or less counts as none; in the metric's own unit.
  """

  key: str
  label: str
  group: str
  unit: str = ""
  better: str = ""
  note: str = ""
  margin: float = dataclasses.field(default=0.0, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Method:
  """One method, trained once a seed (or a control that is not trained).

  Attributes:
    key: short name, e.g. "cl".
    label: what a reader sees.
    values: metric key -> one value a seed; NaN where a seed has none.
    curve: rows logged in training by the first seed (step, epoch, loss, ...); () for
      a method that is not trained.
    features: f of the test images, first seed, shape [N, D].

  Raises:
    InputError: if features hold NaN or infinity.
  """

  key: str
  label: str
  values: dict[str, tuple[float, ...]]
  curve: tuple[dict, ...]
  features: np.ndarray

  def __post_init__(self) -> None:
    """Nothing is drawn of what is not finite."""
    checks.finite(f"features of {self.label}", self.features)

  def summary(self, metric: Metric) -> statistics.Summary:
    """Mean and standard deviation of a metric over the seeds that have it."""
    return statistics.summarize(self.values.get(metric.key, ()))


@dataclasses.dataclass(frozen=True)
class Comparison:
  """CL, NCL and their controls on one test set.

  Attributes:
    facts: (name, text) pairs: data set, command, versions.
    remarks: what the report does and does not show.
    metrics: rows of the table, those of one group together.
    methods: first the baseline (CL), second the method (NCL), then controls.
    chance: metric key -> chance level, in the metric's own unit (a share for "%").
    expected: method key -> metric key -> published number, in the same unit.
    seeds: seeds of the two first methods, in the order of their values.
    labels: classes of the test images, -1 = unlabelled, shape [N].
    images: uint8 test images, shape [N, H, W, C] with C 1 or 3, of any size: they are
      only shown.
    texts: N texts that the images are, see `data.texts`; () for images.
    glossary: (word, meaning) pairs, at the top of the report.
    files: N names of the images' files; () where they are no files.
    threshold: `|f|` above it counts as active, the `eval.threshold` of the numbers.
  """

  title: str
  facts: tuple[tuple[str, str], ...]
  remarks: tuple[str, ...]
  metrics: tuple[Metric, ...]
  methods: tuple[Method, ...]
  chance: dict[str, float]
  expected: dict[str, dict[str, float]]
  seeds: tuple[int, ...]
  labels: np.ndarray
  images: Images
  class_names: tuple[str, ...]
  texts: tuple[str, ...] = ()
  threshold: float = 1e-5
  files: tuple[str, ...] = ()
  glossary: tuple[tuple[str, str], ...] = ()

  def __post_init__(self):
    rows: dict[str, Sized] = {
      f"features of {method.key!r}": method.features for method in self.methods
    }
    rows |= {"labels": self.labels, "texts": self.texts, "files": self.files}
    for name, of in rows.items():
      if len(of) != len(self.images) and (len(of) or name not in ("texts", "files")):
        raise ValueError(f"{name}: {len(of)} rows for {len(self.images)} images")

  @property
  def baseline(self) -> Method:
    """The method that `method` is compared with."""
    return self.methods[0]

  @property
  def method(self) -> Method:
    """The method under study."""
    return self.methods[1]

  def class_name(self, label: int) -> str:
    """Name of a class; its number where it has none."""
    known = 0 <= label < len(self.class_names)
    return str(self.class_names[label]) if known else str(label)
