"""SEPIN@k: how much each dimension alone tells about an image, and what noise scores.

Dimensions are ranked on one half of the images and scored on the other. Of the same two
views: whether they activate the same dimensions.
"""

import functools
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import checks, features, metrics
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators.registry import Row, evaluator
from ncl_jax.evaluators.run import LAYERS, Run
from ncl_jax.training import loss as loss_lib

BATCH = 256  # images that a loss compares, about
KS = (1, 10, 100)
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """SEPIN of f and the agreement of its views."""
  row = functools.partial(Row, group="Interpretability")
  return (
    *(
      row(
        f"sepin_{k}",
        f"SEPIN@{k}",
        better="higher",
        note="information, in nats, that a dimension alone carries about an image: "
        f"InfoNCE without it minus InfoNCE, temperature {config.loss.temperature:g}; "
        "mean of the best, which the other half of the images chose. Chance: noise. "
        "The paper states no unit: compare order and ratio.",
        where=("f", f"sepin@{k}"),
        chance=("f", f"noise_sepin@{k}"),
        column={"1": "SEPIN@1", "all": "SEPIN"}.get(k, ""),
      )
      for k in (*map(str, KS), "all")
    ),
    row(
      "view_agreement",
      "two views activate the same",
      unit="%",
      better="higher",
      note="images that activate a dimension in both of two random views, as a share "
      "of those that do in at least one; needs no labels. 100 % by construction for "
      "features that are never 0.",
    ),
    row(
      "view_agreement_chance",
      "the same with views of different images",
      unit="%",
      note="what as many active images reach by chance.",
    ),
  )


@evaluator("sepin", rows=rows, labels=False, images=True, network=True)
def evaluate(run: Run) -> dict[str, Any]:
  """SEPIN@1, 10, 100 and all on the test split, on `h` and on `f`.

  Args:
    run: the temperature of its training is that of the main figures; labels are not
      used.

  Returns:
    {"settings", "h": {...}, "f": {...}}; see `statistics`. "view_agreement": the mean
    of `metrics.view_agreement` over active dimensions, "view_agreement_chance": the
    same with the views of different images.

  Raises:
    InputError: if there are fewer than 4 test images.
  """
  config, source = run.config, run.source
  if source.num_examples("test") < 4:
    raise InputError(
      f"sepin on {source.num_examples('test')} test images: at least 4 make two halves "
      "with something to compare"
    )
  temperature = _temperature(run)
  views = run.extract_two_views("test")
  batches = _batches(len(views[0].ids), config.seed)
  result: dict[str, Any] = {
    "settings": run.describe(
      views="two of each image, as in training, network in evaluation mode",
      temperature=temperature,
      temperatures=list(TEMPERATURES),
      negatives=batches.shape[2] - 1,
      batches=batches.shape[0] * batches.shape[1],
      normalization="rows, before the removal of a dimension and again after it",
      ranked_on="the other half of the images",
      noise="normal, of the same shape, two unrelated views, same transform",
      unit="nats",
      images=batches.size,
    )
  }
  for layer in LAYERS:
    one, other = (view.layer(layer, config.loss.transform) for view in views)
    noise = _noise(
      one.shape, config.loss.transform if layer == "f" else "relu", config.seed
    )
    floor = statistics(*noise, batches, temperature)
    result[layer] = {
      **statistics(one, other, batches, temperature),
      **{f"noise_{name}": value for name, value in floor.items()},
      **_agreement(one, other, config),
      "curve": [
        {"temperature": t} | statistics(one, other, batches, t) for t in TEMPERATURES
      ],
    }
  return result


def dimensions(run: Run) -> np.ndarray:
  """SEPIN of each dimension of `f` on the test split, mean over batches: [D] nats."""
  views = run.extract_two_views("test")
  one, other = (view.layer("f", run.config.loss.transform) for view in views)
  batches = _batches(len(one), run.config.seed)
  scores = _scores(one, other, batches, _temperature(run))
  return np.concatenate(scores).mean(0)


def _temperature(run: Run) -> float:
  """The temperature of training; where it was learnt, the last."""
  return float(loss_lib.temperature(run.config, run.variables["params"]))


def _scores(f_a, f_b, batches, temperature) -> np.ndarray:
  """SEPIN of each dimension in each batch of each half, [2, batches, D]."""
  return np.array(
    [
      [metrics.sepin(f_a[rows], f_b[rows], temperature=temperature) for rows in half]
      for half in batches
    ]
  )


def statistics(
  f_a: np.ndarray, f_b: np.ndarray, batches: np.ndarray, temperature: float
) -> dict[str, float]:
  """SEPIN@k, each half scored by the ranking of the other.

  Args:
    f_a: [N, D] features of one view.
    f_b: [N, D] of the other.
    batches: [2, batches of a half, images of a batch] rows.

  Returns:
    For k = 1, 10, 100, as far as there are dimensions, and "all": sepin@k, the mean
    over batches; sepin@k_std, their standard deviation; sepin@k_in_sample, ranked
    on the very images that score.
  """
  checks.finite("f_a", f_a)
  checks.finite("f_b", f_b)
  scores = _scores(f_a, f_b, batches, temperature)
  mean = scores.mean(1)
  ks: dict[str, int | None] = {str(k): k for k in KS if k <= f_a.shape[1]}
  values = {}
  for name, k in (ks | {"all": None}).items():
    honest = [
      metrics.sepin_at(batch, k, ranked_by=other)
      for half, other in zip(scores, mean[::-1], strict=True)
      for batch in half
    ]
    in_sample = [metrics.sepin_at(half, k) for half in mean]
    values[f"sepin@{name}"] = float(np.mean(honest))
    values[f"sepin@{name}_std"] = float(np.std(honest, ddof=1))
    values[f"sepin@{name}_in_sample"] = float(np.mean(in_sample))
  return values


def _batches(images: int, seed: int) -> np.ndarray:
  """[2, batches, images] rows: two halves in batches of equal size, in random order.

  At most one image a batch is left out: another number of negatives would be another
  bound.
  """
  half = images // 2
  count = max(1, round(half / BATCH))
  size = half // count
  order = np.random.default_rng([seed, 1]).permutation(images)
  return order[: 2 * count * size].reshape(2, count, size)


def _agreement(one: np.ndarray, other: np.ndarray, config: ConfigDict) -> dict:
  """Mean agreement of two views, and of views that are of different images."""
  shuffled = np.random.default_rng([config.seed, 3]).permutation(other)
  values = {}
  for name, second in (("", other), ("_chance", shuffled)):
    found = np.asarray(metrics.view_agreement(one, second, config.eval.threshold))
    found = found[~np.isnan(found)]
    values[f"view_agreement{name}"] = float(found.mean()) if found.size else np.nan
  return values


def _noise(
  shape: tuple[int, ...], transform: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Two unrelated matrices of noise after the transform, rows of unit length."""
  rng = np.random.default_rng([seed, 2])
  one, other = (
    np.asarray(features.embed(rng.normal(size=shape).astype(np.float32), transform))
    for _ in range(2)
  )
  return one, other
