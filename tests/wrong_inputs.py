"""Mistakes that programs must answer by one message: a case, and how it is judged."""

import dataclasses
import hashlib
import shutil
from collections.abc import Callable

from programs import ROOT, call

from ncl_jax import cli

DIGITS = f"--config={ROOT}/configs/digits.py"
FOLDER = f"--config={ROOT}/configs/folder.py"
TINY = f"--config={ROOT}/tests/tiny.py"
# W: a work directory that is not there yet; R: one of a finished run; P: the place.
NEW, OLD = "--workdir=W", "--workdir=R"


@dataclasses.dataclass(frozen=True)
class Case:
  """A mistake: what is called, what the answer must say, and what lies there."""

  program: str
  flags: list[str]
  says: list[str]
  make: Callable = lambda place: None

  def __str__(self) -> str:
    last = self.flags[-1].rpartition("/")[2] if self.flags else ""
    return f"{self.program} {last}"


def copied(run, place):
  """The work directory at another place."""
  shutil.copytree(run, place)
  config = place / "R" / "config.json"
  config.write_text(config.read_text().replace(str(run), str(place)))
  return place


def contents(place):
  """Every file and folder, with a digest."""
  found = {}
  for path in sorted(place.rglob("*")):
    if "__pycache__" in path.parts:
      continue  # Python's own, beside a config file
    data = path.read_bytes() if path.is_file() else b"link or folder"
    found[str(path.relative_to(place))] = hashlib.sha256(data).hexdigest()
  return found


def check(case, run, tmp_path, monkeypatch):
  """The answer helps, and nothing changes."""
  # What a program sets for itself would stay for the tests that follow.
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  place = copied(run, tmp_path / "p")
  case.make(place)
  before = contents(place)

  def filled(text):
    for letter, path in (("W", place / "W"), ("R", place / "R"), ("P", place)):
      text = text.replace(f"={letter}", f"={path}") if text[:1] == "-" else text
      text = text.replace(":P/", f":{place}/").replace("P/", f"{place}/")
    return text

  monkeypatch.chdir(ROOT)
  code, _, err = call(case.program, *map(filled, case.flags))
  assert code == 2, err
  for text in case.says:
    assert filled(text).lower() in err.lower(), err
  assert "Traceback" not in err
  assert err.count("error:") == 1, err
  assert len(err.splitlines()) <= 20 and len(err) <= 1600, err
  assert contents(place) == before
