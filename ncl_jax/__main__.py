"""The command `ncl`: runs a program by its name, or lists the programs."""

import ast
import difflib
import os
import pathlib
import runpy
import sys

import ncl_jax
from ncl_jax.errors import EXIT_INPUT
from ncl_jax.host import paths


def main() -> None:
  """Runs `ncl NAME --FLAG=VALUE ...`, as `python -m launch.NAME` does in a checkout."""
  programs = {path.stem: path for path in sorted(paths.shipped("launch").glob("*.py"))}
  name = sys.argv[1] if len(sys.argv) > 1 else "--help"
  if name in ("-h", "-help", "--help", "help"):
    try:
      print(_listed(programs), flush=True)
    except BrokenPipeError:  # ncl | head
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  elif name == "--version":
    print(f"ncl_jax {ncl_jax.__version__}")
  elif name in programs:
    sys.argv = [str(programs[name]), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
  else:
    near = difflib.get_close_matches(name, programs, n=1)
    hint = f"did you mean ncl {near[0]}?" if near else "ncl lists them"
    print(f"error: there is no program {name!r}: {hint}", file=sys.stderr)
    sys.exit(EXIT_INPUT)


def _listed(programs: dict[str, pathlib.Path]) -> str:
  """One line a program, the first of its docstring."""
  width = max(map(len, programs))
  lines = ["ncl NAME --FLAG=VALUE ... runs a program; ncl NAME --help explains it.", ""]
  for name, path in programs.items():
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines.append(f"  {name:{width}}  {text.partition(chr(10))[0]}")
  return "\n".join(lines)


if __name__ == "__main__":
  main()
