"""Packages import strictly downwards, and heavy libraries lazily."""

import pytest
from measures import FILES, PACKAGE, imports

# A package imports packages of lower levels only.
LEVELS = {
  "errors": 0,
  "checks": 1,
  "host": 1,
  "numerics": 2,
  "nonneg": 3,
  "optimizers": 3,
  "losses": 3,
  "metrics": 3,
  "augment": 3,
  "models": 3,
  "data": 3,
  "interop": 3,
  "runtime": 3,
  "methods": 4,
  "config": 5,
  "features": 5,
  "encoder": 5,
  "report": 5,
  "training": 6,
  "evaluators": 7,
  "preflight": 7,
  "experiments": 8,
  "cli": 9,
  "__main__": 9,
}


def module_of(path):
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_list_is_the_package():
  found = {module_of(p) for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()}
  assert found - {"__init__", "__pycache__"} == set(LEVELS)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_go_downwards(path):
  here = module_of(path)
  for name in imports(path):
    parts = name.split(".")
    if parts[0] != "ncl_jax" or here == "__init__":
      continue
    there = parts[1] if len(parts) > 1 else ""
    if there in LEVELS and there != here:
      assert LEVELS[there] < LEVELS[here], f"{here} imports {there}"
    assert parts[0] not in ("configs", "launch")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_heavy_things_only_in_their_rooms_and_never_at_import(path):
  rooms = {
    "tensorflow": ("data/tfds_builder.py",),
    "tensorflow_datasets": ("data/tfds_builder.py", "data/tfds.py"),
    "orbax": ("runtime/checkpoint.py",),
  }
  used = {name.split(".")[0] for name in imports(path)} & rooms.keys()
  at_import = {name.split(".")[0] for name in imports(path, True)} & rooms.keys()
  assert not at_import
  assert all(path in [PACKAGE / room for room in rooms[name]] for name in used)
  assert "torch" not in {name.split(".")[0] for name in imports(path)}
