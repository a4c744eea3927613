"""The table of the controls, beside CL and NCL under the same evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import measures
from ncl_jax.data.source import Source

# Row of the report -> heading of the column.
COLUMNS = {
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
  means = {
    arm: {
      key: float(np.mean([measures.value(result, key) for result in seeds]))
      for key in COLUMNS
    }
    for arm, seeds in results.items()
  }
  shown = [k for k in COLUMNS if any(np.isfinite(m[k]) for m in means.values())]
  width = max(len(labels[arm]) for arm in results)
  lines = [" " * width + "".join(f"{COLUMNS[key]:>10}" for key in shown)]
  for arm in results:
    if not any(np.isfinite(means[arm][key]) for key in shown):
      continue
    cells = [_cell(means[arm][key], units[key]) for key in shown]
    lines.append(f"{labels[arm]:{width}}" + "".join(f"{cell:>10}" for cell in cells))
  count = len(next(iter(results.values())))
  lines += [
    "",
    f"Means over {count} seed(s); shares in per cent, cons.: class consistency, "
    "purity: at matched activity, chance: consistency of shuffled labels.",
  ]
  return "\n".join(lines)


def _cell(mean: float, unit: str) -> str:
  if not np.isfinite(mean):
    return "-"
  if unit == "%":
    return f"{100 * mean:.1f}"
  return f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"
