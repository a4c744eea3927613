"""The programs as a user calls them: exit codes, messages, nothing half-done."""

import json
import logging as python_logging
import os
import pathlib
import subprocess
import sys

import jax
import programs
import pytest
import tiny
from absl import logging
from PIL import Image

from ncl_jax import cli
from ncl_jax.errors import InputError, SaveError, Stopped

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = sorted(path.stem for path in (ROOT / "launch").glob("*.py"))


def run(program, *flags):
  environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
  return subprocess.run(
    [sys.executable, "-m", f"launch.{program}", *map(str, flags)],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=300,
  )


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_explains_itself(program):
  """What it does, an example, every flag explained, no wider than a terminal."""
  code, out, err = programs.call(program, "--help")
  assert (code, err) == (0, "")
  lines = out.splitlines()
  assert lines[0].endswith((".", "?"))
  assert f"  ncl {program}" in out
  # Neither makes or reads a run.
  assert program in ("encode", "input_rate", "plan") or "--workdir" in out
  assert max(map(len, lines)) <= 100 and "Exit codes:" in out
  entries = [line.split()[0] for line in lines if line.startswith("  --")]
  assert len(entries) == len(set(entries)) >= 6


def test_no_cluster(tmp_path):
  # In a process of its own: JAX looks for a cluster before it starts, or not at all.
  done = run("knn", f"--workdir={tmp_path / 'work'}", "--distributed")
  assert done.returncode == 2 and done.stderr.count("error:") == 1
  assert "--distributed found no cluster here" in done.stderr


def test_a_process_of_its_own_says_the_same():
  for flags in (["--help"], []):
    done = run("knn", *flags)
    expected = programs.call("knn", *flags)
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_messages_of_others_never_ask_jax_which_process_this_is(monkeypatch):
  """JAX logs while it connects to the others, when asking would start its backends."""
  handler = logging.get_absl_handler()
  before = list(handler.filters)
  cli._set_up_log()
  (shown,) = [found for found in handler.filters if found not in before]
  handler.removeFilter(shown)

  asked = []

  def passes(level, file, index=None):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_index", lambda: asked.append(0) or index)
    return shown(python_logging.LogRecord("x", level, file, 1, "text", (), None))

  others, ours = "/lib/jax/_src/distributed.py", cli.__file__
  assert not passes(python_logging.INFO, others)
  assert passes(python_logging.WARNING, others)
  assert not asked
  assert passes(python_logging.INFO, ours, index=0)
  assert not passes(python_logging.INFO, ours, index=1)


@pytest.mark.parametrize(
  ("error", "code", "says"),
  [
    (InputError("wrong"), 2, "error: wrong"),
    (FloatingPointError("step 3"), 3, "error: step 3"),
    (SaveError("step 6"), 1, "error: step 6"),
    (OSError(28, "No space left", "W/a.jsonl"), 1, "error: W/a.jsonl: No space left\n"),
    (OSError(28, "No space left on device"), 1, f"main in {__file__}, line"),
    (Stopped("saved", 143), 143, "saved"),
    (KeyboardInterrupt(), 130, "run the same command again"),
  ],
)
def test_how_a_program_ends(monkeypatch, capsys, error, code, says):
  def main():
    raise error

  monkeypatch.setattr("sys.argv", ["program"])
  # What a program sets for itself would stay for the tests that follow.
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  with pytest.raises(SystemExit) as end:
    cli.run(main)
  assert end.value.code == code
  printed = capsys.readouterr().err
  assert says in printed and "Traceback" not in printed


SMALL = (
  "--config.model.backbone=resnet10",
  "--config.model.width=2",
  "--config.model.projector_hidden=8",
  "--config.model.projector_out=8",
  "--config.model.dtype=float32",
  "--config.train.epochs=2",
  "--config.optimizer.warmup_epochs=1",
  "--config.train.log_every_steps=1",
)


@pytest.mark.slow
def test_class_folder_from_training_to_results(tmp_path):
  images, labels = tiny.images(0, 40, channels=3)
  for i, (image, label) in enumerate(zip(images, labels, strict=True)):
    folder = tmp_path / "photo graphs" / f"class {label}"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / f"{i}.png")
  work = tmp_path / "run ü"
  source = f"--config.data.source=folder:{tmp_path / 'photo graphs'}"
  flags = ("--config=configs/folder.py:ncl", source, f"--workdir={work}", *SMALL)
  done = run("train", *flags)
  assert done.returncode == 0, done.stderr
  assert "32 training images 8x8x3, 2 classes" in done.stderr
  config = json.loads((work / "config.json").read_text())
  assert config["augment"]["size"] == 8 and config["train"]["batch_size"] == 8
  assert len((work / "metrics.jsonl").read_text().splitlines()) == 8
  done = run("knn", f"--workdir={work}", "--step=8")
  assert done.returncode == 0, done.stderr
  row = json.loads((work / "eval" / "knn.jsonl").read_text())
  assert row["step"] == 8 and row["settings"]["k"] == 20
  assert 0 <= row["h"]["accuracy"] <= 1
  # The same directory with another temperature: refused.
  done = run("train", *flags, "--config.loss.temperature=0.5")
  assert done.returncode == 2 and "loss.temperature: 0.2 there" in done.stderr


@pytest.mark.slow
def test_flat_folder_without_labels(tmp_path):
  images, _ = tiny.images(0, 20, channels=3)
  folder = tmp_path / "flat"
  folder.mkdir()
  for i, image in enumerate(images):
    Image.fromarray(image).save(folder / f"{i}.png")
  work = tmp_path / "run"
  source = f"--config.data.source=folder:{folder}"
  flags = ("--config=configs/folder.py:ncl", source, f"--workdir={work}", *SMALL)
  done = run("train", *flags)
  assert done.returncode == 0, done.stderr
  assert "no labels" in done.stderr
  done = run("feature_stats", f"--workdir={work}")
  assert done.returncode == 0, done.stderr
  row = json.loads((work / "eval" / "feature_stats.jsonl").read_text())
  assert "sparsity" in row["f"] and "purity" not in row["f"]
  done = run("knn", f"--workdir={work}")
  assert done.returncode == 2 and "has no labels" in done.stderr
