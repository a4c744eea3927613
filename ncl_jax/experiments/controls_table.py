"""The table that compares controls with CL and NCL under the same evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import methods
from ncl_jax.data.source import Source
from ncl_jax.evaluators import registry


def controls_table(
  config: ConfigDict,
  source: Source,
  results: Mapping[str, Sequence[dict[str, Any]]],
  labels: dict[str, str],
) -> str:
  """A line a method or control, a column a metric; means over seeds.

  Columns and lines without a number are left out.

  Args:
    results: key of a method or control -> for each seed, evaluator -> result.
    labels: key -> what a reader sees.
  """
  rows = {row.key: row for row in registry.rows(config, source) if row.column}
  columns = {key: row.column for key, row in rows.items()}
  means = {
    method: {
      key: float(np.mean([registry.value(result, row) for result in seeds]))
      for key, row in rows.items()
    }
    for method, seeds in results.items()
  }
  shown = [k for k in columns if any(np.isfinite(m[k]) for m in means.values())]
  width = max(len(labels[method]) for method in results)
  places = {key: max(10, len(columns[key]) + 2) for key in shown}
  lines = [" " * width + "".join(f"{columns[k]:>{n}}" for k, n in places.items())]
  for method in results:
    if not any(np.isfinite(means[method][key]) for key in shown):
      continue
    cells = [f"{_cell(means[method][k], rows[k].unit):>{n}}" for k, n in places.items()]
    lines.append(f"{labels[method]:{width}}" + "".join(cells))
  count = len(next(iter(results.values())))
  lines += [
    "",
    f"Means over {count} seed(s); shares in per cent, naming: class named by the "
    "strongest dimension, gain: that minus the same with axes rotated at random, EWP: "
    "energy-weighted purity, cons.: class consistency, "
    "purity: at a fixed activation rate, chance: consistency of shuffled labels.",
  ]
  if methods.of(config).captions:
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
