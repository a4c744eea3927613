"""The reproduction, on a tiny source: claims before, verdicts after."""

import json

import pytest
import tiny
from programs import call

from ncl_jax import cli
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.experiments import reproduce
from ncl_jax.experiments.reproduce import Claim

EXPECTED = {
  "cl": {"probe_sgd_h": 0.5, "finetune_h": 0.6, "consistency_positive": 0.1},
  "ncl": {
    "probe_sgd_h": 0.52,
    "finetune_h": 0.6,
    "consistency_positive": 0.4,
    "sparsity": 0.9,
  },
}


@pytest.mark.parametrize(
  ("name", "probe", "ratio"),
  [("cifar10", 0.878, 0.466 / 0.147), ("cifar100", 0.597, 0.074 / 0.018)],
)
def test_claims_are_the_papers(name, probe, ratio):
  config = config_lib.defaults()
  config.data.source = f"tfds:{name}"
  made = {(claim.metric, claim.method): claim for claim in reproduce.claims(config)}
  near = made["probe_sgd_h", "ncl"]
  assert (near.low, near.high) == pytest.approx((probe - 0.015, probe + 0.015))
  assert made["consistency_positive", "ratio"].low == pytest.approx(ratio / 2)
  assert made["finetune_h", "gain"].low == 0
  assert len(made) == 8 and all(claim.text for claim in made.values())


def test_without_numbers_there_is_no_claim():
  with pytest.raises(InputError, match="no numbers of the paper for arrays:"):
    reproduce.claims(tiny.config())


def test_a_claim_is_judged_by_the_means():
  def row(cl, ncl):
    return {"m": {"methods": {"cl": {"mean": cl}, "ncl": {"mean": ncl}}}}

  cases = [
    (Claim("", "m", "cl", 0.1, 0.3), row(0.2, 9), (0.2, True)),
    (Claim("", "m", "ncl", 0.1, 0.3), row(0.2, 9), (9, False)),
    (Claim("", "m", "gain", 0.0), row(0.5, 0.25), (-0.25, False)),
    (Claim("", "m", "ratio", 2.0), row(0.25, 0.5), (2.0, True)),
    (Claim("", "m", "ratio", 2.0), row(0.0, 0.5), (float("inf"), True)),
    (Claim("", "m", "ratio", 2.0), row(None, 0.5), (None, None)),
    (Claim("", "other", "cl", 2.0), row(1, 2), (None, None)),
  ]
  for claim, metrics, verdict in cases:
    assert claim.holds(metrics) == verdict


def given(path):
  """A config of a tiny source, with numbers to expect."""
  config = tiny.config()
  config.train.epochs = 2
  config.data.source = f"arrays:{tiny.npz(path / 'tiny.npz')}"
  config.expected = EXPECTED
  return config


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
  """With a comparison that was killed once, and else writes what a real one writes."""
  path = tmp_path_factory.mktemp("reproduced")
  config, work, calls = given(path), path / "work", []

  def compared(config, path, *, seeds, evaluators):
    calls.append(seeds)
    if len(calls) == 1:
      raise KeyboardInterrupt
    mean = {"methods": {"cl": {"mean": 0.1}, "ncl": {"mean": 0.88}}}
    files = {
      "measured.jsonl": "{}",
      "report/report.json": json.dumps({"metrics": {"sparsity": mean}}),
      "report/index.html": "",
    }
    for method in ("cl", "ncl"):
      files |= {
        f"seed0/{method}/{name}": method for name in ("config.json", "metrics.jsonl")
      }
    for name, text in files.items():
      (path / name).parent.mkdir(parents=True, exist_ok=True)
      (path / name).write_text(text)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(reproduce.compare, "compare", compared)
    with pytest.raises(KeyboardInterrupt):
      reproduce.reproduce(config, work, seeds=1)
    before = (work / "claims.json").read_bytes()
    text = reproduce.reproduce(config, work, seeds=1)
  assert (work / "claims.json").read_bytes() == before and calls == [1, 1]
  return config, work, text


@pytest.mark.slow
def test_a_real_one_from_training_to_verdicts(tmp_path):
  config, work = given(tmp_path), tmp_path / "work"
  text = reproduce.reproduce(config, work, seeds=1, evaluators=("feature_stats",))
  assert sum("NCL's sparsity is 0.900" in line for line in text.splitlines()) == 1
  rows = json.loads((work / "verdicts.json").read_text())["claims"]
  assert any(row["found"] is not None for row in rows)


def test_verdicts_follow_the_report(reproduced):
  _, work, text = reproduced
  report = json.loads((work / "report" / "report.json").read_text())["metrics"]
  rows = {
    (row["metric"], row["method"]): row
    for row in json.loads((work / "verdicts.json").read_text())["claims"]
  }
  found = report["sparsity"]["methods"]["ncl"]["mean"]
  row = rows["sparsity", "ncl"]
  assert row["found"] == found == 0.88 and row["holds"]
  # Not asked for: no verdict rather than a wrong one.
  assert rows["finetune_h", "gain"]["holds"] is None
  assert "not measured  NCL's finetuning accuracy is not below CL's" in text


def test_claims_are_not_changed_afterwards(reproduced):
  config, work, _ = reproduced
  other = config.copy_and_resolve_references()
  other.expected = {"ncl": {"sparsity": 0.1}}
  with pytest.raises(InputError, match="other claims"):
    reproduce.reproduce(other, work, seeds=1)


def test_a_dry_run_writes_nothing(tmp_path):
  text = reproduce.reproduce(given(tmp_path), tmp_path / "work", seeds=3, dry_run=True)
  assert "6 runs" in text and "NCL's sparsity is 0.900, within 0.05" in text
  assert not (tmp_path / "work").exists()


def test_data_sets_go_by_name(tmp_path, monkeypatch):
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  tiny.npz(tmp_path / "tiny.npz")
  flags = [f"--config.data.source=arrays:{tmp_path / 'tiny.npz'}", "--dry_run"]
  flags += ["--config.train.batch_size=16", f"--workdir={tmp_path / 'work'}"]
  flags += ["--config.augment.mean=()", "--config.augment.std=()"]
  code, _, err = call("reproduce", "cifar100", *flags)
  # The data are not CIFAR-100: known before anything is done.
  assert code == 2 and "no numbers of the paper" in err
