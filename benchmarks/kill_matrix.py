"""Stops either of two training processes in and between saves; compares the results.

  python -m benchmarks.kill_matrix

Trains a small network on handwritten digits in two processes, once in peace and once
with an interruption of each kind: SIGTERM or SIGKILL, to the first or the second
process, between two saves, before the arrays of a save are copied, or while its files
are written. The last two are held open for some seconds. After SIGTERM both processes
must save the same step and exit with 143; after SIGKILL the other must end by itself.
Both runs must end in the same state, bit for bit, with the same metrics.
"""

import argparse
import itertools
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import kills, measure
from ncl_jax.runtime import jsonl

MOMENTS = ("between", "copying", "writing")
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
HELD_SECONDS = 4.0
# Of the other process, after one was killed: heartbeats, and what it then prints.
END_SECONDS = 120


def epochs(interruptions: int) -> int:
  """Enough that the run does not end before the last interruption."""
  return 4 + 3 * interruptions


def start(
  workdir: pathlib.Path, length: int, moment: str = ""
) -> list[subprocess.Popen]:
  """Two processes of a run; the first holds its saves open if a moment is given."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  environment = os.environ | {
    "JAX_NUM_CPU_DEVICES": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(workdir.parent / "cache"),
  }
  _, _, _, *flags = kills.command(workdir, length)
  flags += ["--config.model.projector_hidden=64", "--heartbeat_seconds=10"]
  flags += [f"--coordinator=127.0.0.1:{port}", "--num_processes=2"]
  started = []
  for i in range(2):
    held = [str(mark(workdir)), moment if i == 0 else ""]
    started.append(
      subprocess.Popen(
        [sys.executable, "-m", __spec__.name, *held, *flags, f"--process_id={i}"],
        cwd=kills.ROOT,
        env=environment,
        stderr=subprocess.PIPE,
      )
    )
  return started


def mark(workdir: pathlib.Path) -> pathlib.Path:
  """The file that is there from the first save on that is held open."""
  return workdir.with_name("held")


def train_slowly(file: pathlib.Path, moment: str) -> None:
  """The training program, its saves held open at a moment."""

  def hold() -> None:
    file.touch()
    time.sleep(HELD_SECONDS)

  if moment == "copying":
    from ncl_jax.runtime import checkpoint

    copied = checkpoint._copied
    checkpoint._copied = lambda tree: (hold(), copied(tree))[1]
  elif moment == "writing":
    from orbax.checkpoint._src.path import atomicity

    finalize = atomicity.AtomicRenameTemporaryPath.finalize

    async def finalize_late(*args, **kwargs):
      hold()
      return await finalize(*args, **kwargs)

    atomicity.AtomicRenameTemporaryPath.finalize = finalize_late
  runpy.run_module("launch.train", run_name="__main__", alter_sys=True)


def interrupt(
  workdir: pathlib.Path, length: int, number: signal.Signals, victim: int, moment: str
) -> int:
  """Goes on with the run until one process gets a signal, and both have ended.

  Returns:
    The last step that was logged.

  Raises:
    AssertionError: if the processes do not end as they should.
  """
  mark(workdir).unlink(missing_ok=True)
  file = workdir / "metrics.jsonl"
  before = file.stat().st_mtime_ns if file.exists() else 0
  running = start(workdir, length, "" if moment == "between" else moment)
  try:
    while not file.exists() or file.stat().st_mtime_ns == before:
      kills.check_all(running)
    if moment == "between":
      first = len(jsonl.read(file))
      while len(jsonl.read(file)) < first + 3:
        kills.check_all(running)
    else:
      while not mark(workdir).exists():
        kills.check_all(running)
    running[victim].send_signal(number)
    ended = [
      process.communicate(timeout=END_SECONDS)[1].decode() for process in running
    ]
  finally:
    for process in running:
      process.kill()
  codes = [process.returncode for process in running]
  name = f"{number.name} to process {victim}, {moment}"
  if number == signal.SIGTERM:
    steps = [err.split("after step ")[-1].split(" ")[0] for err in ended]
    assert codes == [143, 143] and steps[0] == steps[1], (name, codes, ended)
  else:
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim], (name, codes, ended)
  return jsonl.read(file)[-1]["step"]


def main(
  folder: pathlib.Path, kinds: Sequence[tuple[signal.Signals, int, str]]
) -> list[dict[str, Any]]:
  """Runs both, and prints every interruption.

  Returns:
    A row for each interruption.

  Raises:
    AssertionError: if a process does not end as it should, or the runs differ.
  """
  length, rows = epochs(len(kinds)), []
  finish(folder / "peace", length)
  for number, victim, moment in kinds:
    step = interrupt(folder / "killed", length, number, victim, moment)
    name = f"{number.name} to process {victim}, {moment}"
    print(f"{name}: step {step}", flush=True)
    rows.append({"": name, "last step logged": step})
  finish(folder / "killed", length)
  faults = kills.differences(folder / "peace", folder / "killed")
  if faults:
    raise AssertionError(f"the interrupted run differs in {', '.join(faults)}")
  return rows


def report(rows: list[dict[str, Any]], file: str) -> None:
  """Prints the rows of `main`, and writes them as JSON if a file is given."""
  measure.finish(
    f"Two processes, stopped {len(rows)} times in and between saves",
    rows,
    file,
    "Eight steps are an epoch, and a checkpoint is saved after each. Copying, writing: "
    f"the first process holds its saves open for {HELD_SECONDS:g} seconds, before the "
    "arrays are copied or while the files are written. The same command resumes. The "
    "final state is that of a run that was never stopped, bit for bit, with the same "
    "metrics; else the benchmark fails.",
  )


def finish(workdir: pathlib.Path, length: int) -> None:
  """Trains to the end."""
  ended = [(p.communicate(), p.returncode) for p in start(workdir, length)]
  assert not any(code for _, code in ended), ended


if __name__ == "__main__":
  if len(sys.argv) > 2 and not sys.argv[1].startswith("-"):
    train_slowly(pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1))
  else:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="", help="file for the table as JSON")
    file = parser.parse_args().json
    with tempfile.TemporaryDirectory() as place:
      kinds = list(itertools.product(SIGNALS, (0, 1), MOMENTS))
      report(main(pathlib.Path(place), kinds), file)
