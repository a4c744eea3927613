"""A result is measured once, whatever is killed in between."""

import math
import subprocess
import sys

from ncl_jax.experiments import result_cache


def test_opened_before_the_devices_are_chosen(tmp_path):
  """A sweep opens it first; jax, started then, would have one device for ever."""
  (tmp_path / "measured.jsonl").write_text('{"of": {"a": 1}, "result": {}}\n{"of"')
  code = (
    "import pathlib, sys; from ncl_jax.experiments import result_cache as ledger; "
    "from ncl_jax.runtime import sharding\n"
    "known = ledger.ResultCache(pathlib.Path(sys.argv[1]))\n"
    "assert known.get({'a': 1}, None) == {}\n"
    "print(sharding.set_cpu_devices(6, 3))"
  )
  command = [sys.executable, "-c", code, str(tmp_path / "measured.jsonl")]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.stdout == "3\n", done.stderr


def test_measured_once_also_by_the_next_process(tmp_path):
  calls = []

  def measure():
    calls.append(1)
    return {"f": {"a": 0.5, "b": math.nan}}

  path = tmp_path / "measured.jsonl"
  first = result_cache.ResultCache(path)
  found = [first.get({"method": "cl", "sets": ("a", "b")}, measure) for _ in range(2)]
  again = result_cache.ResultCache(path).get(
    {"sets": ["a", "b"], "method": "cl"}, measure
  )
  assert found == [{"f": {"a": 0.5, "b": None}}] * 2 and again == found[0]
  assert len(calls) == 1
  first.get({"method": "cl", "sets": ("a",)}, measure)
  assert len(calls) == 2


def test_a_line_cut_off_is_measured_again_and_hides_no_later_one(tmp_path):
  path = tmp_path / "measured.jsonl"
  begun = result_cache.ResultCache(path)
  for method in ("cl", "ncl"):
    begun.get({"method": method}, lambda method=method: {"is": method})
  path.write_text(path.read_text()[:-9])
  resumed = result_cache.ResultCache(path)
  assert resumed.get({"method": "cl"}, dict) == {"is": "cl"}
  assert resumed.get({"method": "ncl"}, lambda: {"is": "new"}) == {"is": "new"}
  last = result_cache.ResultCache(path)
  assert last.get({"method": "ncl"}, dict) == {"is": "new"}
  assert last.get({"method": "cl"}, dict) == {"is": "cl"}


def test_a_result_that_cannot_be_kept_is_given_and_told(tmp_path):
  path = tmp_path / "measured.jsonl"
  known = result_cache.ResultCache(path)
  path.mkdir()
  assert known.get({"method": "cl"}, lambda: {"is": "cl"}) == {"is": "cl"}
  assert str(path) in known.fault
  assert known.get({"method": "cl"}, dict) == {"is": "cl"}
