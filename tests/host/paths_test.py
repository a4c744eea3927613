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
from ncl_jax.host import bucket, paths
from ncl_jax.report import explorer
from ncl_jax.runtime import checkpoint, profiler
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


BUCKETS = ["gs://bucket", "gs://bucket/run", "gs://a.b-c_1/Läufe/run 1/v2..1=x/"]
NO_BUCKETS = [
  *("gs://", "gs://b/r", "gs:/bucket/run", "GS://bucket/run", "gs://Bucket/run"),
  *("gs://bucket//run", "gs://bucket/../run", "gs://bucket/.", "gs://bucket/a/.."),
  *("gs://bucket/run?", "gs://bucket/run#1", "gs://bucket/*", "gs://bucket/[ab]"),
  *("gs://bucket\\run", " gs://bucket/run"),
]


@pytest.fixture
def with_gcsfs(monkeypatch):
  """As if it were installed, every bucket there, and TensorFlow not."""
  monkeypatch.setattr(paths.importlib.util, "find_spec", lambda name: name)
  monkeypatch.setattr(bucket, "require", lambda name: None)
  monkeypatch.setenv("EPATH_USE_TF", "0")


@pytest.mark.parametrize("url", BUCKETS)
def test_a_bucket_is_a_place_for_a_work_directory(url, with_gcsfs):
  path = paths.absolute(url)
  assert str(path) == url.rstrip("/") and paths.in_bucket(path)
  assert str(path / "a" / "b") == f"{path}/a/b" and (path / "a").parent == path
  assert paths.absolute(path) == path
  paths.make(path)  # asks nobody


@pytest.mark.parametrize("url", NO_BUCKETS)
def test_what_looks_like_a_bucket_is_refused(url, with_gcsfs):
  with pytest.raises(InputError, match="is not the path of a bucket; allowed: gs://BU"):
    paths.absolute(url)


def test_profiles_are_local(with_gcsfs):
  folder = paths.absolute("gs://bucket/run/profile")
  profiler.Profile("", folder)
  with pytest.raises(InputError, match="--profile=1:2: .* local folders only"):
    profiler.Profile("1:2", folder)


def test_a_bucket_without_its_packages_names_them(monkeypatch):
  monkeypatch.setattr(paths.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(InputError, match=r"'gs://bucket/run': .*'ncl_jax\[gcs\]'"):
    paths.absolute("gs://bucket/run")


@pytest.mark.parametrize("url", [url for url in URLS if url[:2].lower() != "gs"])
def test_other_urls_are_no_work_directories(url):
  with pytest.raises(InputError, match="is a URL"):
    paths.absolute(url)


def test_local_work_directories_are_absolute(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "link").symlink_to("run")
  assert paths.absolute("link/../a") == tmp_path / "a"
  assert paths.absolute("./gs:/b") == tmp_path / "gs:" / "b"
  assert not paths.in_bucket(tmp_path / "gs:" / "b")
  paths.make(paths.absolute("a/b"))
  assert (tmp_path / "a" / "b").is_dir()


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


# Data must be local. A bucket's name has three letters.
REFUSED = re.compile(r"is a URL \((gs|s3):\)|'gs://b/r' is not the path of a bucket")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("url", ["gs://b/r", "s3://b/r"])
def test_every_flag_that_takes_a_path_refuses_a_url(
  program, url, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for name in sorted(text_flags(program) - OTHERS):
    given = f"folder:{url}" if name in ("ood", "transfer") else url
    code, out, err = call(program, f"--{name}={given}")
    assert (code, out) == (2, ""), name
    assert err.count("\n") == 1 and f"--{name}=" in err and REFUSED.search(err), err
  assert not list(tmp_path.iterdir())


def test_the_flags_that_programs_share_refuse_a_url(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = (ROOT / "ncl_jax" / "cli" / "__init__.py").read_text()
  names = re.findall(r"flags\.DEFINE(?:_string)?\(\s*(?:[A-Z]+,\s*)?\"(\w+)", text)
  assert "workdir" in names
  for name in set(names) - OTHERS:
    form = "folder:" if name == "data_source" else ""
    code, _, err = call("knn", f"--{name}={form}gs://b/r")
    assert code == 2 and REFUSED.search(err), (name, err)


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
  assert (code, out) == (2, "") and REFUSED.search(err) and err.count("\n") == 1
  assert not list(tmp_path.iterdir())


URL = "gs://b/r"
NOTHING = encode.Output("", 0, False)


@pytest.mark.parametrize(
  "function",
  [
    lambda: data.load(f"folder:{URL}"),
    lambda: data.load("digits", classes_file=URL),
    lambda: checkpoint.steps(URL),
    lambda: encode.run(None, "x.npy", f"{URL}.safetensors", NOTHING),
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
  with pytest.raises(InputError, match=REFUSED):
    function()
  assert not list(tmp_path.iterdir())


def _from(place):
  config = tiny.config()
  config.train.init_from = place
  return config
