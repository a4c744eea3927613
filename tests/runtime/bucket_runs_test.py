"""Whole runs in a bucket, against an emulator of Google Cloud Storage."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import emulated
import jax
import pytest
import tiny
from compile_cache_test import compile_in
from processes import finish, start
from programs import call

from ncl_jax.errors import InputError
from ncl_jax.evaluators import execute, knn
from ncl_jax.experiments import reproduce
from ncl_jax.host import paths
from ncl_jax.runtime import checkpoint, jsonl, tensors
from ncl_jax.training import loop

TESTS = pathlib.Path(__file__).parents[1]
# Of the clients' connections, which end with the process.
pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
  ),
]


@pytest.fixture(scope="module")
def root():
  """gs://BUCKET of an emulator that the whole module uses."""
  with emulated.bucket("runs") as url:
    yield url


def digest(workdir):
  """(of the weights, step) of a run's last checkpoint."""
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  model, step = checkpoint.load_model(workdir, None, sharding)
  return tensors.digest(model), step


# Trains, and stands still after step 8 when the checkpoint of step 6 is complete.
TRAIN = """
import sys, time, jax, tiny
from ncl_jax.runtime import checkpoint, jsonl, lock
from ncl_jax.training import loop

lock.LEASE_SECONDS = 4.0
update = jsonl.Progress.update

def stop(self, step, message):
  update(self, step, message)
  while step == 8:
    if checkpoint.steps(sys.argv[1]) == [6]:
      print("held", flush=True)
    time.sleep(0.2)

jsonl.Progress.update = stop
loop.train(tiny.config(), sys.argv[1], tiny.source())
"""


def test_a_killed_run_goes_on_bit_for_bit_and_is_evaluated(root, tmp_path):
  folder = paths.absolute(f"{root}/killed")
  config, source = tiny.config(), tiny.source()
  whole = loop.train(config, tmp_path / "whole", source)
  first = subprocess.Popen(
    [sys.executable, "-c", TRAIN, str(folder)],
    env=os.environ
    | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])}
    | {"JAX_NUM_CPU_DEVICES": "8"},
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=rf"in use: process {first.pid} on .* UTC"):
      loop.train(config, folder, source)
    assert checkpoint.steps(folder) == [6]
    rows = jsonl.read(folder / "metrics.jsonl")
    assert rows == jsonl.read(whole / "metrics.jsonl")[: len(rows)]
    assert rows[-1]["step"] == 6  # written at the checkpoint
  finally:
    first.kill()
    first.communicate()
  assert loop.train(config, str(folder), source) == folder
  for file in ("metrics.jsonl", "config.json", "data.json"):
    assert (folder / file).read_bytes() == (whole / file).read_bytes(), file
  assert digest(whole) == digest(folder) and digest(folder)[1] == 12
  assert not [f for f in folder.iterdir() if f.name.endswith((".tmp", "lock"))]
  # A finished run is left as it is, and evaluated.
  loop.train(config, folder, source)
  expected = execute.run(knn.evaluate, whole, source=source)
  execute.run(knn.evaluate, folder, source=source)
  execute.run(knn.evaluate, str(folder), source=source)
  found = jsonl.read(folder / "eval" / "knn.jsonl")
  assert found == [jsonl.to_json(expected)] * 2


def test_two_processes_one_of_which_is_killed_go_on_bit_for_bit(root, tmp_path):
  data = tiny.npz(tmp_path / "tiny.npz")
  whole, work = str(tmp_path / "whole"), f"{root}/two"

  def train(workdir):
    command = ("brief", "launch.train", "--config=tests/tiny.py:ncl")
    command += (f"--config.data.source=arrays:{data}", f"--workdir={workdir}")
    command += ("--config.train.epochs=6", "--config.train.checkpoint_every_epochs=1")
    return start(tmp_path, command, command)

  assert [code for code, _, _ in finish(train(whole), timeout=600)] == [0, 0]
  running = train(work)
  try:
    while not checkpoint.steps(work):
      assert all(process.poll() is None for process in running), finish(running)
      time.sleep(0.2)
    running[1].kill()
    (first, _, _), (second, _, _) = finish(running, timeout=600)
  finally:
    for process in running:
      process.kill()
  assert first not in (0, None) and second == -signal.SIGKILL
  assert 0 < max(checkpoint.steps(work)) < 18
  ended = finish(train(work), timeout=600)
  assert [code for code, _, _ in ended] == [0, 0], ended
  assert "resuming at step" in ended[0][2]
  assert digest(work) == digest(whole) and digest(work)[1] == 18
  for file in ("metrics.jsonl", "config.json", "data.json"):
    expected = (pathlib.Path(whole) / file).read_bytes()
    assert (paths.absolute(work) / file).read_bytes() == expected, file


