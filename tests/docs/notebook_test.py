"""The notebook: kept as it once ran, and still running."""

import ast
import contextlib
import importlib.metadata
import io
import pathlib
import re
import shutil
import subprocess
import types

import nbclient
import nbformat
import pytest

from ncl_jax import config as config_lib

ROOT = pathlib.Path(__file__).parents[2]
FILE = ROOT / "notebooks" / "cl_vs_ncl.ipynb"
SMALL = {
  "data.train_examples": 256,
  "model.width": 2,
  "model.projector_hidden": 16,
  "model.projector_out": 8,
  "train.epochs": 1,
  "optimizer.warmup_epochs": 0.5,
}


@pytest.fixture
def notebook():
  return nbformat.read(FILE, as_version=4)


def code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def with_text(notebook, text):
  """The one code cell that contains a text."""
  (cell,) = (cell for cell in code(notebook) if text in cell.source)
  return cell


def with_cell_text(notebook, text):
  """The source of the one cell that contains a text, its lines joined."""
  (cell,) = (cell for cell in notebook.cells if text in cell.source)
  return " ".join(cell.source.split())


def complaints(notebook):
  """Whatever is neither a result nor printed."""
  return [
    output
    for cell in code(notebook)
    for output in cell.outputs
    if output.output_type == "error" or output.get("name", "stdout") != "stdout"
  ]


def run(source, space):
  """What the code prints, a list of numbers for each line."""
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    exec(compile(source, FILE.name, "exec"), space)
  lines = out.getvalue().splitlines()
  return {
    line.split()[0]: [float(x) for x in re.findall(r"\d+(?:\.\d+)?", line)]
    for line in lines
  }


def test_it_is_kept_as_it_ran_once(notebook):
  nbformat.validate(notebook)
  cells = code(notebook)
  assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
  assert complaints(notebook) == []
  silent = [cell for cell in cells if not cell.outputs]
  assert silent == cells[:2]  # settings and installation
  kinds = [set(output.get("data", {})) for cell in cells for output in cell.outputs]
  assert sum("image/png" in kind for kind in kinds) >= 3
  assert sum("text/markdown" in kind for kind in kinds) == 1  # the table
  assert sum("text/html" in kind for kind in kinds) == 1  # the explorer
  assert FILE.stat().st_size < 1.5e6


def test_it_names_no_machine(notebook):
  for cell in code(notebook):
    for output in cell.outputs:
      output.get("data", {}).pop("image/png", None)
  # What is left of base64 may hold any text.
  text = re.sub(r"[A-Za-z0-9+/=]{200,}", "", nbformat.writes(notebook))
  assert not re.findall(r"/(?:work|home|root|tmp|Users|mnt)\b[^\"]*", text)


def test_settings_exist(notebook):
  (cell,) = (c for c in code(notebook) if "parameters" in c.metadata.get("tags", ()))
  space = {}
  exec(cell.source, space)
  assert (ROOT / "configs" / f"{space['DATA']}.py").is_file()
  other = re.search(r'DATA = .*# or "(\w+)"', cell.source)[1]
  assert (ROOT / "configs" / f"{other}.py").is_file()
  example = ast.literal_eval(re.search(r"CHANGES = .*for example (.*)", cell.source)[1])
  assert space["CHANGES"] == {} and example
  assert set(SMALL) | set(example) <= set(config_lib.known_keys())


class Machine:
  """One that has these packages; pip ends with these codes, and its calls are kept."""

  def __init__(self, patch, folder, packages, answers=(0,), gpu=False):
    self.packages, self.answers = dict(packages), list(answers)
    self.calls, self.constraints = [], []
    patch.chdir(folder)
    patch.setattr(importlib.metadata, "distributions", self._distributions)
    patch.setattr(
      importlib.metadata, "packages_distributions", lambda: {"sys": ["a_b"]}
    )
    patch.setattr(subprocess, "run", self._run)
    patch.setattr(shutil, "which", lambda name: name if gpu else None)

  def _distributions(self):
    return [types.SimpleNamespace(name=n, version=v) for n, v in self.packages.items()]

  def _run(self, command, **_):
    self.calls.append(command)
    if "--constraint" in command:
      text = pathlib.Path(command[-1]).read_text()
      self.constraints.append(set(text.split()))
    code = self.answers.pop(0)
    if code == "replaces":
      self.packages["a_b"], code = "9", 0
    return subprocess.CompletedProcess(command, code, "of pip", "")


COLAB = {
  "numpy": "2.0.2",
  "protobuf": "5.29.5",
  "a_b": "1",
  "rich": "13",
  "jax": "0.7.2",
}
GPU = {"jaxlib": "0.7.2", "jax-cuda12-plugin": "0.7.2"}
KEPT = {"numpy==2.0.2", "protobuf==5.29.5", "a-b==1"}


