"""Wrong checkpoints and work directories: one message that helps, nothing changed."""

import fcntl
import shutil

import numpy as np
import pytest
from programs import call
from wrong_inputs import (
  DIGITS,
  NEW,
  OLD,
  TINY,
  Case,
  check,
  contents,
  copied,
)

from ncl_jax import cli

CASES: list[Case] = []


def add(program, flags, says, make=lambda place: None):
  CASES.append(Case(program, flags, says, make))


def in_run(change):
  return lambda place: change(place / "R")


def width(place):
  file = place / "R" / "config.json"
  file.write_text(file.read_text().replace('"width": 2', '"width": 3'))


def damage(run):
  for path in (run / "checkpoints" / "12" / "model").rglob("*"):
    if path.is_file():
      path.write_bytes(path.read_bytes()[:3])


IMPORT = [TINY, "--config.data.source=arrays:P/tiny.npz", NEW]
for program, flags, says, make in [
  ("knn", [OLD, "--step=99"], ["step 99", "P/R/checkpoints", "12"], lambda p: None),
  (
    "knn",
    [OLD],
    ["P/R/checkpoints", "train there first"],
    in_run(lambda r: shutil.rmtree(r / "checkpoints")),
  ),
  (
    "knn",
    [OLD],
    ["no checkpoint", "none"],
    in_run(lambda r: shutil.rmtree(r / "checkpoints" / "12")),
  ),
  ("knn", [OLD], ["step 12", "damaged", "remove P/R/checkpoints/12"], in_run(damage)),
  (
    "feature_stats",
    [OLD],
    ["does not fit", "float32[4] there, float32[6] here"],
    width,
  ),
  (
    "export",
    [OLD, "--out=P/x.safetensors"],
    ["no checkpoint", "none"],
    in_run(lambda r: shutil.rmtree(r / "checkpoints" / "12" / "model")),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.ckpt"],
    ["P/x.ckpt", "no such file"],
    lambda p: None,
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.txt"],
    ["P/x.txt", "allowed: .npz, .safetensors"],
    lambda p: (p / "x.txt").write_text("a licence"),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.npz"],
    ["P/x.npz"],
    lambda p: (p / "x.npz").write_bytes(b""),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.safetensors"],
    ["P/x.safetensors"],
    lambda p: (p / "x.safetensors").write_text("no tensors"),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.npz"],
    ["P/x.npz", "weight"],
    lambda p: np.savez(p / "x.npz", weight=np.zeros((2, 2))),
  ),
  (
    "train",
    [*IMPORT, "--config.train.init_from=P/nowhere"],
    ["P/nowhere", "no config.json"],
    lambda p: None,
  ),
]:
  add(program, flags, says, make)


def foreign(place):
  (place / "W").mkdir()
  (place / "W" / "thesis.tex").write_text("mine")


def config_json(text):
  return in_run(lambda run: (run / "config.json").write_text(text))


AGAIN = [TINY, "--config.data.source=arrays:P/tiny.npz", OLD]
for program, flags, says, make in [
  ("train", [DIGITS, NEW], ["P/W", "neither empty nor a work directory"], foreign),
  (
    "train",
    [DIGITS, NEW],
    ["P/W", "neither empty nor a work directory"],
    lambda p: (p / "W").write_text("a file"),
  ),
  (
    "train",
    [*AGAIN, "--config.loss.temperature=0.5"],
    ["loss.temperature: 0.2 there, 0.5 here", "another --workdir"],
    lambda p: None,
  ),
  ("train", AGAIN, ["config.json", "not JSON"], config_json("{")),
  (
    "train",
    AGAIN,
    ["unknown config field 'loss.temp'"],
    config_json('{"loss": {"temp": 1}}'),
  ),
  (
    "train",
    AGAIN,
    ["loss.temperature", "float"],
    config_json('{"loss": {"temperature": "warm"}}'),
  ),
  ("knn", [NEW], ["P/W", "no config.json", "train there first"], lambda p: None),
  ("knn", [NEW], ["P/W", "no config.json", "train there first"], foreign),
  ("knn", [OLD], ["config.json", "not JSON"], config_json("")),
  (
    "knn",
    [OLD],
    ["no file P/tiny.npz"],
    lambda p: (p / "tiny.npz").unlink(),
  ),
  ("axes", [OLD], ["--other is missing", "--help"], lambda p: None),
  ("axes", [OLD, "--other=P/W"], ["P/W", "no config.json"], lambda p: None),
  ("explore", [OLD, "--versus=P/W"], ["P/W", "no config.json"], lambda p: None),
  ("show_views", ["--workdir=P/W"], ["P/W", "no config.json"], lambda p: None),
]:
  add(program, flags, says, make)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_helps_and_nothing_changes(case, run, tmp_path, monkeypatch):
  check(case, run, tmp_path, monkeypatch)


@pytest.mark.parametrize(
  ("program", "given"),
  [("train", ()), ("compare", ("--seeds=1",)), ("sweep", ("--grid=seed=0",))],
)
def test_a_directory_in_use_is_left_alone(run, tmp_path, monkeypatch, program, given):
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  place = copied(run, tmp_path / "p")
  with (place / "R" / ".lock").open("w") as lock:
    lock.write("process 7 on a host")
    lock.flush()
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = contents(place)
    flags = [f"--config.data.source=arrays:{place}/tiny.npz", f"--workdir={place}/R"]
    code, _, err = call(program, TINY, *flags, *given)
  use = {"train": "training", "compare": "comparing", "sweep": "sweeping"}[program]
  assert code == 2 and f"process 7 on a host is {use} there" in err
  assert contents(place) == before
