"""The declaration of an evaluator and of its rows in the report, and all of them."""

import dataclasses
import functools
import importlib
import math
import pathlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import evaluators, methods
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators.run import Run
from ncl_jax.report import Metric
from ncl_jax.report.sweep import number

# The report's sections in order; those of pairs first, as such runs train for them.
GROUPS = (
  "Pairs",
  "Towers",
  "Interpretability",
  "Accuracy",
  "Feature selection",
  "Health",
)

# Chance levels that follow from the classes of the test images alone.
LARGEST_CLASS = ("share of the largest class",)
SAME_CLASS = ("share of pairs of one class",)

MARGIN = 0.005  # half a point of accuracy: a loss of less counts as none


@dataclasses.dataclass(frozen=True)
class Row(Metric):
  """One row of the report's table, and where its number lies.

  Attributes:
    where: keys that lead to the number in the evaluator's result; () for "f" and `key`.
    chance: keys that lead to its chance level in the same result, or `LARGEST_CLASS` or
      `SAME_CLASS`; () for none.
    column: its heading in the table of controls; "" leaves it out there.
    lead: whether it stands among the first of its group.
    evaluator: the evaluator's name, which `registry.rows` fills in.
  """

  where: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
  chance: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
  column: str = dataclasses.field(default="", kw_only=True)
  lead: bool = dataclasses.field(default=False, kw_only=True)
  evaluator: str = dataclasses.field(default="", kw_only=True)

  def __post_init__(self) -> None:
    """Fills in `where`."""
    object.__setattr__(self, "where", self.where or ("f", self.key))


@dataclasses.dataclass(eq=False)
class Evaluator:
  """A function from a run to numbers, with what others must know of it.

  Call it with a `FeatureSource`, such as a `Run`, or with a config, variables, a source
  and a mesh. Further arguments are the function's own.

  Attributes:
    name: by which it is asked for.
    function: takes a `FeatureSource` (a `Run` if `network`) and returns
      {"settings": {...}, part: {key: number}}.
    rows: its rows in the report, for a config and its data.
    labels: whether it needs labels.
    images: whether it changes images, so that texts are refused.
    network: whether it needs a network, and not only features.
    pairs: whether it needs two towers, or two images of each thing.
    two_runs: whether it compares with a run of another seed (its argument `other`).
    trains: whether it trains for long. It then takes `folder`, for its checkpoints.
    listed: False for one that has a command of its own and no other use.
    options: arguments that make it this one of several variants.
    asked: arguments that follow from a comparison's config.
    reads: data sets besides the run's own that it reads: name -> digest.
  """

  name: str
  function: Callable[..., dict[str, Any]]
  rows: Callable[[ConfigDict, Source], Sequence[Row]] = lambda *_: ()
  labels: bool = True
  images: bool = False
  network: bool = False
  pairs: bool = False
  two_runs: bool = False
  trains: bool = False
  listed: bool = True
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  asked: Callable[[ConfigDict], dict[str, Any]] = lambda _: {}
  reads: Callable[[ConfigDict, Source], dict[str, str]] = lambda *_: {}

  def __post_init__(self) -> None:
    """Documentation, signature and module are the function's."""
    functools.update_wrapper(self, self.function)

  @property
  def file(self) -> str:
    """The module's last name, which its results and checkpoints go by."""
    return self.__module__.rpartition(".")[-1]

  def __call__(self, run: Any, *parts: Any, **options: Any) -> dict[str, Any]:
    """Evaluates a `FeatureSource`, or `(config, variables, source, mesh)`."""
    if parts:
      run = Run(run, *parts)
    check(self, run.config, run.source)
    return self.function(run, **(self.options | options))

  def options_in(self, eval_folder: pathlib.Path) -> dict[str, Any]:
    """Arguments for a call whose checkpoints, if any, go to a folder."""
    return {"folder": eval_folder / self.file} if self.trains else {}


