"""Runs every benchmark and writes docs/performance.md from what they measured.

  python -m benchmarks.run

One after the other, each in a process of its own; --only runs some. What an earlier
call with the same --out measured is kept unless it is named. An hour on two cores;
leave the machine alone meanwhile. The columns of peers need the packages: pip install
torch torchvision (no part of ncl_jax's requirements).
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
  "startup": ["--repeats=3"],
  "accumulation": [],
  "explorer": [],
}


def main() -> None:
  """Measures, then writes the page."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  # Kept beside the page, so that a table can be made anew without the others.
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
  """The page, from the JSON that there is."""
  lines = [
    "# Performance",
    "",
    "Made by `python -m benchmarks.run` from the programs in `benchmarks/`; each table",
    "names its command. Contestants run in turn, round after round, and medians count;",
    "on a machine that does other work too, ratios say more than seconds.",
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
