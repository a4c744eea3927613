"""Disentanglement: which dimension holds which factor of the data?

A run's features are compared with those of the untrained network, with as many
principal components of the pixels, and with its own features of shuffled images.
"""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax.data import subset
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators.registry import evaluator
from ncl_jax.evaluators.run import Run
from ncl_jax.metrics import factors as factor_metrics

IMAGES = 4000
# Of dSprites: what a positive pair need not share, so that training deletes it.
CROP_CHANGES = ("scale", "x", "y")
FLIP_CHANGES = ("orientation", "x")


@evaluator("disentangle", labels=False, network=True, listed=False)
def evaluate(run: Run) -> dict[str, Any]:
  """Every factor metric of `f` on test images.

  Args:
    run: its data have levels, the factors.

  Returns:
    {"settings", "f", "shuffled", "untrained", "pca"}, each but the first as
    `metrics.factors.scores`, with active_dimensions.

  Raises:
    InputError: if fewer than two factors can be scored.
  """
  config, source = run.config, run.source
  size = min(IMAGES, source.num_examples("test"))
  few = subset(source, test=size, train=min(IMAGES, source.num_examples("train")))
  names = scored(config, few)
  split = few.split("test")
  constant = [name for name in names if np.ptp(split.levels[name]) == 0]
  if len(names) - len(constant) < 2:
    raise InputError(
      f"{source.name}: of the factors {', '.join(names)}, {', '.join(constant)} have "
      "one value in the test images; disentangle needs 2 that vary"
    )
  names = tuple(name for name in names if name not in constant)
  values = np.stack([split.levels[name] for name in names], axis=1)
  if values.min() < 0:
    raise InputError(f"{source.name} has test images without a value of some factor")

  on_few = run.on(few)
  f = on_few.layer("f", "test")
  order = np.random.default_rng([config.seed, 3]).permutation(size)
  table = {
    "f": f,
    "shuffled": f[order],
    "untrained": on_few.untrained().layer("f", "test"),
    "pca": principal(few, f.shape[1], config.seed),
  }
  return {
    "settings": run.describe(
      images=size,
      factors=list(names),
      left_out=[name for name in split.levels if name not in names],
      dimensions=f.shape[1],
      pca_dimensions=table["pca"].shape[1],
      bins=factor_metrics.BINS,
    ),
    **{
      key: factor_metrics.scores(x, values, config.seed)
      | {"active_dimensions": int((np.ptp(x, 0) > config.eval.threshold).sum())}
      for key, x in table.items()
    },
  }


def scored(config: ConfigDict, source: Source) -> tuple[str, ...]:
  """Names of the factors that positive pairs share: an invariance deletes its factor.

  Raises:
    InputError: if they are fewer than two.
  """
  changed = set(config.data.pair_factors)
  if source.name == "dsprites":
    # The views' own changes; colour and blur touch no factor.
    if min(config.augment.crop_scale) < 1:
      changed |= set(CROP_CHANGES)
    if config.augment.flip:
      changed |= set(FLIP_CHANGES)
  levels = source.split("test").levels
  names = tuple(name for name in levels if name not in changed)
  if len(names) < 2:
    raise InputError(
      f"{source.name} has the factors {', '.join(levels) or 'none'}, of which positive "
      f"pairs share {', '.join(names) or 'none'}: disentangle needs at least 2"
    )
  return names


def principal(source: Source, width: int, seed: int) -> np.ndarray:
  """Principal components [N, D] of the test images' pixels, fitted on train images.

  Args:
    width: how many, if there are so many.
  """
  from sklearn.decomposition import PCA

  train, test = (
    np.asarray(images[np.arange(len(images))], np.float32).reshape(len(images), -1)
    for images in (source.split("train").images, source.split("test").images)
  )
  count = min(width, *train.shape)
  pca = PCA(count, svd_solver="randomized", random_state=seed)
  return pca.fit(train).transform(test)


def table(rows: dict[str, dict[str, float]]) -> str:
  """Markdown of several results."""
  cells = {
    label: {name: f"{value:.3g}" for name, value in scores.items()}
    for label, scores in rows.items()
  }
  return _markdown(cells)


def over_runs(groups: dict[str, list[dict[str, float]]]) -> str:
  """Markdown of means and standard deviations over runs.

  >>> print(over_runs({"a": [{"mig": 0.1}, {"mig": 0.3}], "b": [{"mig": 0.5}]}))
  | | mig | runs |
  |---|---|---|
  | a | 0.2 ± 0.14 | 2 |
  | b | 0.5 | 1 |
  """
  rows: dict[str, dict[str, str]] = {}
  for label, runs in groups.items():
    rows[label] = {}
    for name in runs[0]:
      values = np.array([run[name] for run in runs])
      spread = f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else ""
      rows[label][name] = f"{values.mean():.3g}{spread}"
    rows[label]["runs"] = str(len(runs))
  return _markdown(rows)


def _markdown(rows: dict[str, dict[str, str]]) -> str:
  names = list(next(iter(rows.values())))
  lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
  for label, cells in rows.items():
    lines.append(f"| {label} | {' | '.join(cells[name] for name in names)} |")
  return "\n".join(lines)
