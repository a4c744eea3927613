"""The report as one JSON document: every number behind the page."""

import math
from typing import Any

from ncl_jax.report import statistics, tables
from ncl_jax.report.comparison import Comparison, Metric
from ncl_jax.report.figures.drawing import Picture


def _finite(x: float | None) -> float | None:
  return float(x) if x is not None and math.isfinite(x) else None


def _metric(comparison: Comparison, metric: Metric) -> dict[str, Any]:
  methods = {}
  for method in comparison.methods:
    summary = method.summary(metric)
    methods[method.key] = {
      "seeds": [_finite(x) for x in method.values.get(metric.key, ())],
      "mean": _finite(summary.mean),
      "standard_deviation": _finite(summary.deviation),
      "expected": _finite(comparison.expected.get(method.key, {}).get(metric.key)),
    }
  pair = tables.difference(comparison, metric)
  names = ("label", "group", "unit", "better", "note")
  return {name: getattr(metric, name) for name in names} | {
    "chance": _finite(comparison.chance.get(metric.key)),
    "methods": methods,
    "difference": {
      "pairs": pair.pairs,
      "mean": _finite(pair.mean),
      "interval": [_finite(x) for x in pair.interval] if pair.interval else None,
      "verdict": statistics.verdict(pair, metric.better, metric.margin),
    },
  }


def document(comparison: Comparison, pictures: tuple[Picture, ...]) -> dict[str, Any]:
  """All of the report but the pixels, in types that strict JSON knows.

  Returns:
    A dict; shares stay shares (not percent), NaN is None.
  """
  return {
    "title": comparison.title,
    "facts": dict(comparison.facts),
    "glossary": dict(comparison.glossary),
    "remarks": list(comparison.remarks),
    "class_names": [str(name) for name in comparison.class_names],
    "seeds": [int(seed) for seed in comparison.seeds],
    "claim": statistics.claim(len(comparison.seeds)),
    "interval_level": statistics.LEVEL,
    "baseline": comparison.baseline.key,
    "method": comparison.method.key,
    "methods": {method.key: method.label for method in comparison.methods},
    "metrics": {
      metric.key: _metric(comparison, metric) for metric in comparison.metrics
    },
    "figures": [
      {
        "file": picture.wide.file,
        "narrow_file": picture.narrow.file,
        "title": picture.title,
        "caption": picture.caption,
        "description": picture.description,
      }
      for picture in pictures
    ],
  }
