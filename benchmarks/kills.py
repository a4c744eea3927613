"""Kills a training run repeatedly, and checks that this leaves no trace.

  python -m benchmarks.kills --kills=20

Trains a small network on handwritten digits twice: once undisturbed, and once with
repeated SIGKILLs and restarts. Every other kill waits until a checkpoint is being
written. Both runs must end in the same state, bit for bit, with the same metrics;
otherwise the differences are reported.
"""

import argparse
import dataclasses
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ncl_jax.runtime import jsonl

ROOT = pathlib.Path(__file__).parent.parent
STEPS_PER_EPOCH = 8
SETTINGS = {
  "data.train_examples": 256,
  "train.batch_size": 256 // STEPS_PER_EPOCH,
  "train.log_every_steps": 1,
  "train.checkpoint_every_epochs": 1,
  "model.backbone": "resnet10",
  "model.width": 2,
  # Most of the state, so that a save takes long enough to be hit.
  "model.projector_hidden": 4096,
  "model.projector_out": 64,
  "optimizer.warmup_epochs": 1,
}


@dataclasses.dataclass(frozen=True)
class Kill:
  """One kill: the last step that was logged, and whether a save was cut off."""

  step: int
  during_save: bool


def command(workdir: pathlib.Path, epochs: int) -> list[str]:
  """The training program on that directory."""
  settings = SETTINGS | {"train.epochs": epochs}
  return [
    sys.executable,
    "-m",
    "launch.train",
    "--config=configs/digits.py:ncl",
    f"--workdir={workdir}",
    *(f"--config.{key}={value}" for key, value in settings.items()),
  ]


def unfinished(workdir: pathlib.Path) -> set[str]:
  """Checkpoints that are being written, or were interrupted."""
  folder = workdir / "checkpoints"
  names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
  return {name for name in names if not name.isdigit()}


def check(run: subprocess.Popen) -> None:
  """Raises if a run has ended by itself, because then the kill would prove nothing."""
  if run.poll() is not None:
    said = run.stderr.read().decode()[-2000:] if run.stderr else ""
    raise RuntimeError(f"the run ended before it was killed: {said}")


def check_all(runs: list[subprocess.Popen]) -> None:
  """As `check`, of each; and waits a little."""
  for run in runs:
    check(run)
  time.sleep(0.001)


def kill_once(workdir: pathlib.Path, epochs: int, in_save: bool, steps: int) -> Kill:
  """Starts or resumes the run, and kills it.

  Args:
    workdir: of the run.
    epochs: the run's length; it must not end before the kill.
    in_save: wait until a checkpoint is being written.
    steps: number of steps to log before the kill.
  """
  file = workdir / "metrics.jsonl"
  before = file.stat().st_mtime_ns if file.exists() else 0
  stale = unfinished(workdir)
  with subprocess.Popen(
    command(workdir, epochs), cwd=ROOT, stderr=subprocess.PIPE
  ) as run:
    # Resuming first drops the rows logged after the checkpoint.
    while not file.exists() or file.stat().st_mtime_ns == before:
      check(run)
      time.sleep(0.001)
    first = len(jsonl.read(file))
    while len(jsonl.read(file)) < first + steps:
      check(run)
      time.sleep(0.01)
    # The partial checkpoint of the previous kill is removed by now, or soon.
    while stale & unfinished(workdir) or (in_save and not unfinished(workdir)):
      check(run)
      time.sleep(0.001)
    check(run)
    run.kill()
  return Kill(jsonl.read(file)[-1]["step"], bool(unfinished(workdir)))


def train(workdir: pathlib.Path, epochs: int) -> None:
  """Trains to the end."""
  subprocess.run(command(workdir, epochs), cwd=ROOT, check=True, capture_output=True)


def read(reader: ocp.PyTreeCheckpointer, item: pathlib.Path) -> Any:
  """A checkpoint's item as numpy arrays, independent of devices."""
  as_numpy = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
    reader.metadata(item).item_metadata.tree,
  )
  return reader.restore(item, ocp.args.PyTreeRestore(restore_args=as_numpy))


def differences(a: pathlib.Path, b: pathlib.Path) -> list[str]:
  """Differences of two finished runs: tensors, bit for bit, and logged metrics."""
  faults = []
  step = max(int(p.name) for p in (a / "checkpoints").iterdir() if p.name.isdigit())
  for item in ("model", "train"):
    with ocp.PyTreeCheckpointer() as reader:
      trees = [read(reader, run / "checkpoints" / str(step) / item) for run in (a, b)]
    leaves = [jax.tree_util.tree_leaves_with_path(tree) for tree in trees]
    for (path, x), (_, y) in zip(*leaves, strict=True):
      if np.asarray(x).tobytes() != np.asarray(y).tobytes():
        faults.append(f"{item}{jax.tree_util.keystr(path)}")
  texts = [(run / "metrics.jsonl").read_text() for run in (a, b)]
  if texts[0] != texts[1]:
    faults.append("metrics.jsonl")
  steps = [int(n) for n in re.findall(r'"step": (\d+)', texts[1])]
  if steps != list(range(1, step + 1)):
    faults.append("metrics.jsonl: steps missing or twice")
  return faults


def main(folder: pathlib.Path, kills: int, epochs: int, seed: int) -> list[Kill]:
  """Makes both runs and prints every kill and the verdict.

  Raises:
    AssertionError: if the runs differ; names the differences.
  """
  print(f"{epochs * STEPS_PER_EPOCH} steps, a save every {STEPS_PER_EPOCH}")
  train(folder / "peace", epochs)
  draw = random.Random(seed)
  done = []
  for i in range(kills):
    kill = kill_once(folder / "killed", epochs, i % 2 == 0, draw.randint(1, 40))
    done.append(kill)
    where = "while a checkpoint was written" if kill.during_save else "between saves"
    print(f"kill {i + 1:2d}: after step {kill.step:4d}, {where}", flush=True)
  train(folder / "killed", epochs)
  faults = differences(folder / "peace", folder / "killed")
  if faults:
    raise AssertionError(f"the killed run differs in {', '.join(faults)}")
  print(
    f"{kills} kills, {sum(k.during_save for k in done)} of them inside a save: "
    "same state bit for bit, same metrics, no step twice"
  )
  return done


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--kills", type=int, default=20)
  parser.add_argument("--epochs", type=int, default=100, help="of 8 steps each")
  parser.add_argument("--seed", type=int, default=0, help="for the times of the kills")
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as place:
    main(pathlib.Path(place), given.kills, given.epochs, given.seed)
