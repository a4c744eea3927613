"""A first and a second start of training, each in a process of its own.

  python -m benchmarks.startup

Trains for two epochs with an empty folder for compiled programs, then again with the
same folder, as often as --repeats says, and prints where the seconds went until the
first step was done.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from benchmarks import measure
from ncl_jax.runtime import jsonl

ROOT = pathlib.Path(__file__).parent.parent


def main() -> None:
  """Prints a line a start."""
  parser = measure.arguments(__doc__)
  configs = ["configs/digits.py:ncl", "configs/fashion_mnist.py:ncl"]
  parser.add_argument("--configs", nargs="+", default=configs)
  flags = parser.parse_args()
  rows = []
  for config in flags.configs:
    starts: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
    for _ in range(flags.repeats):
      with tempfile.TemporaryDirectory() as cache:
        for name, seen in starts.items():
          seen.append(start(config, cache, name))
    table = []
    for name, seen in starts.items():
      row = {"": f"{config}, {name}"} | {
        lap: statistics.median(laps[lap] for laps in seen) for lap in seen[0]
      }
      row["to first step"] = statistics.median(sum(laps.values()) for laps in seen)
      table.append(row)
    for row in table:
      row["of first"] = row["to first step"] / table[0]["to first step"]
    rows += table
  measure.finish(
    "Seconds until the first step, the first start and the second",
    rows,
    flags.json,
    "start: from the process's begin, with imports and data. Medians.",
  )


def start(config, cache, name):
  """The laps of one start, from the run's own account."""
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / name
    command = [sys.executable, "-m", "launch.train", f"--config={config}"]
    command += [f"--workdir={workdir}", "--config.train.epochs=2"]
    command += ["--config.optimizer.warmup_epochs=0.0"]
    command += ["--config.data.train_examples=1280"]
    environment = os.environ | {
      "JAX_COMPILATION_CACHE_DIR": cache,
      "JAX_PLATFORMS": "cpu",
    }
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return jsonl.read(workdir / "speed.jsonl")[0]["seconds"]


if __name__ == "__main__":
  main()
