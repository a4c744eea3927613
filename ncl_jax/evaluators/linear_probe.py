"""Linear probe: multinomial logistic regression on frozen features, two protocols.

`lbfgs` fits cached features of the images as they are, the optimum of a convex problem;
`sgd` is the paper's: augmented images through the frozen network, epoch by epoch.
"""

import dataclasses
import pathlib
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import checks, features
from ncl_jax.config import supervised_recipe
from ncl_jax.data.source import Source
from ncl_jax.evaluators import logistic_regression, supervised
from ncl_jax.evaluators.registry import Row, accuracies, evaluator, few
from ncl_jax.evaluators.run import ALL_LAYERS, LAYERS, FeatureSource, Run
from ncl_jax.runtime import tensors

PROTOCOLS = ("lbfgs", "sgd")
SGD_EPOCHS = 50  # of the paper's recipe


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The accuracy on h and on f by `lbfgs`."""
  return accuracies(
    "probe",
    "linear probe",
    "logistic regression on the frozen features, penalty chosen on a held-out fifth "
    f"of the training set; {few(source.num_examples('test'))}",
    {"h": "probe h", "f": "probe f"},
  )


def rows_of_sgd(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The accuracy on h and on f by `sgd`."""
  return accuracies(
    "probe_sgd",
    "linear probe by SGD",
    "the paper's protocol: augmented images through the frozen network, recipe of "
    f"the released code; {few(source.num_examples('test'))}",
    {"h": "sgd h"},
  )


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
  """
  checks.choice("protocol", protocol, PROTOCOLS)
  for layer in layers:
    checks.choice("layer", layer, ALL_LAYERS)
  if protocol == "sgd":
    return by_sgd(run, layers=layers, recipe=recipe, folder=folder)
  train, test = run.extract("train"), run.extract("test")
  settings = run.describe(
    fitted_on="train",
    protocol="lbfgs",
    regularizations=list(logistic_regression.REGULARIZATIONS),
    held_out=logistic_regression.HELD_OUT,
    max_iterations=logistic_regression.MAX_ITERATIONS,
    tolerance=logistic_regression.TOLERANCE,
  )
  return {"settings": settings} | {
    layer: logistic_regression.probe(
      run.layer(layer, "train"),
      train.labels,
      run.layer(layer, "test"),
      test.labels,
      num_classes=run.source.num_classes,
      seed=run.config.seed,
    )
    for layer in layers
  }


@evaluator("linear_probe_sgd", rows=rows_of_sgd, images=True, network=True, trains=True)
def by_sgd(
  run: Run,
  *,
  layers: tuple[str, ...] = LAYERS,
  recipe: supervised_recipe.Recipe | None = None,
  folder: pathlib.Path | None = None,
) -> dict[str, Any]:
  """`evaluate` by the protocol `sgd`."""
  stem = run.config.model.stem
  recipe = recipe or supervised_recipe.for_stem(stem, epochs=SGD_EPOCHS)
  before = tensors.digest(features.without_probe(run.variables))
  trained = supervised.train(recipe, run, layers=layers, frozen=True, folder=folder)
  # Of what the test features below are made with.
  after = tensors.digest(trained.variables)
  if after != before:
    raise RuntimeError(
      f"the probe changed the network: its hash was {before}, is {after}"
    )
  seen = dataclasses.replace(run, variables=trained.variables)
  labels = seen.extract("test").labels
  settings = run.describe(
    protocol="sgd", **trained.settings, network_before=before, network_after=after
  )
  return {"settings": settings} | {
    layer: {"accuracy": supervised.accuracy(head, seen.layer(layer, "test"), labels)}
    for layer, head in trained.heads.items()
  }
