"""Each study's command parses, and its page shows the tables that its data give."""

import importlib
import os
import pathlib
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STUDIES = ROOT / "studies"
PROGRAMS = sorted(
  ".".join(file.relative_to(ROOT).with_suffix("").parts)
  for file in STUDIES.rglob("*.py")
  if "argparse" in file.read_text()
)
# Every folder with the data of a study's tables; a study may have several.
DATA = [
  *(
    "better_axes/data",
    "cifar10/data",
    "cifar100/data",
    "frozen/data",
    "fashion/data",
    "nce/data",
    "emoji/data",
    "harder/data",
    "keywords/data",
    "codes/data",
  ),
  *("families/data", "families/data/long", "families/data/slow"),
]


def test_every_study_has_a_page_that_the_index_names():
  index = (STUDIES / "README.md").read_text()
  folders = [file.parent.name for file in STUDIES.glob("*/README.md")]
  assert len(folders) >= 8
  assert all(f"({name}/README.md)" in index for name in folders)
  assert {p.name for p in STUDIES.iterdir() if p.is_dir()} - {"__pycache__"} == set(
    folders
  )


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_explain_themselves(program, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", [program, "--help"])
  monkeypatch.setattr(os, "environ", dict(os.environ))
  sys.modules.pop(program, None)  # imported by another study: runpy would warn
  with pytest.raises(SystemExit) as end:
    runpy.run_module(program, run_name="__main__", alter_sys=True)
  assert end.value.code == 0 and "--" in capsys.readouterr().out


@pytest.mark.parametrize("folder", DATA)
def test_the_page_shows_the_tables_of_the_data(folder):
  study = folder.partition("/")[0]
  page = (STUDIES / study / "README.md").read_text()
  tables = []
  for file in sorted((STUDIES / study).glob("*.py")):
    if "def tables(" in file.read_text():
      program = importlib.import_module(f"studies.{study}.{file.stem}")
      tables += "\n".join(program.tables(STUDIES / folder)).split("\n\n")
  assert len(tables) > 1
  for table in tables:
    assert f"\n\n{table.strip()}\n\n" in f"{page}\n", "or fewer rows than the page has"


def test_the_product_imports_no_study():
  files = [*(ROOT / "ncl_jax").rglob("*.py"), *(ROOT / "launch").rglob("*.py")]
  assert not [f for f in files if "import studies" in f.read_text()]
  assert not [f for f in files if "from studies" in f.read_text()]
