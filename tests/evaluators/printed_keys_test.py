"""docs/metrics.md has a line for each key that an evaluation program prints."""

import dataclasses
import re
import types

import evaluators_pairs_test as two_towers
import numpy as np
import pytest
import tiny
from programs import ROOT

from ncl_jax import config as config_lib
from ncl_jax import evaluators
from ncl_jax.data import corruptions
from ncl_jax.evaluators import (
  axes,
  disentangle,
  feature_stats,
  finetune,
  knn,
  linear_probe,
  pairs,
  program,
  retrieval,
  robustness,
  selection,
  sepin,
  supervised,
)
from ncl_jax.metrics import factors
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import step as step_lib

pytestmark = pytest.mark.usefixtures("two_blocks", "quick_to_compile")

PAGE = ROOT / "docs" / "metrics.md"
# What the names in capitals stand for in the results below; KEY: any key of the others.
STANDS_FOR = {
  "K": r"(?:\d+|all)",
  "A": "(?:image|text)",
  "B": "(?:image|text)",
  "NAME": "(?:classes|light)",
}


def rows():
  """(program, parts, key) of each line of the table, a line of several keys as many."""
  section = PAGE.read_text().split("## What the programs print")[1]
  found = []
  for line in re.findall(r"^\| `.*", section, re.M):
    cells = re.split(r"(?<!\\)\|", line)[1:-1]
    assert len(cells) == 6 and cells[3].strip(), line
    (name,), parts, keys = (re.findall(r"`([^`]+)`", cell) for cell in cells[:3])
    found += [(name, tuple(parts), key) for key in keys]
  return found


def pattern(key, keys):
  """Of a key of the table; `keys` are what KEY stands for."""
  names = STANDS_FOR | {"KEY": "(?:" + "|".join(map(re.escape, keys)) + ")"}
  parts = re.split("(" + "|".join(rf"(?<![A-Z]){x}(?![A-Z])" for x in names) + ")", key)
  return re.compile("".join(names.get(part) or re.escape(part) for part in parts))


@pytest.fixture(scope="module")
def results(two_blocks, tmp_path_factory):
  """Program -> results of networks before training."""
  levels = {"light": np.arange(24) % 2, "size": np.arange(24) // 2 % 3}
  source = tiny.source(train=24, test=24)
  splits = {
    name: dataclasses.replace(split, levels=levels)
    for name, split in source.splits.items()
  }
  # Classes by number, as those of the other set's file.
  source = dataclasses.replace(source, splits=splits, class_names=("0", "1"))
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding_lib.make_mesh()
  variables = step_lib.build(lambda: step_lib.init_variables(config, source), mesh)
  path = tmp_path_factory.mktemp("printed")
  run = program.Run(config, variables, 0, source, mesh, path)
  other = f"arrays:{tiny.npz(path / 'other.npz', train=24, test=24)}"

  def trained(*args, **kwargs):
    """In place of a training, which adds no key."""
    test = program.extract(config, variables, source, "test", mesh)
    heads = {
      layer: {
        "kernel": np.zeros((test.layer(layer, "relu").shape[1], 2), np.float32),
        "bias": np.zeros(2, np.float32),
      }
      for layer in program.LAYERS
    }
    network = {
      "params": {k: v for k, v in variables["params"].items() if k != "probe"},
      "batch_stats": variables["batch_stats"],
    }
    return types.SimpleNamespace(
      variables=network, heads=heads, steps=1, batch_size=16, labels=test.labels
    )

  def of(module, **options):
    return module.evaluate(config, variables, source, mesh, **options)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(corruptions, "SEVERITIES", (2,))
    patch.setattr(corruptions, "names", lambda channels: ("contrast",))
    patch.setattr(robustness, "LABEL_NOISE", (0.4,))
    patch.setattr(robustness, "SHOTS", (3,))
    patch.setattr(selection, "SHARES", (1 / 4, 1))
    patch.setattr(selection, "DRAWS", 2)
    patch.setattr(factors, "VOTES", 20)
    patch.setattr(supervised, "train", trained)
    found = {
      "feature_stats": [of(feature_stats)],
      "knn": [of(knn)],
      "linear_probe": [of(linear_probe), of(linear_probe, protocol="sgd")],
      "finetune": [of(finetune)],
      "retrieval": [of(retrieval)],
      "sepin": [of(sepin)],
      "selection": [of(selection, transfer=other)],
      "robustness": [of(robustness, ood=(other,))],
      "axes": [of(axes, other=run)],
      "disentangle": [of(disentangle)],
    }
  data = two_towers.source()
  config = config_lib.resolve(two_towers.config(), data)
  variables = step_lib.build(lambda: step_lib.init_variables(config, data), mesh)
  found["pairs"] = [pairs.evaluate(config, variables, data, mesh)]
  return found


def printed(results):
  """(program, part, key): what a result holds beside its settings."""
  for name, found in results.items():
    for part, values in ((p, v) for row in found for p, v in row.items()):
      if part == "settings":
        continue
      if isinstance(values, dict):
        yield from ((name, part, key) for key in values)
      else:
        yield name, "", part


def test_every_program_is_evaluated(results):
  modules = {module for module, _ in evaluators.PROGRAMS.values()}
  assert results.keys() == modules | {*evaluators.PAIRED, "disentangle"}
  assert results.keys() == {name for name, _, _ in rows()}


def test_the_table_has_each_key_that_is_printed_and_no_other(results):
  table = rows()
  # KEY: of the same program, and for the two halves of a pair of `feature_stats`.
  plain = {
    name: [key for of, _, key in table if of == name and "KEY" not in key]
    for name in results
  }
  stats = plain["feature_stats"]
  plain["pairs"] = [*stats, *(f"{key}_chance" for key in stats)]
  patterns = [(row, pattern(row[2], plain[row[0]])) for row in table]
  used = set()
  for name, part, key in set(printed(results)):
    lines = [
      row
      for row, known in patterns
      if row[0] == name
      and (part in row[1] if part else not row[1])
      and known.fullmatch(key)
    ]
    assert lines, f"docs/metrics.md has no line for {key} of {name}, part {part!r}"
    used |= set(lines)
  assert set(table) == used
