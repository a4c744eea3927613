"""An accelerator that does not start, and what one changes in silence."""

import os
import pathlib
import subprocess
import sys

import pytest

from ncl_jax.runtime import accelerator

ROOT = pathlib.Path(__file__).parents[2]


def test_a_program_does_not_fall_back_to_the_cpu(tmp_path):
  flags = ["--config=configs/digits.py:ncl", f"--workdir={tmp_path / 'run'}"]
  done = subprocess.run(
    [sys.executable, "-m", "launch.train", *flags],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "nosuch,cpu"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1 and "requests nosuch" in done.stderr, done.stderr
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("platform", "dtype", "flags", "words"),
  [
    ("cpu", "float32", "", []),
    ("tpu", "bfloat16", "", []),
    ("tpu", "float32", "", ["bfloat16"]),
    ("gpu", "float32", "", ["TF32", "deterministic"]),
    ("gpu", "bfloat16", "--xla_gpu_deterministic_ops=true", []),
  ],
)
def test_differences_are_said_where_they_apply(
  monkeypatch, platform, dtype, flags, words
):
  monkeypatch.setenv("XLA_FLAGS", flags)
  found = accelerator.differences(dtype, platform)
  assert len(found) == len(words)
  assert all(word in sentence for word, sentence in zip(words, found, strict=True))
