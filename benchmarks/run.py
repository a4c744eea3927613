"""Runs every benchmark and writes docs/performance.md from the results.

  python -m benchmarks.run

The benchmarks run one after the other, each in its own process; --only runs some.
Results of an earlier call with the same --out are kept unless they are named. All take
an hour on two cores; do not use the machine meanwhile. The columns of other libraries
need pip install torch torchvision, which ncl_jax does not require.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from benchmarks import measure
from benchmarks.measure import ROOT

# In the page's order: name, arguments.
BENCHMARKS = {
  "step": ["--repeats=3"],
  "augment": [],
  "loss": ["--repeats=2", "--widths"],
  "evaluate": [],
  "feed": [],
  "jpeg": [],
  "decoded": [],
  "startup": ["--configs", "configs/digits.py:ncl", "--repeats=3"],
  "accumulation": [],
  "explorer": [],
  "kill_matrix": [],
}


def main() -> None:
  """Measures, then writes the page."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  # Stored with the page, so that one table can be renewed without the others.
  default = str(ROOT / "docs" / "data" / "performance")
  parser.add_argument("--out", default=default, help="folder for the JSON")
  parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=[])
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  out.mkdir(parents=True, exist_ok=True)
  for name, arguments in BENCHMARKS.items():
    file = out / f"{name}.json"
    if name in flags.only or (not flags.only and not file.exists()):
      print(f"benchmarks.{name}", flush=True)
      command = [sys.executable, "-m", f"benchmarks.{name}", f"--json={file}"]
      subprocess.run([*command, *arguments], cwd=ROOT, check=True)
      document = json.loads(file.read_text()) | {"machine": measure.machine()}
      file.write_text(json.dumps(document, indent=2) + "\n")
  page = ROOT / "docs" / "performance.md"
  page.write_text(render(out))
  print(f"written: {page}")


def render(out: pathlib.Path) -> str:
  """The page, from the stored JSON."""
  lines = [
    "# Performance",
    "",
    "After this page you can judge how fast each part is and how much memory it takes,",
    "compared with PyTorch, torchvision and scikit-learn. `python -m benchmarks.run`",
    "generates this page, and each table names its command. The implementations take",
    "turns for several rounds, and tables show medians. If the machine did other work,",
    "ratios are more reliable than seconds.",
  ]
  for name, arguments in BENCHMARKS.items():
    file = out / f"{name}.json"
    if file.exists():
      document = json.loads(file.read_text())
      command = " ".join(["python -m", f"benchmarks.{name}", *arguments])
      where = f"`{command}` on {document['machine']}."
      lines += ["", f"## {document['title']}", "", where, ""]
      lines += measure.table(document["rows"])
      if document.get("note"):
        lines += ["", document["note"]]
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  main()
