"""The table of the controls, beside CL and NCL under the same evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax.data.source import Source
from ncl_jax.evaluators import needs, pairs
from ncl_jax.experiments import measures, pair_measures

# Row of the report -> heading of the column.
COLUMNS = {
  "naming": "naming",
  "axis_gain": "gain",
  "ewp": "EWP",
  "knn_h": "knn h",
  "knn_f": "knn f",
  "probe_h": "probe h",
  "probe_f": "probe f",
  "probe_sgd_h": "sgd h",
  "finetune_h": "finetune",
  "finetune_1_h": "fine 1 %",
  "retrieval_h": "P@k h",
  "retrieval_f": "P@k f",
  "corrupted_h": "corr. h",
  "corrupted_f": "corr. f",
  "selection_ea_relu": "EA k",
  "sparsity": "sparsity",
  "consistency_abs": "cons.",
  "consistency_abs_chance": "chance",
  "purity": "purity",
  "orthogonality": "|C-I|",
  "sepin_1": "SEPIN@1",
  "sepin_all": "SEPIN",
  "live_dimensions": "live",
  "effective_rank": "rank",
}


def _columns(config: ConfigDict, source: Source) -> dict[str, str]:
  """`COLUMNS`, and before them what two towers, or two images of a thing, are for."""
  if not needs.paired(config, source):
    return COLUMNS
  one, other = pairs.sides(config, source)
  of_pairs = {
    f"recall:{one}_to_{other}@10": f"to {other} @10",
    f"recall:{other}_to_{one}@10": f"to {one} @10",
    "zero_shot:classes": "zero-shot",
    f"{other}:sparsity": f"spars. {other}",
    f"{other}:consistency_abs": f"cons. {other}",
  }
  named = {pair_measures.PREFIX + key: text for key, text in of_pairs.items()}
  return named | COLUMNS


def controls_table(
  config: ConfigDict,
  source: Source,
  results: Mapping[str, Sequence[dict[str, Any]]],
  labels: dict[str, str],
) -> str:
  """A line an arm or control, a column a metric; means over seeds.

  Args:
    config: of the comparison.
    source: its data.
    results: key of an arm or control -> for each seed, program -> result.
    labels: key -> what a reader sees.

  Returns:
    Lines joined by newlines; columns and lines without a number are left out.
  """
  units = {metric.key: metric.unit for metric in measures.metrics(config, source)}
  columns = _columns(config, source)
  means = {
    arm: {
      key: float(np.mean([measures.value(result, key) for result in seeds]))
      for key in columns
    }
    for arm, seeds in results.items()
  }
  shown = [k for k in columns if any(np.isfinite(m[k]) for m in means.values())]
  width = max(len(labels[arm]) for arm in results)
  places = {key: max(10, len(columns[key]) + 2) for key in shown}
  lines = [" " * width + "".join(f"{columns[k]:>{n}}" for k, n in places.items())]
  for arm in results:
    if not any(np.isfinite(means[arm][key]) for key in shown):
      continue
    cells = [f"{_cell(means[arm][k], units[k]):>{n}}" for k, n in places.items()]
    lines.append(f"{labels[arm]:{width}}" + "".join(cells))
  count = len(next(iter(results.values())))
  lines += [
    "",
    f"Means over {count} seed(s); shares in per cent, naming: class named by the "
    "strongest dimension, gain: that minus the same with axes rotated at random, EWP: "
    "energy-weighted purity, cons.: class consistency, "
    "purity: at matched activity, chance: consistency of shuffled labels.",
  ]
  if config.loss.name == "clip":
    lines.append(
      "Pairs and the other tower are left out of controls that change or replace the "
      "first tower alone."
    )
  if source.texts:
    lines.append("Controls made of pixels are left out: these are texts.")
  return "\n".join(lines)


def _cell(mean: float, unit: str) -> str:
  if not np.isfinite(mean):
    return "-"
  if unit == "%":
    return f"{100 * mean:.1f}"
  return f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"
