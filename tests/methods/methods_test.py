"""Every method is described by its record, and by nothing else."""

import ast
import dataclasses
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import config as config_lib
from ncl_jax import methods

ROOT = pathlib.Path(__file__).parents[2]
FILES = [
  path
  for folder in ("ncl_jax", "launch", "benchmarks")
  for path in sorted((ROOT / folder).rglob("*.py"))
  if path.parent.name != "methods"
]
N, D, K = 6, 4, 3


def names_compared(source):
  """Names of losses that code compares something with, or chooses by."""
  found = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Compare):
      parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
      # One key may be another thing of that name; two are a table by loss.
      parts = [key for key in node.keys if key is not None]
      known = [getattr(key, "value", None) in methods.BY_NAME for key in parts]
      parts = parts if sum(known) > 1 else []
    elif isinstance(node, ast.match_case):
      parts = [node.pattern]
    else:
      continue
    for part in parts:
      constants = (n.value for n in ast.walk(part) if isinstance(n, ast.Constant))
      found += [c for c in constants if c in methods.BY_NAME]
  return found


def test_nobody_else_asks_for_a_methods_name():
  assert len(FILES) > 100
  found = {str(path): names_compared(path.read_text()) for path in FILES}
  assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
  "source",
  [
    'if config.loss.name == "clip": pass',
    'x = 1 if name not in ("nt_xent", "sup_con") else 2',
    'y = {"dino": 1, "byol": 2}[settings.name]',
    'match name:\n  case "byol" | "x": pass',
  ],
)
def test_asking_would_be_seen(source):
  assert names_compared(source)


def inputs(method):
  """A batch with all that the method's record says it needs, and nothing else."""
  rng = np.random.default_rng(0)
  width = K if method.prototypes else D
  keys = jnp.asarray(rng.normal(size=(N, 2, width)))
  return methods.LossInputs(
    settings=config_lib.defaults().loss,
    f=jnp.asarray(rng.normal(size=(N, 2, width))),
    keys=keys if method.momentum_encoder else None,
    labels=jnp.arange(N) % 2 if method.labels else None,
    temperature=0.2 if method.takes("loss.learn_temperature") else None,
    centre=jnp.asarray(rng.normal(size=K)) if method.prototypes else None,
  )


@pytest.mark.parametrize(
  "method", [m for m in methods.METHODS if m.loss], ids=lambda m: m.name
)
def test_a_loss_needs_what_its_record_says(method, x64):
  given = inputs(method)
  arrays = {
    key: getattr(given, key)
    for key in ("f", "keys", "temperature", "centre")
    if getattr(given, key) is not None
  }

  def loss(arrays):
    return method.loss(dataclasses.replace(given, **arrays))

  value = loss(arrays)
  assert value.shape == () and np.isfinite(value)
  for key, array in arrays.items():
    # Other rows for arrays: a loss of directions does not see lengths.
    moved = array * 1.5 if key == "temperature" else array[::-1] ** 2
    other = moved if key != "f" else array.at[0].set(moved[0])
    assert loss(arrays | {key: other}) != value, key


def test_a_class_changes_the_loss_that_needs_labels():
  (method,) = [m for m in methods.METHODS if m.labels and m.loss]
  given = inputs(method)
  other = dataclasses.replace(given, labels=jnp.arange(N) % 3)
  assert method.loss(given) != method.loss(other)


@pytest.mark.parametrize("variant", methods.VARIANTS)
def test_a_variant_leads_back_to_its_record(variant):
  config = config_lib.defaults()
  config_lib.set_method(config, variant)
  method, plain = methods.BY_VARIANT[variant]
  assert methods.of(config) is method
  assert (config.loss.transform == "identity") == (variant == plain)
  assert config_lib.views(config) == method.views
  assert (config_lib.predictor(config) is not None) == method.predictor


@pytest.mark.parametrize(
  ("name", "batch", "said"),
  # Counted by hand for two images a, b with views a1 a2 b1 b2: a1 has b1 and b2.
  [("nt_xent", 2, "2 negatives"), ("sup_con", 2, "3 other"), ("byol", 2, "no neg")],
)
def test_negatives_are_counted(name, batch, said):
  assert said in methods.BY_NAME[name].describe_negatives(batch)
