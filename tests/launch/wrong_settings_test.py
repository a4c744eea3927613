"""Wrong flags, settings and config files: one message that helps, nothing changed."""

import pytest
from programs import ROOT
from wrong_inputs import DIGITS, NEW, OLD, Case, check

EMBEDDINGS = ROOT / "configs" / "embeddings.py"
CASES: list[Case] = []


def add(program, flags, says, make=lambda place: None):
  CASES.append(Case(program, flags, says, make))


for program, flags, says in [
  ("train", [DIGITS], ["--workdir is missing", "--help"]),
  ("train", [NEW], ["--config is missing", "--help"]),
  ("train", [DIGITS, "--wrkdir=W"], ["wrkdir", "Did you mean", "workdir"]),
  ("knn", [OLD, "--step=three"], ["--step=three", "whole number"]),
  ("knn", [OLD, "surplus"], ["'surplus'", "--NAME=VALUE"]),
  ("knn", [OLD, "--step=3", "--watch"], ["--step", "--watch", "give one of them"]),
  ("compare", [DIGITS, NEW, "--seeds=0"], ["--seeds=0", "positive"]),
  ("compare", [DIGITS, NEW, "--controls=none"], ["none", "default, all, untrained"]),
  ("compare", [f"{DIGITS}:cl", NEW], ["compare needs an NCL config"]),
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
  add(program, flags, says)

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
  add("train", [DIGITS, NEW, f"--config.{flag}"], says)


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
  add("train", ["--config=P/c.py", NEW], says, config_file(text))
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
  add("train", [flag, NEW], says, make)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_helps_and_nothing_changes(case, run, tmp_path, monkeypatch):
  check(case, run, tmp_path, monkeypatch)
