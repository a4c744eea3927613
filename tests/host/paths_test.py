"""Paths and URLs: no program and no function takes one for the other."""

import re

import pytest
import tiny
from programs import ROOT, call

from ncl_jax import config as config_lib
from ncl_jax import data, encoder, interop
from ncl_jax.encoder import program as encode
from ncl_jax.errors import InputError
from ncl_jax.experiments import show_views, sweep
from ncl_jax.host import paths
from ncl_jax.report import explorer
from ncl_jax.runtime import checkpoint
from ncl_jax.training import loop, workdir

URLS = [
  "gs://b/r",
  "s3://b/r",
  "hdfs://b/r",
  "http://h/r",
  "https://h/r",
  "file:///r",
  "az://b/r",
  "abfss://b/r",
  "hf://b/r",
  "gs:/b/r",
  "GS://b/r",
  "s3:\\b",
]
PROGRAMS = sorted(path.stem for path in (ROOT / "launch").glob("*.py"))
# Flags with a text that is no path.
OTHERS = {
  "accelerator",
  "array",
  "control_evaluators",
  "controls",
  "coordinator",
  "data_shape",
  "grid",
  "labels",
  "layers",
  "names",
  "profile",
  "evaluators",
  "protocol",
  "split",
  "to",
  "topology",
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_path(url):
  name = re.split(r":[/\\]", url)[0]
  with pytest.raises(InputError, match=rf"is a URL \({name.lower()}:\).*Copy"):
    paths.local(url)


@pytest.mark.parametrize(
  "path", ["/a/gs:/b", "./gs:/b", "C:/runs", "C:\\runs", "a b/ü:x", "..", "a:b", "gs:"]
)
def test_other_paths_are_taken_as_they_are(path):
  assert str(paths.local(path)) == str(paths.pathlib.Path(path))


def test_the_home_of_nobody_is_one_sentence():
  with pytest.raises(InputError, match="home"):
    paths.local("~no_such_user_here/runs")


def text_flags(program):
  """Names of a program's own flags that take a text."""
  text = (ROOT / "launch" / f"{program}.py").read_text()
  found = re.findall(
    r"flags\.DEFINE(_string|_list|_enum|)\(\s*(?:cli\.\w+,\s*)?\"(\w+)", text
  )
  on_run = "run_on_checkpoint" in text
  return {name for _, name in found} | ({"workdir"} if on_run else set())


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_that_takes_a_path_refuses_a_url(program, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in sorted(text_flags(program) - OTHERS):
    url = "folder:gs://b/r" if name in ("ood", "transfer") else "gs://b/r"
    code, out, err = call(program, f"--{name}={url}")
    assert (code, out) == (2, ""), name
    assert err.count("\n") == 1 and f"--{name}=" in err and "a URL (gs:)" in err, err
  assert not list(tmp_path.iterdir())


def test_the_flags_that_programs_share_refuse_a_url(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = (ROOT / "ncl_jax" / "cli.py").read_text()
  names = re.findall(r"flags\.DEFINE(?:_string)?\(\s*(?:[A-Z]+,\s*)?\"(\w+)", text)
  assert "workdir" in names
  for name in set(names) - OTHERS:
    form = "folder:" if name == "data_source" else ""
    code, _, err = call("knn", f"--{name}={form}gs://b/r")
    assert code == 2 and "is a URL" in err, (name, err)


@pytest.mark.parametrize("url", ["gs://b/c.py:ncl", "https://h/c.py"])
def test_a_config_file_at_a_url_is_refused(url):
  code, _, err = call("train", f"--config={url}", "--workdir=W")
  assert code == 2 and "is a URL" in err and err.count("\n") == 1


@pytest.mark.parametrize(
  "setting",
  [
    *(
      f"data.source={f}:gs://b/r"
      for f in ["folder", "arrays", "idx", "pairs", "dsprites"]
    ),
    "data.source=s3://b/r",
    "data.classes_file=gs://b/r",
    "train.init_from=gs://b/r",
    "eval.transfer=arrays:s3://b/r",
    "eval.ood=('folder:gs://b/r',)",
  ],
)
@pytest.mark.parametrize("flags", [[], ["--dry_run"]])
def test_every_setting_that_is_a_path_refuses_a_url(
  setting, flags, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  config = f"--config={ROOT}/configs/digits.py:ncl"
  code, out, err = call(
    "train", config, f"--config.{setting}", f"--workdir={tmp_path}/W", *flags
  )
  assert (code, out) == (2, "") and "is a URL" in err and err.count("\n") == 1
  assert not list(tmp_path.iterdir())


URL = "gs://b/r"


@pytest.mark.parametrize(
  "function",
  [
    lambda: data.load(f"folder:{URL}"),
    lambda: data.load("digits", classes_file=URL),
    lambda: checkpoint.steps(URL),
    lambda: encode.run(None, "x.npy", f"{URL}.safetensors"),
    lambda: encoder.NonNegativeEncoder.load(f"{URL}.safetensors"),
    lambda: explorer.as_frame(URL),
    lambda: interop.read(f"{URL}.npz"),
    lambda: show_views.write(URL, tiny.config(), tiny.source()),
    lambda: sweep.sweep(tiny.config(), URL, "seed=0,1", recipe=None, evaluators=()),
    lambda: loop.train(tiny.config(), URL, tiny.source()),
    lambda: workdir.read_config(URL),
    lambda: config_lib.resolve(_from(URL), tiny.source()),
  ],
)
def test_every_function_that_takes_a_path_refuses_a_url(
  function, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match=r"is a URL \(gs:\)"):
    function()
  assert not list(tmp_path.iterdir())


def _from(place):
  config = tiny.config()
  config.train.init_from = place
  return config
