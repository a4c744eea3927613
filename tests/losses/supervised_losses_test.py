"""SupCon against a loop: its positives, unknown labels, row blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ncl_jax.errors import InputError
from ncl_jax.losses import nt_xent, sup_con

LABELS = np.array([0, 1, 0, -1, 2, -1, 0])


def draw(n=7, d=4):
  z = np.random.default_rng(0).normal(size=(n, 2, d))
  z[2, 1] = 0
  return z


def loop(z, labels, temperature):
  rows = z.reshape(-1, z.shape[-1])
  norms = np.linalg.norm(rows, axis=1, keepdims=True)
  f = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
  losses = []
  for i in range(len(f)):
    others = [j for j in range(len(f)) if j != i]
    positives = [
      j for j in others if j // 2 == i // 2 or labels[j // 2] == labels[i // 2] != -1
    ]
    s = {j: f[i] @ f[j] / temperature for j in others}
    mean = np.mean([s[p] for p in positives])
    losses.append(np.logaddexp.reduce(list(s.values())) - mean)
  return np.reshape(losses, (-1, 2))


@pytest.mark.parametrize("block", [None, 4])
def test_equals_the_loop(block, x64):
  compute = jax.jit(lambda z: sup_con(z, LABELS, temperature=0.3, block_size=block))
  z = draw()
  np.testing.assert_allclose(compute(z), loop(z, LABELS, 0.3), rtol=1e-12)
  # Not at the all-zero row, whose gradient is defined, not a limit.
  check_grads(compute, (np.where(z == 0, 0.1, z),), order=1, modes=["rev"])


def test_without_labels_it_is_nt_xent():
  z = draw().astype(np.float32)
  seen = jax.jit(lambda z: sup_con(z, np.full(7, -1), temperature=0.2))(z)
  expected = jax.jit(lambda z: nt_xent(z, temperature=0.2))(z)
  np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_memory_is_linear_in_blocks():
  def temp(n):
    def mean(z):
      labels = jnp.zeros(n, jnp.int32)
      return sup_con(z, labels, temperature=0.2, block_size=64).mean()

    shape = jax.ShapeDtypeStruct((n, 2, 64), jnp.float32)
    program = jax.jit(jax.value_and_grad(mean)).lower(shape).compile()
    return program.memory_analysis().temp_size_in_bytes

  assert temp(4096) < 2.1 * temp(2048)
  assert temp(4096) < 8192 * 8192 * 4 / 8


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"temperature": 0.0}, "temperature = 0.0"),
    ({"block_size": 0}, "block_size = 0"),
    ({"precision": "x"}, "precision = 'x'"),
    ({"labels": np.zeros(3, int)}, r"labels have shape \[3\]"),
    ({"z": np.ones((7, 4))}, r"z has shape \[7, 4\]"),
  ],
)
def test_refuses(settings, message):
  given = {"z": draw(), "labels": LABELS, "temperature": 0.2} | settings
  with pytest.raises(InputError, match=message):
    sup_con(given.pop("z"), given.pop("labels"), **given)