def test_a_jax_that_stays_is_one_that_the_package_takes(source, notebook):
  files = [ROOT / "requirements.txt", ROOT / "pyproject.toml"]
  text = "".join(file.read_text() for file in files)
  oldest = set(re.findall(r"jax(?:\[\w+\])?>=([\d.]+)", text))
  (ours,) = re.findall(r"numbers >= \[(.*)\]", source)
  assert oldest == {ours.replace(", ", ".")}
  said = with_cell_text(notebook, "## 2. Installation")
  assert f"{ours.replace(', ', '.')} or newer" in said


@pytest.fixture
def source(notebook):
  return with_text(notebook, "subprocess").source


@pytest.mark.parametrize(
  ("packages", "gpu", "extra", "constrained"),
  [
    ({"jax": "0.7.2"}, False, "", {"jax==0.7.2"}),
    (GPU, True, "", {"jax==0.7.2", "jaxlib==0.7.2", "jax-cuda12-plugin==0.7.2"}),
    (GPU | {"jax": "0.6.9"}, True, "[cuda]", set()),
    ({"jax": "0.10.0"}, True, "[cuda]", {"jax==0.10.0"}),
  ],
)
def test_what_is_in_use_and_a_recent_jax_stay(
  source, packages, gpu, extra, constrained, tmp_path, monkeypatch
):
  machine = Machine(monkeypatch, tmp_path, COLAB | packages, gpu=gpu)
  exec(source, {"ARCHIVE": "https://x.org/n.zip"})
  (command,) = machine.calls
  assert f"ncl_jax{extra} @ https://x.org/n.zip" in command
  assert machine.constraints == [KEPT | constrained]


def test_an_uploaded_wheel_is_found(source, tmp_path, monkeypatch, capsys):
  machine = Machine(monkeypatch, tmp_path, COLAB)
  with pytest.raises(SystemExit, match="ARCHIVE"):
    exec(source, {"ARCHIVE": ""})
  assert machine.calls == []
  wheel = tmp_path / "ncl_jax-0.3.0-py3-none-any.whl"
  wheel.touch()
  exec(source, {"ARCHIVE": ""})
  assert f"ncl_jax @ {wheel.as_uri()}" in machine.calls[0]
  assert "of pip" in capsys.readouterr().out


def test_it_stops_where_the_session_must_be_restarted(source, tmp_path, monkeypatch):
  machine = Machine(monkeypatch, tmp_path, COLAB, answers=(1, "replaces", 1, 1))
  with pytest.raises(SystemExit, match="Restart the session.* a-b "):
    exec(source, {"ARCHIVE": "n.whl"})
  assert "--constraint" not in machine.calls[1]
  with pytest.raises(SystemExit, match="could not install"):
    exec(source, {"ARCHIVE": "n.whl"})


def test_an_installed_package_is_left_alone(source, tmp_path, monkeypatch):
  machine = Machine(monkeypatch, tmp_path, {"ncl_jax": "0.3.0"})
  exec(source, {"ARCHIVE": "n.whl"})
  assert machine.calls == []


def test_only_the_loss_of_cl_is_blind_to_rotations(notebook):
  printed = run(with_text(notebook, "rotation").source, {})
  assert printed["CL"][0] == printed["CL"][1]
  assert printed["NCL"][1] > printed["NCL"][0] + 0.1


def test_the_line_on_features_of_ones_own(notebook):
  space = {}
  exec("import jax, jax.numpy as jnp\nfrom ncl_jax import losses, nonneg", space)
  source = with_text(notebook, "def fit").source
  printed = run(source.replace("steps=200", "steps=60"), space)
  assert "steps=200" in source
  (cl_zeros, cl_purity), (zeros, purity) = printed["CL"], printed["NCL"]
  assert cl_zeros < 1 and zeros > 60
  assert purity > cl_purity + 10


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(notebook, tmp_path):
  index = notebook.cells.index(with_text(notebook, "CHANGES = {}"))
  given = f"CHANGES = {SMALL}\nWORKDIR = {str(tmp_path / 'run')!r}"
  notebook.cells.insert(index + 1, nbformat.v4.new_code_cell(given))
  for cell in code(notebook):
    cell.outputs = []
  where = {"metadata": {"path": str(FILE.parent)}}
  nbclient.NotebookClient(
    notebook, timeout=1800, kernel_name="python3", resources=where
  ).execute()
  assert complaints(notebook) == []
  table = with_text(notebook, "compare.compare").outputs[0].data["text/markdown"]
  assert "| CL | NCL | untrained + transform | NCL - CL | chance |" in table
  frame = with_text(notebook, "as_frame").outputs[0].data["text/html"]
  assert "srcdoc=" in frame and len(frame) > 100_000
  assert (tmp_path / "run" / "report" / "index.html").is_file()
