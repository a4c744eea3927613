"""The limits of what `measures.py` measures: one is raised only with a reason."""

import ast
import pathlib
import statistics
import traceback

import jax
import measures
import pytest
import tiny
from measures import PACKAGE

from ncl_jax import config as config_lib
from ncl_jax import losses
from ncl_jax.runtime import sharding
from ncl_jax.training.optimizer import make_optimizer
from ncl_jax.training.state import init_state
from ncl_jax.training.step import make_step

PARAMETERS = 6  # of a public function
# Its signature is fixed: a bank, its labels, queries, and four numbers.
MORE_PARAMETERS = {"metrics/knn.py: knn_predict": 7}


def test_no_import_is_circular():
  # Those inside functions count, too.
  assert not measures.cycle(measures.module_graph())
  assert not measures.cycle(measures.package_graph())


def test_a_cycle_is_found():
  assert measures.cycle({"a": {"b"}, "b": {"a"}, "c": set()}) == ["a", "b"]
  assert measures.floors({"a": {"b"}, "b": {"c"}, "c": set()}) == 3


def test_packages_are_few_and_shallow():
  assert len([p for p in PACKAGE.glob("*.py") if p.stem != "__init__"]) <= 8
  assert measures.floors(measures.package_graph()) <= 10


def test_files_and_functions_are_short():
  sizes = measures.file_lines()
  assert {name: size for name, size in sizes.items() if size > 350} == {}
  assert statistics.median(sizes.values()) <= 130
  lengths = {name: measures.lines_of(f) for name, f, _ in measures.functions()}
  assert {name: size for name, size in lengths.items() if size > 80} == {}
  assert measures.total_lines() <= 25_900


def test_public_functions_have_few_parameters():
  counts = {
    name: measures.parameters_of(f)
    for name, f, public in measures.functions()
    if public
  }
  assert {k: n for k, n in counts.items() if n > PARAMETERS} == MORE_PARAMETERS


def test_functions_are_measured():
  code = "def f(self, a, /, b, *c, d, **e):\n  'Text.'\n  return a\n"
  function = ast.parse(code).body[0]
  assert (measures.lines_of(function), measures.parameters_of(function)) == (2, 5)


def test_only_methods_branch_on_the_name_of_the_loss():
  assert measures.dispatches() == {"methods"}


@pytest.mark.parametrize("walk", [measures.BATCH, measures.CHECKPOINT])
def test_walks_are_short(walk):
  assert len(walk) <= 8
  found = {name for name, _, _ in measures.functions()}
  assert {f"{file}: {function}" for file, function in walk} <= found


def test_a_batch_goes_the_way_that_is_told(monkeypatch):
  files = []

  def loss(*args, **kwargs):
    del args, kwargs
    files.extend(pathlib.Path(frame.filename) for frame in traceback.extract_stack())
    raise KeyboardInterrupt

  monkeypatch.setattr(losses, "nt_xent", loss)
  source = tiny.source()
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding.make_mesh()
  optimizer, rate = make_optimizer(config, 3)
  state = jax.eval_shape(lambda: init_state(config, source, optimizer))
  batch = next(source.train_batches(0, 0, 16))
  with pytest.raises(KeyboardInterrupt):
    make_step(config, source, mesh, optimizer, rate).lower(state, batch)
  passed = {str(f.relative_to(PACKAGE)) for f in files if PACKAGE in f.parents}
  assert passed <= {file for file, _ in measures.BATCH}
  assert {"training/update.py", "training/loss.py"} <= passed
