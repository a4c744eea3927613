"""Finetuning: all of the backbone and a classifier on h, from a checkpoint."""

import pathlib
from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax.config import supervised_recipe
from ncl_jax.data.source import Source
from ncl_jax.evaluators import needs, program, supervised

EPOCHS = 30  # of the paper's recipe


def evaluate(
  config: ConfigDict,
  variables: Any,
  source: Source,
  mesh: Mesh,
  *,
  recipe: supervised_recipe.Recipe | None = None,
  label_fraction: float = 1.0,
  folder: pathlib.Path | None = None,
) -> dict[str, Any]:
  """Top-1 accuracy on the test split after the last epoch of finetuning.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"} to start from; never changed.
    source: labelled data.
    mesh: batches are split over its devices.
    recipe: how; None for the paper's, by the backbone's stem, with this fraction:
    label_fraction: share of the training labels used, drawn by class.
    folder: where checkpoints are kept, so that a stopped one goes on; None: nowhere.

  Returns:
    {"settings", "h": {"accuracy"}}, accuracy in [0, 1].

  Raises:
    InputError: if the data have no labels.
  """
  needs.need_labels(source, "finetune")
  needs.need_images(source, "finetune")
  recipe = recipe or supervised_recipe.for_stem(
    config.model.stem, epochs=EPOCHS, label_fraction=label_fraction
  )
  trained = supervised.train(
    recipe, config, variables, source, mesh, frozen=False, folder=folder
  )
  test = program.extract(config, trained.variables, source, "test", mesh)
  return {
    "settings": program.describe(
      config,
      source,
      split="test",
      fitted_on="train, augmented by crop and flip",
      recipe=recipe.settings(),
      steps=trained.steps,
      batch_size=trained.batch_size,
      train_images=len(trained.labels),
      train_classes=len(np.unique(trained.labels)),
      images=len(test.labels),
    ),
    "h": {"accuracy": supervised.accuracy(trained.heads["h"], test.h, test.labels)},
  }
