"""The metrics file and the progress lines."""

import json
import logging as python_logging

import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax.runtime import jsonl


def test_rows_are_strict_json(tmp_path):
  file = tmp_path / "metrics.jsonl"
  row = {
    "step": 1,
    "loss": jnp.float32(0.5),
    "bad": float("nan"),
    "worse": np.float32("inf"),
    "list": (np.arange(2), "x"),
  }
  jsonl.append(file, row)
  text = file.read_text()
  assert text.endswith("\n") and "NaN" not in text
  assert json.loads(text) == {
    "step": 1,
    "loss": 0.5,
    "bad": None,
    "worse": None,
    "list": [[0, 1], "x"],
  }


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
  file = tmp_path / "metrics.jsonl"
  for step in (1, 2):
    jsonl.append(file, {"step": step})
  with file.open("a") as handle:
    handle.write('{"step": 3, "lo')
  assert [row["step"] for row in jsonl.read(file)] == [1, 2]
  jsonl.truncate(file, 2)
  jsonl.append(file, {"step": 3})
  assert [row["step"] for row in jsonl.read(file)] == [1, 2, 3]


def test_a_line_cut_off_anywhere_costs_itself_alone(tmp_path, caplog):
  """As a full disk leaves it: the program goes on writing to the file."""
  whole = '{"step": 2, "loss": 0.5}\n'
  for cut in range(1, len(whole) - 1):
    caplog.clear()
    file = tmp_path / f"{cut}.jsonl"
    jsonl.append(file, {"step": 1})
    with file.open("a") as handle:
      handle.write(whole[:cut])
    assert [row["step"] for row in jsonl.read(file)] == [1] + [2] * (cut > 23)
    assert not caplog.text  # it may be being written
    for step in (3, 4):
      jsonl.append(file, {"step": step})
    kept = [1, 3, 4] if cut < 24 else [1, 2, 3, 4]
    assert [row["step"] for row in jsonl.read(file)] == kept
    assert (f"{file}: lines without a row left out: 1;" in caplog.text) == (cut < 24)
    said = caplog.text
    jsonl.read(file)
    assert caplog.text == said  # once


@pytest.mark.parametrize("bad", [b"\0\0\0", b"\xff\xfe", b"7", b"[1]", b'{"a": 1}}'])
def test_bytes_that_are_no_row_hide_no_other(tmp_path, bad, caplog):
  file = tmp_path / "knn.jsonl"
  file.write_bytes(b'{"step": 1}\n' + bad + b'\n\n{"step": 2}\n' + bad + b"\n")
  assert [row["step"] for row in jsonl.read(file)] == [1, 2]
  assert "left out: 2;" in caplog.text


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
  def full(descriptor):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(jsonl.os, "fsync", full)
  for write in (jsonl.append, lambda file, row: jsonl.write(file, [row])):
    with pytest.raises(OSError, match=r"No space left on device: '.*/knn.jsonl'"):
      write(tmp_path / "knn.jsonl", {"step": 1})


@pytest.mark.parametrize(("step", "kept"), [(0, []), (2, [1, 2]), (9, [1, 2, 3])])
def test_truncate(tmp_path, step, kept):
  file = tmp_path / "metrics.jsonl"
  jsonl.truncate(file, step)  # nothing there yet
  assert jsonl.read(file) == []
  for i in (1, 2, 3):
    jsonl.append(file, {"step": i})
  jsonl.truncate(file, step)
  assert [row["step"] for row in jsonl.read(file)] == kept


def test_plain_progress_says_rate_and_time_left(caplog):
  with caplog.at_level(python_logging.INFO, logger="absl"):
    progress = jsonl.Progress(4, 0, 10, seconds_between_lines=0)
    for step in (1, 2, 3, 4):
      progress.update(step, f"loss {step}")
    progress.close()
  lines = [record.getMessage() for record in caplog.records]
  assert len(lines) == 4
  assert lines[1].startswith("step 2 of 4")
  assert "images/s" in lines[1] and "loss 2" in lines[1] and lines[1].endswith("left")
