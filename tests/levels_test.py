"""The house: each module imports only what lies below it, and heavy things lazily."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "ncl_jax"

LEVELS = {
  "errors": 0,
  "host": 0,
  "checks": 0,
  "paths": 0,
  "divergence": 0,
  "numerics": 0,
  "nonneg": 0,
  "metrics": 0,
  "accumulation": 0,
  "augment": 0,
  "convolution": 0,
  "corruptions": 0,
  "rotations": 0,
  "sharding": 0,
  "distributed": 0,
  "compile_cache": 0,
  "writer": 0,
  "hlo": 0,
  "ledger": 1,
  "losses": 1,
  "families": 2,
  "recipe": 1,
  "collapse": 1,
  "layers": 2,
  "models": 2,
  "towers": 2,
  "vit": 2,
  "optimizers": 2,
  "data": 2,
  "checkpoint": 2,
  "interop": 2,
  "config": 3,
  "fingerprints": 3,
  "workdir": 3,
  "watch": 3,
  "cli": 3,
  "show_views": 4,
  "features": 3,
  "encoder": 3,
  "feed": 3,
  "accuracy": 4,
  "classifier": 4,
  "objective": 4,
  "momentum": 4,
  "pair_loss": 4,
  "update": 4,
  "step": 4,
  "first_state": 5,
  "recorder": 4,
  "train": 5,
  "plan": 5,
  "profile": 1,
  "mirror": 4,
  "reproduce": 7,
  "feed_rate": 5,
  "supervised": 5,
  "supervised_loop": 5,
  "dry_run": 5,
  "evaluators": 6,
  "self_check": 6,
  "speed": 0,
  "report": 6,
  "explorer": 6,
  "beside": 7,
  "codes": 7,
  "controls": 7,
  "rivals": 7,
  "exchange": 7,
  "frozen": 7,
  "summary": 7,
  "measures": 7,
  "pair_measures": 7,
  "paper": 7,
  "compare": 7,
  "sweep": 7,
  "latent": 7,
}


def module_of(path):
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path, top_level_only=False):
  """Names of all modules that a file imports, `from a import b` as "a.b" too."""
  tree = ast.parse(path.read_text())
  nodes = tree.body if top_level_only else ast.walk(tree)
  for node in nodes:
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


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
      assert LEVELS[there] <= LEVELS[here], f"{here} imports {there}"
    assert parts[0] not in ("configs", "launch")


@pytest.mark.parametrize(
  "path", sorted([*PACKAGE.rglob("*.py"), *(ROOT / "launch").glob("*.py")]), ids=str
)
def test_heavy_things_only_in_their_rooms_and_never_at_import(path):
  rooms = {
    "tensorflow": PACKAGE / "data" / "tfds.py",
    "tensorflow_datasets": PACKAGE / "data" / "tfds.py",
    "orbax": PACKAGE / "checkpoint.py",
  }
  used = {name.split(".")[0] for name in imports(path)} & rooms.keys()
  at_import = {name.split(".")[0] for name in imports(path, True)} & rooms.keys()
  assert not at_import
  assert all(path == rooms[name] for name in used)
  assert "torch" not in {name.split(".")[0] for name in imports(path)}
