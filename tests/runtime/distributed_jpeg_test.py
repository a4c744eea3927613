"""Several processes on a folder of photographs, each decoding only its part."""

import json
import signal

import numpy as np
import pytest
import tiny
from processes import finish, start, wait_for_step

from benchmarks import kills
from ncl_jax.runtime import jsonl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny.photographs(tmp_path_factory.mktemp("photographs"))


def training(folder, workdir, *flags):
  return (
    "lazily",
    "launch.train",
    "--config=tests/tiny.py:ncl",
    f"--config.data.source=folder:{folder}",
    "--config.data.image_size=16",
    "--config.augment.size=8",
    f"--workdir={workdir}",
    *flags,
  )


def test_two_and_four_processes_give_the_numbers_of_one(tmp_path, folder):
  results = []
  for processes in (1, 2, 4):
    command = ("lazily", "steps", str(folder))
    ended = finish(start(tmp_path, *[command] * processes))
    assert all(code == 0 for code, _, _ in ended), ended
    shown = [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
    assert all(each["values"] == shown[0]["values"] for each in shown)
    results.append((shown[0]["values"], [each["read"] for each in shown]))
  (one, (whole,)), *several = results
  assert len({row[1] for row in one}) == 10, "nothing changed: nothing was compared"
  for values, parts in several:
    np.testing.assert_allclose(values, one, rtol=1e-10)
    for batch, *shares in zip(whole, *parts, strict=True):
      assert {len(share) for share in shares} == {16 // len(parts)}
      assert batch == sum(shares, [])


def test_killed_and_started_again_they_end_in_the_same_state(tmp_path, folder):
  flags = ("--config.train.epochs=150", "--config.data.on_bad_image=skip")
  flags += ("--config.train.log_every_steps=1",)
  peace, killed = tmp_path / "peace", tmp_path / "killed"
  ended = finish(start(tmp_path, *[training(folder, peace, *flags)] * 2))
  assert [code for code, _, _ in ended] == [0, 0], ended

  running = start(tmp_path, *[training(folder, killed, *flags)] * 2)
  wait_for_step(running, killed / "metrics.jsonl", 21)
  for process in running:
    process.send_signal(signal.SIGKILL)
  finish(running)
  reached = jsonl.read(killed / "metrics.jsonl")[-1]["step"]
  assert 21 <= reached < 300
  ended = finish(start(tmp_path, *[training(folder, killed, *flags)] * 2))
  assert [code for code, _, _ in ended] == [0, 0], ended
  assert any("resuming at step" in err for _, _, err in ended)
  assert kills.differences(peace, killed) == []


def test_a_damaged_photograph_ends_all_of_them_by_its_name(tmp_path, folder):
  command = training(folder, tmp_path / "run", "--config.train.epochs=100")
  ended = finish(start(tmp_path, command, command), timeout=120)
  assert all(code not in (0, None) for code, _, _ in ended), ended
  assert any(code == 2 and "99.JPEG" in err for code, _, err in ended), ended
