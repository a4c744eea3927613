"""The notebook on a machine like Colab's: pinned packages, no checkout."""

import json
import pathlib
import shutil
import subprocess
import zipfile

import nbformat
import pytest
from notebook_test import FILE, ROOT, SMALL, with_text

# What Colab had in November 2026, as far as it matters here.
PINS = {
  "jax": "0.7.2",
  "jaxlib": "0.7.2",
  "matplotlib": "3.10.0",
  "numba": "0.60.0",
  "numpy": "2.0.2",
  "pandas": "2.2.2",
  "protobuf": "5.29.5",
  "scikit-learn": "1.6.1",
  "scipy": "1.16.3",
}


# Of those, what has no build for Python 3.13.
LATER = {"numba": "0.61.2", "numpy": "2.2.6", "pandas": "2.2.3"}


def interpreter(version):
  """That Python where it is installed; else the test is skipped."""
  pyenv = pathlib.Path.home().glob(f".pyenv/versions/{version}*/bin/python")
  for python in (shutil.which(f"python{version}"), *pyenv):
    test = [python, "-c", "import ensurepip, venv"]
    if python and subprocess.run(test, capture_output=True).returncode == 0:
      return python
  pytest.skip(f"no Python {version}")


def write_archive(file):
  """The checkout as an archive of a repository has it."""
  listed = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  with zipfile.ZipFile(file, "w") as archive:
    for name in listed.stdout.splitlines():
      if name.startswith(("ncl_jax/", "launch/", "configs/")) or "/" not in name:
        archive.write(ROOT / name, f"ncl_jax-main/{name}")


def write_notebook(file):
  """The notebook with small runs, after what a Colab session may have imported."""
  notebook = nbformat.read(FILE, as_version=4)
  index = notebook.cells.index(with_text(notebook, "CHANGES = {}"))
  loaded = "import matplotlib.pyplot, numba, numpy, pandas, sklearn\n"
  first = nbformat.v4.new_code_cell(f"{loaded}CHANGES = {SMALL}\nWORKDIR = 'run'")
  notebook.cells.insert(index + 1, first)
  nbformat.write(notebook, file)


def run(python, place):
  """Runs the notebook there, from an uploaded archive; returns what it printed."""
  place.mkdir()
  write_archive(place / "ncl_jax-main.zip")
  write_notebook(place / "notebook.ipynb")
  done = subprocess.run(
    [python, "-m", "IPython", "--colors=NoColor", "notebook.ipynb"],
    cwd=place,
    env={"HOME": str(place), "PATH": "/usr/bin:/bin", "MPLBACKEND": "agg"},
    capture_output=True,
    text=True,
  )
  return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
  ("version", "wanted"), [("3.12", PINS), ("3.13", PINS | LATER)], ids=["3.12", "3.13"]
)
def test_it_runs_from_an_uploaded_archive(tmp_path, version, wanted):
  subprocess.run([interpreter(version), "-m", "venv", tmp_path / "venv"], check=True)
  python = tmp_path / "venv" / "bin" / "python"
  pins = [f"{name}=={version}" for name, version in wanted.items()]
  pip = [python, "-m", "pip"]
  subprocess.run([*pip, "install", "--quiet", "ipython", "nbformat", *pins], check=True)
  said = run(python, tmp_path / "content")
  assert (tmp_path / "content/run/report/index.html").is_file(), said
  found = subprocess.run([*pip, "list", "--format=json"], capture_output=True)
  versions = {row["name"].lower(): row["version"] for row in json.loads(found.stdout)}
  assert {name: versions[name] for name in wanted} == wanted
