"""Strict JSON everywhere: no NaN, no Infinity; an undefined number is null."""

import ast
import json
import math
import pathlib
import subprocess

import numpy as np
import pytest

from ncl_jax.runtime import jsonl
from studies.latent import run as study

ROOT = pathlib.Path(__file__).parents[2]


def calls(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Call) and ast.unparse(node.func) in (
      "json.dump",
      "json.dumps",
    ):
      yield node


@pytest.mark.parametrize("folder", ["ncl_jax", "launch"])
def test_no_call_may_write_a_token_that_json_lacks(folder):
  found = [
    (path, node) for path in (ROOT / folder).rglob("*.py") for node in calls(path)
  ]
  assert found or folder == "launch"
  for path, node in found:
    strict = {k.arg: ast.unparse(k.value) for k in node.keywords}.get("allow_nan")
    assert strict == "False", f"{path}:{node.lineno}"


def refuse(token):
  raise ValueError(token)


def test_no_file_of_the_repository_has_one():
  listed = subprocess.run(
    ["git", "ls-files", "*.json", "*.jsonl"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  for name in listed.stdout.split():
    text = (ROOT / name).read_text()
    for part in text.splitlines() if name.endswith("l") else [text]:
      json.loads(part, parse_constant=refuse)


def test_undefined_numbers_are_null_and_are_read_as_such(tmp_path):
  row = {
    "step": 1,
    "a": math.nan,
    "b": [1.0, -math.inf],
    "c": {"d": np.float32("nan"), "e": np.array([np.inf, 2.0])},
  }
  expected = {
    "step": 1,
    "a": None,
    "b": [1.0, None],
    "c": {"d": None, "e": [None, 2.0]},
  }
  file = tmp_path / "rows.jsonl"
  jsonl.append(file, row)
  jsonl.write(tmp_path / "again.jsonl", [row])
  for path in (file, tmp_path / "again.jsonl"):
    assert json.loads(path.read_text(), parse_constant=refuse) == expected
  # A file from elsewhere is read whatever it holds, and what is written anew is strict.
  file.write_text('{"step": 1, "a": NaN}\n{"step": 2, "a": -Infinity}\n')
  assert [row["step"] for row in jsonl.read(file)] == [1, 2]
  jsonl.truncate(file, 1)
  assert json.loads(file.read_text(), parse_constant=refuse) == {"step": 1, "a": None}


def test_a_study_with_an_undefined_figure(tmp_path):
  study.write(tmp_path, [{"correlation": [math.nan]}], [], "text")
  found = json.loads(
    (tmp_path / "identifiability.json").read_text(), parse_constant=refuse
  )
  assert found["rows"] == [{"correlation": [None]}]
