"""Known latent classes: does NCL recover them, and CL not?

  python -m studies.latent.run --out=runs/latent

Free features and an MLP are trained with the spectral loss and NT-Xent, CL and NCL, on
finite sample spaces with P(x, x') = sum_c P(c) P(x|c) P(x'|c). Prints a table and PASS
or FAIL for each prediction of the theory, and writes both to --out as
identifiability.md and .json. The exit code is 1 if a prediction fails. A few minutes.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from ncl_jax import nonneg
from ncl_jax.host import paths
from ncl_jax.runtime import compile_cache, jsonl
from studies.latent import factorize, fit, measure
from studies.latent import space as space_lib

MAPS = {"cl": "identity", "ncl": "rep_relu", "ncl_relu": "relu"}
# What must hold, see `claims`.
NCL_CORRELATION, OVERLAPPING_CORRELATION = 0.99, 0.95
CL_CORRELATION, CL_ROTATED = 0.7, 0.99
RESIDUAL, EXCESS = 1e-3, 0.01
ZERO = 1e-5


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is fitted.

  Attributes:
    kinds: of `space.KINDS`.
    more_kinds: those that an MLP and NT-Xent are fitted to as well.
    classes: C.
    per_class: samples of a class.
    seeds: of each fit.
    steps: updates of each fit.
    narrow: a number of dimensions below that of the classes.
    label_counts: labelled samples of the probe.
  """

  kinds: tuple[str, ...] = ("one_hot", "unequal", "overlapping", "no_anchors")
  more_kinds: tuple[str, ...] = ("one_hot", "overlapping")
  classes: int = 8
  per_class: int = 4
  seeds: int = 5
  steps: int = 1500
  narrow: int = 5
  label_counts: tuple[int, ...] = (16, 64, 256, 1024)


@dataclasses.dataclass(frozen=True)
class Claim:
  """Something that the theory says, and what was found."""

  text: str
  found: float
  holds: bool


def run(settings: Settings) -> tuple[list[dict[str, Any]], list[Claim]]:
  """Fits everything that the settings name.

  Returns:
    One row a fit, and the claims about them.
  """
  rows = []
  for kind in settings.kinds:
    space = space_lib.make(kind, settings.classes, settings.per_class)
    for method, model in fits(settings, kind):
      rows.append({"kind": kind, "method": method} | row(settings, space, model))
      logging.info("%s", line(rows[-1]))
  return rows, claims(rows, settings.classes)


def fits(settings: Settings, kind: str) -> list[tuple[str, fit.Model]]:
  """What is fitted on a kind of space, each with its method, a key of `MAPS`."""
  classes, wide = settings.classes, 2 * settings.classes
  chosen = [
    ("spectral", "table", method, width)
    for width in (settings.narrow, classes, wide)
    for method in ("cl", "ncl")
  ]
  if kind == "one_hot":
    # Plain ReLU: what is dead at the start stays so.
    chosen.append(("spectral", "table", "ncl_relu", wide))
  if kind in settings.more_kinds:
    chosen += [
      (loss, network, method, wide)
      for loss, network in (
        ("spectral", "mlp"),
        ("nt_xent", "table"),
        ("nt_xent", "mlp"),
      )
      for method in ("cl", "ncl")
    ]
  return [
    (method, fit.Model(loss, MAPS[method], width, network))
    for loss, network, method, width in chosen
  ]


def row(settings: Settings, space: space_lib.Space, model: fit.Model) -> dict[str, Any]:
  """One fit over all seeds, and everything that is measured of it.

  Returns:
    Settings and figures; a list has one entry a seed.
  """
  transform, width = model.transform, model.width
  found = fit.fit(space, model, seeds=settings.seeds, steps=settings.steps)
  found = found.astype(np.float64)
  target = space.phi
  if model.loss == "nt_xent":
    target = target / np.linalg.norm(target, axis=1, keepdims=True)
  weights, matrix = space.marginal, space.normalized_pairs

  def each(function: Callable[[np.ndarray], float], features: Any = found):
    return [function(f) for f in features]

  def correlation(f: np.ndarray) -> float:
    return measure.matched_correlation(f, target, weights)

  turned = [f @ measure.random_rotation(width, s) for s, f in enumerate(found)]
  result: dict[str, Any] = {
    "loss": model.loss,
    "network": model.network,
    "map": transform,
    "width": width,
    "correlation": each(correlation),
    "correlation_rotated_best": each(
      lambda f: correlation(measure.best_rotation(f, target, weights))
    ),
    "correlation_rotated_randomly": each(correlation, turned),
    "sparsity": each(lambda f: float((np.abs(f) < ZERO).mean())),
    "bayes_error": space.bayes_error,
    "probe_error": {
      str(count): [
        measure.probe_error(space, f, count, seed) for seed, f in enumerate(found)
      ]
      for count in settings.label_counts
    },
  }
  if transform in nonneg.NON_NEGATIVE:
    # A rotation leaves the set that NCL searches.
    result["negative_rotated"] = each(lambda f: float((f < -ZERO).mean()), turned)
  if model.loss == "spectral":
    result["residual"] = each(lambda f: factorize.residual(matrix, space.scaled(f)))
    result["residual_rotated"] = each(
      lambda f: factorize.residual(matrix, space.scaled(f)), turned
    )
    result["residual_rotated_mapped"] = each(
      lambda f: factorize.residual(
        matrix, space.scaled(np.asarray(nonneg.apply(f, transform)))
      ),
      turned,
    )
    result["residual_best"] = factorize.best_residual(matrix, width)
    if transform != "identity":
      best = factorize.symmetric_nmf(matrix, width)
      result["residual_best"] = factorize.residual(matrix, best)
  return result


