"""Wrong input of every kind: one message that helps, exit code 2, nothing changed."""

import dataclasses
import fcntl
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np
import pytest
import tiny
from PIL import Image
from programs import ROOT, call

from ncl_jax import cli
from ncl_jax import config as config_lib
from ncl_jax.runtime import checkpoint
from ncl_jax.training import state as state_lib

EMBEDDINGS = ROOT / "configs" / "embeddings.py"
DIGITS = f"--config={ROOT}/configs/digits.py"
FOLDER = f"--config={ROOT}/configs/folder.py"
TINY = f"--config={ROOT}/tests/tiny.py"
# W: a work directory that is not there yet; R: one of a finished run; P: the place.
NEW, OLD = "--workdir=W", "--workdir=R"
OWN = "--config.data.source=folder:P/set"
ARRAYS = "--config.data.source=arrays:P/set.npz"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A work directory as training leaves it, with zeros as weights: nothing compiles."""
  place = tmp_path_factory.mktemp("run")
  config, path = tiny.config(), place / "R"
  path.mkdir()
  config.data.source = f"arrays:{tiny.npz(place / 'tiny.npz')}"
  config = config_lib.resolve(config, tiny.source())
  (path / "config.json").write_text(config_lib.to_json(config))
  shapes = jax.eval_shape(lambda: state_lib.init_variables(config, tiny.source()))
  zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
  with checkpoint.Checkpoints(path) as checkpoints:
    checkpoints.save(12, model=zeros, train={"step": np.int32(12)})
  return place


@dataclasses.dataclass(frozen=True)
class Case:
  """A mistake: what lies there, what is called, and what the answer must say."""

  kind: str
  program: str
  flags: tuple[str, ...]
  says: tuple[str, ...]
  make: Callable = lambda place: None
  code: int = 2


CASES: list[Case] = []


def case(kind, program, flags, says, make=lambda place: None, code=2):
  CASES.append(Case(kind, program, tuple(flags), tuple(says), make, code))


for program, flags, says in [
  ("train", [DIGITS], ["--workdir is missing", "--help"]),
  ("train", [NEW], ["--config is missing", "--help"]),
  ("train", [DIGITS, "--wrkdir=W"], ["wrkdir", "Did you mean", "workdir"]),
  ("knn", [OLD, "--step=three"], ["--step=three", "whole number"]),
  ("knn", [OLD, "surplus"], ["'surplus'", "--NAME=VALUE"]),
  ("knn", [OLD, "--step=3", "--watch"], ["--step", "--watch", "give one of them"]),
  ("compare", [DIGITS, NEW, "--seeds=0"], ["--seeds=0", "positive"]),
  ("compare", [DIGITS, NEW, "--controls=none"], ["none", "default, all, untrained"]),
  ("evaluate", [OLD, "--evaluators=kn"], ["'kn'", "did you mean 'knn'"]),
  ("linear_probe", [OLD, "--protocol=adam"], ["adam", "lbfgs|sgd"]),
  ("linear_probe", [OLD, "--epochs=5"], ["--epochs", "--protocol=sgd"]),
  ("linear_probe", [OLD, "--layers=g"], ["'g'", "h, hidden, z, f"]),
  ("finetune", [OLD, "--label_fraction=2"], ["label_fraction", "2", "at most 1"]),
  ("selection", [OLD, "--keep=x"], ["--keep=x", "whole number"]),
  ("selection", [OLD, "--keep=99"], ["99", "8"]),
  ("export", [OLD], ["nothing to write", "--out=FILE"]),
  ("export", [OLD, "--out=P/x.bin"], ["x.bin", ".safetensors"]),
  ("export", [OLD, "--features=P/f.npz", "--split=dev"], ["'dev'", "train, test"]),
  ("knn", [OLD, "--num_processes=2"], ["--coordinator, --process_id", "missing"]),
  ("show_views", [], ["--config or --workdir", "--help"]),
]:
  case("flags", program, flags, says)

for flag, says in [
  ("loss.temperature=0", ["loss.temperature is 0", "greater than 0"]),
  ("loss.temperature=warm", ["loss.temperature", "warm", "a number"]),
  (
    "loss.temprature=1",
    ["'loss.temprature'", "did you mean --config.loss.temperature"],
  ),
  ("loss.transform=rleu", ["'rleu'", "did you mean 'relu'"]),
  ("model.backbone=resnet8", ["'resnet8'", "resnet18"]),
  ("model.dtype=float16", ["'float16'", "bfloat16"]),
  ("model.width=-2", ["model.width is -2", "greater than 0"]),
  ("optimizer.name=lasr", ["'lasr'", "did you mean 'lars'"]),
  ("optimizer.warmup_epochs=99", ["99", "train.epochs ="]),
  ("train.batch_size=4096", ["4096", "only 1438 images"]),
  ("train.batch_size=16.5", ["16.5", "whole number"]),
  ("train.batch_size=1", ["train.batch_size is 1", "other images"]),
  ("train.batch_size=100", ["100", "8 devices", "96 or 104"]),
  ("train.epochs=-1", ["train.epochs is -1", "negative"]),
  ("train.grad_cache_chunks=3", ["128", "3 chunks"]),
  ("augment.crop_scale=(0.5, 0.1)", ["crop_scale", "(0.5, 0.1)"]),
  ("augment.flip=2", ["flip", "2"]),
  ("data.source=digts", ["'digts'", "did you mean digits"]),
  ("data.train_examples=5000", ["5000", "1438"]),
  ("data.on_bad_image=ignore", ["'ignore'", "stop, skip"]),
  ("seed=-1", ["seed is -1", "negative"]),
  ("seed=9223372036854775808", ["seed is 9223372036854775808", "less than 2^63"]),
]:
  case("config values", "train", [DIGITS, NEW, f"--config.{flag}"], says)


def config_file(text):
  def make(place):
    (place / "c.py").write_text(text)

  return make


HEAD = "from ncl_jax import config as config_lib\n"
for text, says in [
  ("def get_config(:\n", ["c.py", "line 1", "syntax"]),
  ("x = 1\n", ["c.py", "get_config"]),
  ("def get_config():\n  return 3\n", ["c.py", "3", "ConfigDict"]),
  (HEAD + "def get_config():\n  return config_lib.defalts()\n", ["c.py", "defalts"]),
  ("import no_such_module\n", ["c.py", "no_such_module"]),
  (
    HEAD + "def get_config():\n  c = config_lib.defaults()\n  c.loss.temp = 1\n",
    ["c.py", "temp"],
  ),
  (
    HEAD + "def get_config():\n  c = config_lib.defaults()\n  c.seed = 'x'\n",
    ["c.py", "seed"],
  ),
  ("raise ValueError('my own mistake')\n", ["c.py", "my own mistake"]),
]:
  case("config files", "train", ["--config=P/c.py", NEW], says, config_file(text))
for flag, says, make in [
  (f"--config={EMBEDDINGS}", ["embeddings.py", "first lines"], lambda p: None),
  (f"--config={EMBEDDINGS}:ncl", ["embeddings.py", "colon"], lambda p: None),
  ("--config=P/c.py", ["P/c.py", "there is none"], lambda place: None),
  ("--config=P/c.py", ["P/c.py", "there is none"], lambda p: (p / "c.py").mkdir()),
  (f"{DIGITS}:nlc", ["'nlc'", "did you mean 'ncl'"], lambda place: None),
  (f"{DIGITS}:ncl,rleu", ["'rleu'", "did you mean 'relu'"], lambda place: None),
  (
    "--config=P/c.py:ncl",
    ["c.py", "get_config", "argument"],
    config_file(HEAD + "def get_config():\n  return config_lib.defaults()\n"),
  ),
]:
  case("config files", "train", [flag, NEW], says, make)


def pictures(root, names=("a/0.png", "a/1.png", "b/0.png", "b/1.png")):
  for i, name in enumerate(names):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (i, 9 * i, 200)).save(path)


def image_file(name, content):
  def make(place):
    pictures(place / "set")
    path = place / "set" / "a" / name
    if isinstance(content, bytes):
      path.write_bytes(content)
    else:
      content(path)

  return make


def cut(size, to):
  def make(path):
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:to])

  return make


for name, content in [
  ("cut.jpg", cut((64, 64), 700)),
  ("cut.png", cut((64, 64), 700)),
  ("head.gif", b"GIF89a\x08\x00"),
  ("empty.jpg", b""),
  ("text.jpg", b"no picture"),
  ("page.webp", b"<html>404</html>"),
  ("noise.png", np.random.default_rng(1).bytes(500)),
  ("gone.jpg", lambda path: path.symlink_to("nowhere.jpg")),
  ("float.tif", lambda path: Image.new("F", (8, 8), -0.5).save(path)),
]:
  case(
    "image files",
    "train",
    [FOLDER, OWN, NEW],
    [f"P/set/a/{name}", "data.on_bad_image=skip"],
    image_file(name, content),
  )


def folder(*names):
  return lambda place: pictures(place / "set", names)


for says, make in [
  (["no folder P/set"], lambda place: None),
  (["folder:P/set is a file"], lambda place: (place / "set").write_text("x")),
  (["no images in P/set", "PATH/CLASS"], lambda place: (place / "set").mkdir()),
  (
    ["no images in P/set", ".jpg"],
    lambda place: (place / "set/a/b").mkdir(parents=True),
  ),
  (["no images in P/set", "PATH/CLASS"], folder(".hidden/0.png", ".x/1.png")),
  (["P/set", "val", "none of train"], folder("val/a/0.png", "val/b/0.png")),
  (["1 image", "at least 2"], folder("0.png")),
  (["8", "only 3 images"], folder("0.png", "1.png", "2.png", "3.png")),
]:
  case("folders", "train", [FOLDER, OWN, NEW], says, make)
case("folders", "train", [FOLDER, NEW], ["'folder:'", "folder:PATH"])
case(
  "folders",
  "train",
  [FOLDER, "--config.data.source=P/set", NEW],
  ["did you mean folder:P/set"],
  folder("a/0.png"),
)
case(
  "folders",
  "train",
  [FOLDER, OWN, "--config.data.on_bad_image=skip", NEW],
  ["no images in P/set"],
  lambda place: ((place / "set").mkdir(), (place / "set/0.png").write_text("x")),
)
case(
  "folders",
  "show_views",
  [FOLDER, OWN, "--out=P/views.png"],
  ["no folder P/set"],
)


def npz(**arrays):
  return lambda place: np.savez(place / "set.npz", **arrays)


PIXELS, LABELS = tiny.images(0, 24)
for says, make in [
  (["no file P/set.npz"], lambda place: None),
  (["set.npz", "numpy.savez"], lambda place: (place / "set.npz").write_text("x")),
  (["pictures", "train_images"], npz(pictures=PIXELS)),
  (["train_image", "meant as train_images"], npz(train_image=PIXELS)),
  (["has no labels but label"], npz(images=PIXELS, label=LABELS)),
  (["(24, 64)", "[N, H, W]"], npz(images=PIXELS.reshape(24, 64))),
  (["channels to the end"], npz(images=np.zeros((9, 3, 8, 8), np.uint8))),
  (["NaN", "0..1"], npz(images=np.full((9, 8, 8), np.nan))),
  (["255.0", "divide them by 255"], npz(images=np.full((9, 8, 8), 255.0))),
  (["complex128", "0..65535"], npz(images=PIXELS * 1j)),
  (["Python objects", "never"], npz(images=np.array([None, 1]))),
  (
    ["Python objects", "numpy.array(names"],
    npz(images=PIXELS, labels=LABELS.astype("O")),
  ),
  (["float64", "whole numbers"], npz(images=PIXELS, labels=LABELS + 0.5)),
  (["24 images but 23 labels"], npz(images=PIXELS, labels=LABELS[1:])),
  (["-1 and 1 alone", "0 and 1"], npz(images=PIXELS, labels=LABELS % 2 * 2 - 1)),
  (["one-hot", "argmax"], npz(images=PIXELS, labels=np.eye(9)[LABELS % 9])),
  (["-2", "or -1"], npz(images=PIXELS, labels=LABELS - 2)),
  (["1000001", "0 to K-1"], npz(images=PIXELS, labels=LABELS + 10**6)),
  (
    ["image size"],
    npz(x_train=PIXELS, x_test=PIXELS[:, :4]),
  ),
]:
  case("arrays", "train", [TINY, ARRAYS, NEW], says, make)


def in_run(change):
  return lambda place: change(place / "R")


def width(place):
  file = place / "R" / "config.json"
  file.write_text(file.read_text().replace('"width": 2', '"width": 3'))


def damage(run):
  for path in (run / "checkpoints" / "12" / "model").rglob("*"):
    if path.is_file():
      path.write_bytes(path.read_bytes()[:3])


IMPORT = [TINY, "--config.data.source=arrays:P/tiny.npz", NEW]
for program, flags, says, make in [
  ("knn", [OLD, "--step=99"], ["step 99", "P/R/checkpoints", "12"], lambda p: None),
  (
    "knn",
    [OLD],
    ["P/R/checkpoints", "train there first"],
    in_run(lambda r: shutil.rmtree(r / "checkpoints")),
  ),
  (
    "knn",
    [OLD],
    ["no checkpoint", "none"],
    in_run(lambda r: shutil.rmtree(r / "checkpoints" / "12")),
  ),
  ("knn", [OLD], ["step 12", "damaged", "remove P/R/checkpoints/12"], in_run(damage)),
  (
    "feature_stats",
    [OLD],
    ["does not fit", "float32[2] there, float32[3] here"],
    width,
  ),
  (
    "export",
    [OLD, "--out=P/x.safetensors"],
    ["no checkpoint", "none"],
    in_run(lambda r: shutil.rmtree(r / "checkpoints" / "12" / "model")),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.ckpt"],
    ["P/x.ckpt", "no such file"],
    lambda p: None,
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.npz"],
    ["P/x.npz"],
    lambda p: (p / "x.npz").write_bytes(b""),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.safetensors"],
    ["P/x.safetensors"],
    lambda p: (p / "x.safetensors").write_text("no tensors"),
  ),
  (
    "import_torch",
    [*IMPORT, "--file=P/x.npz"],
    ["P/x.npz", "weight"],
    lambda p: np.savez(p / "x.npz", weight=np.zeros((2, 2))),
  ),
  (
    "train",
    [*IMPORT, "--config.train.init_from=P/nowhere"],
    ["P/nowhere", "no config.json"],
    lambda p: None,
  ),
]:
  case("checkpoints", program, flags, says, make)


def foreign(place):
  (place / "W").mkdir()
  (place / "W" / "thesis.tex").write_text("mine")


def config_json(text):
  return in_run(lambda run: (run / "config.json").write_text(text))


AGAIN = [TINY, "--config.data.source=arrays:P/tiny.npz", OLD]
for program, flags, says, make in [
  ("train", [DIGITS, NEW], ["P/W", "neither empty nor a work directory"], foreign),
  (
    "train",
    [DIGITS, NEW],
    ["P/W", "neither empty nor a work directory"],
    lambda p: (p / "W").write_text("a file"),
  ),
  (
    "train",
    [*AGAIN, "--config.loss.temperature=0.5"],
    ["loss.temperature: 0.2 there, 0.5 here", "another --workdir"],
    lambda p: None,
  ),
  ("train", AGAIN, ["config.json", "not JSON"], config_json("{")),
  (
    "train",
    AGAIN,
    ["unknown config field 'loss.temp'"],
    config_json('{"loss": {"temp": 1}}'),
  ),
  (
    "train",
    AGAIN,
    ["loss.temperature", "float"],
    config_json('{"loss": {"temperature": "warm"}}'),
  ),
  ("knn", [NEW], ["P/W", "no config.json", "train there first"], lambda p: None),
  ("knn", [NEW], ["P/W", "no config.json", "train there first"], foreign),
  ("knn", [OLD], ["config.json", "not JSON"], config_json("")),
  (
    "knn",
    [OLD],
    ["no file P/tiny.npz"],
    lambda p: (p / "tiny.npz").unlink(),
  ),
  ("axes", [OLD], ["--other is missing", "--help"], lambda p: None),
  ("axes", [OLD, "--other=P/W"], ["P/W", "no config.json"], lambda p: None),
  ("explore", [OLD, "--versus=P/W"], ["P/W", "no config.json"], lambda p: None),
  ("show_views", ["--workdir=P/W"], ["P/W", "no config.json"], lambda p: None),
]:
  case("work directories", program, flags, says, make)


def contents(place):
  """Every file and folder, with a digest."""
  found = {}
  for path in sorted(place.rglob("*")):
    if "__pycache__" in path.parts:
      continue  # Python's own, beside a config file
    data = path.read_bytes() if path.is_file() else b"link or folder"
    found[str(path.relative_to(place))] = hashlib.sha256(data).hexdigest()
  return found


def label(case):
  last = case.flags[-1].rpartition("/")[2] if case.flags else ""
  return f"{case.kind}: {case.program} {last}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_the_answer_helps_and_nothing_changes(case, run, tmp_path, monkeypatch):
  # What a program sets for itself would stay for the tests that follow.
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  place = tmp_path / "p"
  shutil.copytree(run, place)
  config = place / "R" / "config.json"
  config.write_text(config.read_text().replace(str(run), str(place)))
  case.make(place)
  before = contents(place)

  def filled(text):
    for letter, path in (("W", place / "W"), ("R", place / "R"), ("P", place)):
      text = text.replace(f"={letter}", f"={path}") if text[:1] == "-" else text
      text = text.replace(":P/", f":{place}/").replace("P/", f"{place}/")
    return text

  monkeypatch.chdir(ROOT)
  code, _, err = call(case.program, *map(filled, case.flags))
  assert code == case.code, err
  for text in case.says:
    assert filled(text).lower() in err.lower(), err
  assert "Traceback" not in err
  assert err.count("error:") == 1, err
  assert len(err.splitlines()) <= 20 and len(err) <= 1600, err
  assert contents(place) == before


@pytest.mark.parametrize(
  ("program", "given"),
  [("train", ()), ("compare", ("--seeds=1",)), ("sweep", ("--grid=seed=0",))],
)
def test_a_directory_in_use_is_left_alone(run, tmp_path, monkeypatch, program, given):
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  place = tmp_path / "p"
  shutil.copytree(run, place)
  config = place / "R" / "config.json"
  config.write_text(config.read_text().replace(str(run), str(place)))
  with (place / "R" / ".lock").open("w") as lock:
    lock.write("process 7 on a host")
    lock.flush()
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = contents(place)
    flags = [f"--config.data.source=arrays:{place}/tiny.npz", f"--workdir={place}/R"]
    code, _, err = call(program, TINY, *flags, *given)
  use = {"train": "training", "compare": "comparing", "sweep": "sweeping"}[program]
  assert code == 2 and f"process 7 on a host is {use} there" in err
  assert contents(place) == before


def test_there_are_enough_of_each_kind():
  counts = Counter(case.kind for case in CASES)
  assert len(counts) == 8 and min(counts.values()) >= 6
  distinct = {(c.program, c.flags, c.says) for c in CASES}
  assert len(distinct) >= 60
