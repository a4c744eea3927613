"""A result is measured once, whatever is killed in between."""

import math

from ncl_jax import ledger


def test_measured_once_also_by_the_next_process(tmp_path):
  calls = []

  def measure():
    calls.append(1)
    return {"f": {"a": 0.5, "b": math.nan}}

  path = tmp_path / "measured.jsonl"
  first = ledger.Ledger(path)
  found = [first.get({"arm": "cl", "sets": ("a", "b")}, measure) for _ in range(2)]
  again = ledger.Ledger(path).get({"sets": ["a", "b"], "arm": "cl"}, measure)
  assert found == [{"f": {"a": 0.5, "b": None}}] * 2 and again == found[0]
  assert len(calls) == 1
  first.get({"arm": "cl", "sets": ("a",)}, measure)
  assert len(calls) == 2


def test_a_line_cut_off_is_measured_again_and_hides_no_later_one(tmp_path):
  path = tmp_path / "measured.jsonl"
  begun = ledger.Ledger(path)
  for arm in ("cl", "ncl"):
    begun.get({"arm": arm}, lambda arm=arm: {"is": arm})
  path.write_text(path.read_text()[:-9])
  resumed = ledger.Ledger(path)
  assert resumed.get({"arm": "cl"}, dict) == {"is": "cl"}
  assert resumed.get({"arm": "ncl"}, lambda: {"is": "new"}) == {"is": "new"}
  last = ledger.Ledger(path)
  assert last.get({"arm": "ncl"}, dict) == {"is": "new"}
  assert last.get({"arm": "cl"}, dict) == {"is": "cl"}
