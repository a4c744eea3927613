"""Time of a first and a second start of training, each in its own process.

  python -m benchmarks.startup

Trains for two epochs with an empty compilation cache, then again with the filled one,
--repeats times. Prints the seconds of each phase until the first step is done.
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
  """Prints a line for each start."""
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
        phase: statistics.median(one[phase] for one in seen) for phase in seen[0]
      }
      row["to first step"] = statistics.median(sum(one.values()) for one in seen)
      table.append(row)
    for row in table:
      row["relative to first"] = row["to first step"] / table[0]["to first step"]
    rows += table
  measure.finish(
    "Seconds until the first step, the first start and the second",
    rows,
    flags.json,
    "start: since the process began, with imports and loading data. Medians.",
  )


def start(config, cache, name):
  """Seconds of each phase of one start, from the run's timing summary."""
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