def claims(rows: list[dict[str, Any]], classes: int) -> list[Claim]:
  """What the theory says of free features under the spectral loss, and whether it held.

  Args:
    rows: from `row`.
    classes: C.
  """
  made = []

  def add(text: str, value: float, limit: float, at_least: bool) -> None:
    sign, holds = (">=", value >= limit) if at_least else ("<=", value <= limit)
    made.append(Claim(f"{text} {sign} {limit:g}", value, holds))

  for r in rows:
    if (r["loss"], r["network"]) != ("spectral", "table") or r["method"] == "ncl_relu":
      continue
    kind, method, width = r["kind"], r["method"], r["width"]
    name = f"{kind}, {method.upper()}, D = {width}"
    residual = r["residual"]
    if width < classes:
      excess = min(residual) / r["residual_best"] - 1
      add(f"{name}: best residual above the optimum, relative", excess, EXCESS, False)
    elif width > classes or method == "cl":
      add(f"{name}: residual of the worst seed", max(residual), RESIDUAL, False)
    else:
      add(f"{name}: residual of the best seed", min(residual), RESIDUAL, False)
    if kind in ("one_hot", "overlapping") and width > classes and method == "ncl":
      limit = NCL_CORRELATION if kind == "one_hot" else OVERLAPPING_CORRELATION
      text = f"{name}: matched correlation with phi, worst seed"
      add(text, min(r["correlation"]), limit, True)
    if kind == "one_hot" and width == classes and method == "cl":
      text = f"{name}: matched correlation, median"
      add(text, float(np.median(r["correlation"])), CL_CORRELATION, False)
      text = f"{name}: the same after the best rotation, worst seed"
      add(text, min(r["correlation_rotated_best"]), CL_ROTATED, True)
  return made


def line(r: dict[str, Any]) -> str:
  """One row as a reader sees it: medians over the seeds."""

  def median(key: str, form: str) -> str:
    return format(float(np.median(r[key])), form) if key in r else "-"

  errors = " ".join(f"{float(np.median(e)):.2f}" for e in r["probe_error"].values())
  best = f"{r['residual_best']:.4f}" if "residual_best" in r else "-"
  return (
    f"| {r['kind']} | {r['loss']} | {r['network']} | {r['method']} | {r['width']} "
    f"| {median('residual', '.4f')} | {best} | {median('correlation', '.3f')} "
    f"| {median('correlation_rotated_best', '.3f')} "
    f"| {median('correlation_rotated_randomly', '.3f')} "
    f"| {median('residual_rotated', '.4f')} "
    f"| {median('residual_rotated_mapped', '.4f')} "
    f"| {median('negative_rotated', '.0%')} | {median('sparsity', '.0%')} "
    f"| {errors} | {r['bayes_error']:.2f} |"
  )


HEAD = (
  "| space | loss | features | method | D | residual | best possible | correlation "
  "| best rotation | random rotation | its residual | after the transform | negative "
  "| sparsity | probe error | Bayes |"
)
NOTES = """
Medians over the seeds. Residual: ||A - F F^T||^2 / ||A||^2; best possible: of CL by
eigenvalues, of NCL by symmetric NMF of many starts. Correlation: with
phi = P(c|x) / sqrt(P(c)) (rows of unit length for NT-Xent), after the best permutation.
A random rotation leaves CL's residual as it was and moves its axes; NCL's it makes
negative ("negative": share of entries), which is not allowed, and cut off at 0 by the
map the residual is lost. Probe error: logistic regression from so many labels:
{labels}. Without anchors, samples that one class alone can make, NCL fits A as well
and its dimensions are not the classes: phi has no zeros, so small rotations of it stay
non-negative, and the loss cannot tell them from phi.
"""


def text(rows: list[dict[str, Any]], found: list[Claim], settings: Settings) -> str:
  """The table, its notes and the claims."""
  columns = HEAD.count("|") - 1
  labels = ", ".join(map(str, settings.label_counts))
  verdicts = [
    f"{'PASS' if c.holds else 'FAIL'}  {c.text}: {c.found:.4g}" for c in found
  ]
  table = [HEAD, "|" + "---|" * columns, *map(line, rows)]
  return "\n".join([*table, NOTES.format(labels=labels), *verdicts])


def write(
  folder: pathlib.Path, rows: list[dict[str, Any]], found: list[Claim], shown: str
) -> None:
  """Writes identifiability.json and identifiability.md.

  Args:
    folder: made if it does not exist.
    rows: from `run`.
    found: from `run`.
    shown: from `text`.
  """
  paths.make(folder)
  everything = {"rows": rows, "claims": [dataclasses.asdict(c) for c in found]}
  text = json.dumps(jsonl.to_json(everything), indent=1, allow_nan=False) + "\n"
  jsonl.replace(folder / "identifiability.json", text)
  jsonl.replace(folder / "identifiability.md", shown + "\n")


def main() -> None:
  """Studies."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--out", required=True, help="folder of the result")
  folder = paths.absolute(parser.parse_args().out)
  compile_cache.set_up()
  logging.set_verbosity(logging.INFO)
  settings = Settings()
  rows, found = run(settings)
  shown = text(rows, found, settings)
  write(folder, rows, found, shown)
  print(shown)
  sys.exit(any(not claim.holds for claim in found))


if __name__ == "__main__":
  main()
