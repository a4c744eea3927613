"""Finetuning: all of the backbone and a classifier on h, from a checkpoint."""

import dataclasses
import functools
import pathlib
from typing import Any

from ml_collections import ConfigDict

from ncl_jax.config import supervised_recipe
from ncl_jax.data.source import Source
from ncl_jax.evaluators import supervised
from ncl_jax.evaluators.registry import LARGEST_CLASS, Row, evaluator, few
from ncl_jax.evaluators.run import Run

EPOCHS = 30  # of the paper's recipe


def rows(config: ConfigDict, source: Source, per_cent: int = 100) -> tuple[Row, ...]:
  """The accuracy with a share of the labels, in per cent."""
  error = few(source.num_examples("test"))
  part = per_cent < 100
  return (
    Row(
      f"finetune_{per_cent}_h" if part else "finetune_h",
      f"finetuned, {per_cent} % of the labels" if part else "finetuned",
      "Accuracy",
      "%",
      "higher",
      f"drawn by class, the same for every method of a seed; {error}"
      if part
      else f"all labels; {error}",
      where=("h", "accuracy"),
      chance=LARGEST_CLASS,
      column={100: "finetune", 1: "fine 1 %"}.get(per_cent, ""),
    ),
  )


@evaluator("finetune", rows=rows, images=True, network=True, trains=True)
def evaluate(
  run: Run,
  *,
  recipe: supervised_recipe.Recipe | None = None,
  label_fraction: float = 1.0,
  folder: pathlib.Path | None = None,
) -> dict[str, Any]:
  """Top-1 accuracy on the test split after the last epoch of finetuning.

  Args:
    run: with labelled data; its network is what to start from, and never changed.
    recipe: how; None for the paper's, by the backbone's stem, with this fraction:
    label_fraction: share of the training labels used, drawn by class.
    folder: where checkpoints are kept, so that a stopped one goes on; None: nowhere.

  Returns:
    {"settings", "h": {"accuracy"}}, accuracy in [0, 1].
  """
  recipe = recipe or supervised_recipe.for_stem(
    run.config.model.stem, epochs=EPOCHS, label_fraction=label_fraction
  )
  trained = supervised.train(recipe, run, frozen=False, folder=folder)
  test = dataclasses.replace(run, variables=trained.variables).extract("test")
  return {
    "settings": run.describe(**trained.settings),
    "h": {"accuracy": supervised.accuracy(trained.heads["h"], test.h, test.labels)},
  }


TEN_PER_CENT, ONE_PER_CENT = (
  dataclasses.replace(
    evaluate,
    name=f"finetune_{per_cent}",
    options={"label_fraction": per_cent / 100},
    rows=functools.partial(rows, per_cent=per_cent),
  )
  for per_cent in (10, 1)
)
