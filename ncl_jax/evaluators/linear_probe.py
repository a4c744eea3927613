"""Linear probe: multinomial logistic regression on frozen features, two protocols.

`lbfgs` fits cached features of the images as they are, the optimum of a convex problem;
`sgd` is the paper's: augmented images through the frozen network, epoch by epoch.
"""

import dataclasses
import functools
import pathlib
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import checks, features
from ncl_jax.config import supervised_recipe
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators import logistic_regression, supervised
from ncl_jax.evaluators.registry import Row, accuracies, evaluator, few
from ncl_jax.evaluators.run import ALL_LAYERS, LAYERS, FeatureSource, Run
from ncl_jax.runtime import tensors

PROTOCOLS = ("lbfgs", "sgd")
SGD_EPOCHS = 50  # of the paper's recipe


def rows(
  config: ConfigDict, source: Source, protocol: str = "lbfgs"
) -> tuple[Row, ...]:
  """The accuracy on h and on f by one of the protocols."""
  error = few(source.num_examples("test"))
  key, label, note, columns = {
    "lbfgs": (
      "probe",
      "linear probe",
      "logistic regression on the frozen features, penalty chosen on a held-out fifth "
      f"of the training set; {error}",
      {"h": "probe h", "f": "probe f"},
    ),
    "sgd": (
      "probe_sgd",
      "linear probe by SGD",
      "the paper's protocol: augmented images through the frozen network, recipe of "
      f"the released code; {error}",
      {"h": "sgd h"},
    ),
  }[protocol]
  return accuracies(key, label, note, columns)


@evaluator("linear_probe", rows=rows)
def evaluate(
  run: FeatureSource,
  *,
  protocol: str = "lbfgs",
  layers: tuple[str, ...] = LAYERS,
  recipe: supervised_recipe.Recipe | None = None,
  folder: pathlib.Path | None = None,
) -> dict[str, Any]:
  """Top-1 accuracy on the test split of a probe on each layer.

  By `lbfgs`, the strength of the L2 penalty is chosen on a held-out fifth of the
  training split; the probe is then fitted to all of it.

  Args:
    run: with labelled data; for `sgd` a `Run`.
    protocol: "lbfgs" or "sgd".
    layers: of h, hidden, z, f.
    recipe: of `sgd`; None for the paper's, by the backbone's stem.
    folder: where `sgd` keeps checkpoints, so that it can go on; None for nowhere.

  Returns:
    {"settings", "h": {"accuracy", ...}, ...}; see `logistic_regression.probe` for
    `lbfgs`. With `sgd` the settings hold a hash of the network's parameters and
    statistics before and after.

  Raises:
    InputError: if the data have no labels, or an argument is not one of those allowed.
  """
  checks.choice("protocol", protocol, PROTOCOLS)
  for layer in layers:
    checks.choice("layer", layer, ALL_LAYERS)
  if protocol == "sgd":
    assert isinstance(run, Run)  # as the declaration of `SGD` says
    if run.source.texts:
      raise InputError(f"{run.source.name} holds texts and sgd changes images")
    stem = run.config.model.stem
    recipe = recipe or supervised_recipe.for_stem(stem, epochs=SGD_EPOCHS)
    return _by_sgd(recipe, run, layers, folder)
  train, test = run.extract("train"), run.extract("test")
  result: dict[str, Any] = {
    "settings": run.describe(
      split="test",
      fitted_on="train",
      protocol="lbfgs",
      regularizations=list(logistic_regression.REGULARIZATIONS),
      held_out=logistic_regression.HELD_OUT,
      max_iterations=logistic_regression.MAX_ITERATIONS,
      tolerance=logistic_regression.TOLERANCE,
      images=len(test.labels),
    )
  }
  for layer in layers:
    result[layer] = logistic_regression.probe(
      run.layer(layer, "train"),
      train.labels,
      run.layer(layer, "test"),
      test.labels,
      num_classes=run.source.num_classes,
      seed=run.config.seed,
    )
  return result


SGD = dataclasses.replace(
  evaluate,
  name="linear_probe_sgd",
  rows=functools.partial(rows, protocol="sgd"),
  images=True,
  network=True,
  trains=True,
  options={"protocol": "sgd"},
)


def _by_sgd(
  recipe: supervised_recipe.Recipe,
  run: Run,
  layers: tuple[str, ...],
  folder: pathlib.Path | None,
) -> dict[str, Any]:
  before = tensors.digest(features.without_probe(run.variables))
  trained = supervised.train(recipe, run, layers=layers, frozen=True, folder=folder)
  # Of what the test features below are made with.
  after = tensors.digest(trained.variables)
  if after != before:
    raise RuntimeError(
      f"the probe changed the network: its hash was {before}, is {after}"
    )
  seen = dataclasses.replace(run, variables=trained.variables)
  test = seen.extract("test")
  result: dict[str, Any] = {
    "settings": run.describe(
      split="test",
      protocol="sgd",
      **trained.settings(recipe),
      images=len(test.labels),
      network_before=before,
      network_after=after,
    )
  }
  for layer in layers:
    x = seen.layer(layer, "test")
    accuracy = supervised.accuracy(trained.heads[layer], x, test.labels)
    result[layer] = {"accuracy": accuracy}
  return result
