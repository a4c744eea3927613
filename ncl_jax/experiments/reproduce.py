"""The paper's tables: claims fixed before the runs, verdicts after."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.experiments import compare, paper_numbers
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl

# The paper's seeds are not stated; five are the fewest that support a claim here.
SEEDS = 5
# A share within so much of the paper's mean agrees with it: five times its own spread.
ACCURACY, SPARSITY = 0.015, 0.05
# NCL's consistency over CL's: at least so much of the paper's ratio.
RATIO = 0.5
ACCURACIES = {"probe_sgd_h": "linear probe", "finetune_h": "finetuning"}


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement about the means over seeds, made before the first run."""

  text: str
  metric: str  # a row of the table
  method: str  # "cl", "ncl", or "ratio" or "gain" of NCL's to CL's
  low: float  # the least that makes it true
  high: float = math.inf  # the most

  def holds(self, metrics: dict[str, Any]) -> tuple[float | None, bool | None]:
    """(number found, whether the claim is true); None where nothing was measured."""
    methods = metrics.get(self.metric, {}).get("methods", {})
    values = {key: methods.get(key, {}).get("mean") for key in ("cl", "ncl")}
    cl, ncl = values["cl"], values["ncl"]
    if cl is not None and ncl is not None:
      values |= {"gain": ncl - cl, "ratio": ncl / cl if cl else math.inf}
    found = values.get(self.method)
    return found, None if found is None else self.low <= found <= self.high


def claims(config: ConfigDict) -> list[Claim]:
  """What must come out, from the paper's numbers for this config's data and network.

  Args:
    config: settings; its own `expected` numbers count too.

  Raises:
    InputError: where neither gives a number.
  """
  expected = paper_numbers.expected(config)
  cl, ncl = expected.get("cl", {}), expected.get("ncl", {})

  def near(what: str, metric: str, method: str, by: float) -> Claim:
    number = expected[method][metric]
    text = f"{what} is {number:.3f}, within {by}"
    return Claim(text, metric, method, number - by, number + by)

  made = [
    near(f"{method.upper()}'s {name} accuracy", key, method, ACCURACY)
    for method in expected
    for key, name in ACCURACIES.items()
    if key in expected[method] and method in ("cl", "ncl")
  ]
  for key, name in ACCURACIES.items():
    if key in cl and key in ncl:
      text = f"NCL's {name} accuracy is not below CL's"
      made.append(Claim(text, key, "gain", 0.0))
  if "sparsity" in ncl:
    made.append(near("NCL's sparsity", "sparsity", "ncl", SPARSITY))
  key = "consistency_positive"
  if key in cl and key in ncl:
    least = RATIO * ncl[key] / cl[key]
    text = f"NCL's class consistency is at least {least:.2f} times CL's"
    made.append(Claim(text, key, "ratio", least))
  if not made:
    raise InputError(
      f"there are no numbers of the paper for {config.data.source} with "
      f"{config.model.backbone}: allowed are the recipes of CIFAR-10, CIFAR-100 and "
      "ImageNet-100, or numbers of your own in config.expected"
    )
  return made


def _prepare(
  config: ConfigDict, made: Sequence[Claim], path: pathlib.Path, seeds: int
) -> None:
  """Writes the claims down, once; a directory with other claims is refused."""
  text = _as_json(
    {
      "claims": [dataclasses.asdict(claim) for claim in made],
      "seeds": seeds,
      "config": json.loads(config_lib.to_json(config)),
    }
  )
  file = path / "claims.json"
  if file.exists():
    if json.loads(file.read_text(encoding="utf-8")) != json.loads(text):
      raise InputError(
        f"{file} was written for other claims, seeds or settings: what is claimed "
        "before the runs is not changed after them; choose another --workdir"
      )
  elif jax.process_index() == 0:
    paths.make(path)
    jsonl.replace(file, text)


def _as_json(document: dict[str, Any]) -> str:
  return json.dumps(jsonl.to_json(document), indent=2, allow_nan=False) + "\n"


def reproduce(
  config: ConfigDict,
  directory: str | pathlib.Path,
  *,
  seeds: int = SEEDS,
  evaluators: Sequence[str] | None = None,
  dry_run: bool = False,
) -> str:
  """Trains, evaluates and judges; called again it goes on where it stopped.

  Args:
    directory: gets claims.json at once; what `compare` writes; verdicts.json at the
      end.
    dry_run: only tell what would be done; nothing is written.

  Returns:
    The verdicts, or the plan.

  Raises:
    InputError: for settings that cannot work.
    Failed: see `compare.compare`; there are no verdicts then.
  """
  config_lib.validate(config)
  path = paths.absolute(directory)
  made = claims(config)
  if not dry_run:
    _prepare(config, made, path, seeds)
  plan = compare.describe(config, path, seeds=seeds, evaluators=evaluators)
  if dry_run:
    lines = "".join(f"\n          {claim.text}" for claim in made)
    return f"{plan}\nClaims{lines}"
  logging.info("%s", plan)
  for claim in made:
    logging.info("claimed: %s", claim.text)
  compare.compare(config, path, seeds=seeds, evaluators=evaluators)
  return _judge(path, made)


def _judge(path: pathlib.Path, made: Sequence[Claim]) -> str:
  """Compares the report with the claims, a line each; writes verdicts.json."""
  report = json.loads((path / "report" / "report.json").read_text(encoding="utf-8"))
  rows, lines = [], []
  for claim in made:
    found, true = claim.holds(report["metrics"])
    rows.append(dataclasses.asdict(claim) | {"found": found, "holds": true})
    word = {True: "holds", False: "FAILS", None: "not measured"}[true]
    lines.append(
      f"{word:12}  {claim.text}" + (f"; found {found:.4g}" if found is not None else "")
    )
  if jax.process_index() == 0:
    document = {"ncl_jax": ncl_jax.__version__, "claims": rows}
    jsonl.replace(path / "verdicts.json", _as_json(document))
  return "\n".join(lines)