def evaluator(name: str, **declared: Any) -> Callable[[Callable], Evaluator]:
  """Declares a function as an evaluator; see `Evaluator` for the arguments."""
  return lambda function: Evaluator(name, function, **declared)


@functools.cache
def registered() -> dict[str, Evaluator]:
  """All evaluators by name; those that train come last, as they take longest."""
  found = [
    declared
    for module in pkgutil.iter_modules(evaluators.__path__, f"{evaluators.__name__}.")
    for declared in vars(importlib.import_module(module.name)).values()
    if isinstance(declared, Evaluator) and declared.listed
  ]
  found.sort(key=lambda declared: (declared.trains, declared.two_runs, declared.name))
  return {declared.name: declared for declared in found}


def single() -> tuple[str, ...]:
  """Names of the evaluators of one checkpoint."""
  return tuple(name for name, e in registered().items() if not e.two_runs)


def applicable(config: ConfigDict, source: Source) -> tuple[str, ...]:
  """Names of the evaluators of one checkpoint that a run's data allow."""
  every = registered()
  return tuple(name for name in single() if not lacks(every[name], config, source))


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The rows that the report's table can have, in their order."""
  found = [
    dataclasses.replace(row, evaluator=name)
    for name, declared in registered().items()
    if not declared.pairs or paired(config, source)
    for row in declared.rows(config, source)
  ]
  return tuple(sorted(found, key=lambda row: (GROUPS.index(row.group), not row.lead)))


def paired(config: ConfigDict, source: Source) -> bool:
  """Whether a run has two of each thing that can be asked to find each other."""
  # Partners that are drawn anew in each step are no pairs to be found again.
  drawn = bool(config.data.pair_factors)
  partners = source.split("test").partners is not None and not drawn
  return methods.of(config).captions or partners


def check(declared: Evaluator, config: ConfigDict, source: Source) -> None:
  """Raises an InputError if data lack what an evaluator needs."""
  if missing := lacks(declared, config, source):
    raise InputError(f"{missing}: allowed are {', '.join(applicable(config, source))}")


def lacks(declared: Evaluator, config: ConfigDict, source: Source) -> str:
  """What data lack that an evaluator needs, as a sentence; "" if nothing."""
  name = declared.name
  if declared.labels and not source.num_classes:
    return f"{source.name} has no labels and {name} needs them"
  if declared.images and source.texts:
    return f"{source.name} holds texts and {name} changes images"
  if declared.pairs and not paired(config, source):
    return (
      f"{source.name} with loss.name={config.loss.name} has no pairs and {name} needs "
      "them (captions with loss.name=clip, or partners, from pairs:FILE.npz)"
    )
  return ""


def accuracies(
  key: str,
  label: str,
  note: str,
  columns: Mapping[str, str],
  *,
  name: str = "accuracy",
  chance: tuple[str, ...] = LARGEST_CLASS,
) -> tuple[Row, ...]:
  """The rows of an accuracy on h and on f; on h a loss within `MARGIN` counts as none.

  Args:
    key: of the rows, without the layer.
    label: what a reader sees, without the layer.
    columns: layer -> heading in the table of controls.
    name: of the number in the result's layer.
  """
  return tuple(
    Row(
      f"{key}_{layer}",
      f"{label}, {layer}",
      "Accuracy",
      "%",
      "higher",
      note,
      where=(layer, name),
      chance=chance,
      column=columns.get(layer, ""),
      margin=MARGIN if layer == "h" else 0.0,
    )
    for layer in ("h", "f")
  )


def value(results: Mapping[str, Any], row: Row) -> float:
  """A row's number in {evaluator: result}; NaN where there is none."""
  return number(results.get(row.evaluator, {}), row.where)


def few(images: int) -> str:
  """How exact an accuracy on so many images is."""
  error = 100 * 0.5 / math.sqrt(images)
  return (
    f"{images} test images: one run's standard error is at most {error:.1f} points."
  )
