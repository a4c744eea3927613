"""`ncl`, recipes by name and runs by config.json, in a checkout and from a wheel."""

import importlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import sysconfig
import tomllib
import venv

import pytest
import setuptools
import tiny
from programs import ROOT, call

from ncl_jax import __main__ as dispatcher
from ncl_jax import config as config_lib
from ncl_jax.config import recipes
from ncl_jax.errors import InputError

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def ncl(*arguments):
  """The exit code of `ncl` in this process."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "argv", ["ncl", *arguments])
    try:
      dispatcher.main()
    except SystemExit as end:
      return end.code
  return 0


def test_an_installation_holds_every_folder_of_code(monkeypatch):
  seen = {}
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(setuptools, "setup", lambda **settings: seen.update(settings))
  runpy.run_path("setup.py")
  folders = {path.parent for path in ROOT.joinpath("ncl_jax").rglob("*.py")}
  code = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
  assert set(seen["packages"]) == code | {"ncl_jax.launch", "ncl_jax.configs"}
  assert all((ROOT / folder).is_dir() for folder in seen["package_dir"].values())
  module, _, function = PROJECT["project"]["scripts"]["ncl"].partition(":")
  assert getattr(importlib.import_module(module), function) is dispatcher.main


def test_an_installation_holds_every_other_file():
  found = {
    path
    for path in ROOT.joinpath("ncl_jax").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
  }
  data = PROJECT["tool"]["setuptools"]["package-data"]
  listed = {
    ROOT.joinpath(*package.split("."), name)
    for package, names in data.items()
    for name in names
  }
  assert found == listed and len(found) >= 5


def test_alone_it_lists_every_program_in_a_line(capsys):
  assert ncl() == 0
  rows = capsys.readouterr().out.splitlines()[2:]
  assert [row.split()[0] for row in rows] == sorted(
    path.stem for path in (ROOT / "launch").glob("*.py")
  )
  assert all(len(row.split()) > 3 for row in rows) and max(map(len, rows)) <= 100


def test_a_program_gets_its_flags_and_a_wrong_name_a_hint(capsys, monkeypatch):
  seen = []
  monkeypatch.setattr(
    runpy, "run_path", lambda path, run_name: seen.append([path, run_name, *sys.argv])
  )
  assert ncl("knn", "--workdir=run", "--step=3") == 0
  file = str(ROOT / "launch" / "knn.py")
  assert seen == [[file, "__main__", file, "--workdir=run", "--step=3"]]
  assert ncl("trian") == 2
  assert "did you mean ncl train?" in capsys.readouterr().err


@pytest.mark.parametrize("name", recipes.names())
def test_a_name_is_the_recipe_that_comes_with_the_package(name, tmp_path, monkeypatch):
  (tmp_path / "configs").mkdir()
  for file in (f"{name}.py", f"configs/{name}.py"):
    (tmp_path / file).write_text("raise AssertionError('of another project')")
  monkeypatch.chdir(tmp_path)
  path = recipes.locate(name)
  assert path == ROOT / "configs" / f"{name}.py"
  assert recipes.load(name) == recipes.load(str(path))


@pytest.mark.parametrize(
  ("given", "says"),
  [
    ("digit", "did you mean digits?"),
    ("qqqqqq", "there are cifar10, "),
    ("configs/digits.py", "there is none; the recipe that comes with ncl_jax is digit"),
    ("run/config.json", "there is none"),
  ],
)
def test_what_is_no_config_is_one_sentence(given, says, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match=says.replace("?", r"\?")):
    recipes.locate(given)
  code, _, err = call("train", f"--config={given}:ncl", "--workdir=W")
  assert code == 2 and says in err and err.count("\n") == 1


def test_the_config_of_a_run_repeats_it(tmp_path):
  saved = recipes.load("digits", "cl")
  saved.loss.temperature = 0.37
  file = tmp_path / "a:b" / "config.json"
  file.parent.mkdir()
  file.write_text(config_lib.to_json(saved))
  assert config_lib.to_json(recipes.load(str(file))) == config_lib.to_json(saved)
  flags = (f"--workdir={tmp_path}/W", "--dry_run", "--config.train.epochs=7")
  code, out, err = call("train", "--config", tmp_path / "config.json", *flags)
  assert code == 2 and "there is none" in err
  file = file.rename(tmp_path / "config.json")
  code, out, err = call("train", f"--config={file}", *flags)
  assert code == 0, err
  assert "0.37" in out and "train.epochs" in out and "CL" in out
  code, _, err = call("train", f"--config={file}:ncl", *flags)
  assert code == 2 and "method" in err


@pytest.mark.parametrize(
  ("text", "says"),
  [("{", "not JSON"), ("", "not JSON"), ("[1]", "object"), ('{"a": 1}', "field 'a'")],
)
def test_a_foreign_json_is_one_sentence_with_its_path(text, says, tmp_path):
  file = tmp_path / "config.json"
  file.write_text(text)
  code, _, err = call("train", f"--config={file}", f"--workdir={tmp_path}/W")
  assert code == 2 and says in err and str(file) in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """The folder of programs of an environment that has the wheel, not the checkout."""
  place = tmp_path_factory.mktemp("wheel")
  source = place / "source"
  files = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout.splitlines()
  for file in files:
    if file.startswith(("ncl_jax/", "launch/", "configs/")) or "/" not in file:
      (source / file).parent.mkdir(parents=True, exist_ok=True)
      (source / file).write_bytes((ROOT / file).read_bytes())
  pip = [sys.executable, "-m", "pip", "--quiet"]
  build = [*pip, "wheel", "--no-deps", f"--wheel-dir={place}", str(source)]
  subprocess.run(build, check=True)
  venv.create(place / "venv", with_pip=False)
  (wheel,) = place.glob("*.whl")
  python = place / "venv" / "bin" / "python"
  install = [*pip, f"--python={python}", "install", "--no-deps", str(wheel)]
  subprocess.run(install, check=True)
  # The requirements are those of these tests, which are not installed again.
  paths = {"base": str(place / "venv"), "platbase": str(place / "venv")}
  site = pathlib.Path(sysconfig.get_path("purelib", "venv", vars=paths))
  (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
  assert {path.name for path in site.iterdir() if path.name[:1].isalpha()} == {
    "ncl_jax",
    f"ncl_jax-{PROJECT['project'].get('version', config_version())}.dist-info",
    "requirements.pth",
  }
  return place / "venv" / "bin"


def config_version():
  import ncl_jax

  return ncl_jax.__version__


@pytest.mark.slow
def test_from_a_wheel_beside_folders_of_the_same_names(installed, tmp_path):
  for folder in ("launch", "configs"):
    (tmp_path / folder).mkdir()
    for name in ("__init__", "train", "knn", "digits"):
      text = "raise AssertionError('of another project')"
      (tmp_path / folder / f"{name}.py").write_text(text)
  kept = {"PYTHONPATH", "PYTHONHOME", "JAX_COMPILATION_CACHE_DIR"}
  environment = {k: v for k, v in os.environ.items() if k not in kept}

  def run(*arguments):
    done = subprocess.run(
      [installed / "ncl", *arguments],
      cwd=tmp_path,
      env=environment,
      capture_output=True,
      text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

  assert "knn" in run()
  run("train", "--config=digits:ncl", "--workdir=r", *tiny.FLAGS)
  run("knn", "--workdir=r")
  assert (tmp_path / "r" / "eval" / "knn.jsonl").is_file()
  run("train", "--config=r/config.json", "--workdir=again")

  def last(name):
    text = (tmp_path / name / "metrics.jsonl").read_text()
    return json.loads(text.splitlines()[-1])

  assert last("again") == last("r")
  programs = ("--evaluators=feature_stats", "--controls=untrained")
  run("compare", "--config=digits", "--workdir=c", "--seeds=1", *tiny.FLAGS, *programs)
  assert (tmp_path / "c" / "report" / "index.html").is_file()