def test_a_comparison_is_read_from_a_download(root, tmp_path):
  import fsspec

  def compare(workdir, *more):
    what = ["--config=digits", "--seeds=1", "--controls=untrained", *tiny.FLAGS, *more]
    code, out, err = call(
      "compare", f"--workdir={workdir}", "--evaluators=feature_stats,knn", *what
    )
    assert (code, err) == (0, "")
    return out

  run, copy = f"{root}/compared", tmp_path / "copy"
  planned = compare(run, "--dry_run")
  assert f"in {run};" in planned and planned.endswith("MiB of checkpoints\n")
  assert not paths.absolute(run).exists()
  assert "untrained" in compare(run)
  code, out, _ = call("explore", f"--workdir={run}/seed0/ncl")
  assert code == 0 and f"{run}/seed0/ncl/explorer.html (" in out
  fsspec.filesystem("gcs").get(run, str(copy), recursive=True)
  page = (copy / "report" / "index.html").read_text()
  named = re.findall(r'(?:src|href|srcset)="(?!#|https?:|data:)([^" ]+)', page)
  assert "explorer.html" in named and sum(n.endswith(".png") for n in named) > 3
  assert all((copy / "report" / name).is_file() for name in named)
  assert not (copy / ".lock").exists()
  # The copy is a comparison of its own: nothing is trained or measured again.
  files = ("measured.jsonl", "seed0/cl/metrics.jsonl", "seed0/cl/speed.jsonl")
  before = [(copy / file).read_bytes() for file in files]
  report = json.loads((copy / "report" / "report.json").read_text())
  compare(copy)
  assert [(copy / file).read_bytes() for file in files] == before
  again = json.loads((copy / "report" / "report.json").read_text())
  assert again["metrics"] == report["metrics"]


def test_a_sweep_and_a_reproduction_are_written_there(root, tmp_path):
  data = f"arrays:{tiny.npz(tmp_path / 'tiny.npz')}"
  flags = ["--config=tests/tiny.py:ncl", f"--config.data.source={data}"]
  flags += ["--config.train.epochs=2", f"--workdir={root}/sweep", "--grid=seed=0,1"]
  code, out, err = call("sweep", *flags, "--evaluators=feature_stats")
  assert code == 0 and f"{root}/sweep/sweep.png" in out, err
  folder = paths.absolute(f"{root}/sweep")
  rows = jsonl.read(folder / "sweep.jsonl")
  assert [row["settings"]["seed"] for row in rows] == [0, 1]
  assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
  assert not [file for file in folder.iterdir() if file.name == ".lock"]
  measured = (folder / "measured.jsonl").read_bytes()
  assert call("sweep", *flags, "--evaluators=feature_stats")[1] == out
  assert (folder / "measured.jsonl").read_bytes() == measured

  config = tiny.config()
  config.train.epochs, config.data.source = 2, data
  config.expected = {"cl": {}, "ncl": {"sparsity": 0.9}}
  work = f"{root}/reproduced"
  text = reproduce.reproduce(config, work, seeds=1, evaluators=("feature_stats",))
  assert "NCL's sparsity is 0.900" in text
  found = json.loads((paths.absolute(work) / "verdicts.json").read_text())["claims"]
  assert any(row["found"] is not None for row in found)


def test_compiled_programs_are_shared(root):
  before = compile_in(f"{root}/compiled")
  assert before[0] == 0 and before[1] > 0
  assert compile_in(f"{root}/compiled") == (before[1], 0)
