"""Every loss in each of its forms: one entry that is no number, and it is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from ncl_jax import config as config_lib
from ncl_jax import losses
from ncl_jax.training import loss as loss_lib

N, D = 6, 4
LABELS = jnp.array([0, 1, 0, 2, -1, 1])
NAN, INF = float("nan"), float("inf")


def over_devices(ring, temperature):
  mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])
  rows = PartitionSpec("data")

  def part(z):
    return losses.nt_xent(
      z, temperature=temperature, block_size=2, axis_name="data", ring=ring
    )

  return jax.shard_map(part, mesh=mesh, in_specs=rows, out_specs=rows)


def prototypes(f, keys):
  config = config_lib.defaults()
  config.loss.update(name="dino", temperature=0.1, transform="identity")
  w = {"prototypes": jnp.eye(D)}
  teacher = {"params": w, "centre": jnp.zeros(D)}
  seen = {"z": f, "keys": keys}
  return loss_lib.of_pairs(config, w, teacher, seen, None, None)[0]


def penalty(z, _):
  config = config_lib.defaults()
  config.loss.l1 = 0.1
  return loss_lib.penalty(config, z)


# Of features z [N, 2, D] and of others of the same shape, the second input.
FORMS = {
  "nt_xent": lambda z, _: losses.nt_xent(z, temperature=0.5),
  "nt_xent in bfloat16": lambda z, _: losses.nt_xent(
    z, temperature=0.5, precision="bfloat16"
  ),
  "nt_xent in tiles": lambda z, _: losses.nt_xent(z, temperature=0.5, block_size=4),
  "nt_xent in tiles, maxima followed": lambda z, _: losses.nt_xent(
    z, temperature=0.01, block_size=4
  ),
  "nt_xent gathered": lambda z, _: over_devices(False, 0.5)(z),
  "nt_xent gathered, maxima followed": lambda z, _: over_devices(False, 0.01)(z),
  "nt_xent in a ring": lambda z, _: over_devices(True, 0.5)(z),
  "nt_xent in a ring, maxima followed": lambda z, _: over_devices(True, 0.01)(z),
  "sup_con": lambda z, _: losses.sup_con(z, LABELS, temperature=0.5),
  "sup_con in blocks": lambda z, _: losses.sup_con(
    z, LABELS, temperature=0.5, block_size=4
  ),
  "supervised_nt_xent": lambda z, _: losses.supervised_nt_xent(
    z, LABELS, temperature=0.5
  ),
  "clip": lambda z, k: losses.clip(z[:, 0], k[:, 0], temperature=0.5),
  "clip in blocks": lambda z, k: losses.clip(
    z[:, 0], k[:, 0], temperature=0.5, block_size=4
  ),
  "moco_v3": lambda z, k: losses.moco_v3(z, k, temperature=0.5),
  "byol": losses.byol,
  "dino": lambda s, t: losses.dino(s, t, jnp.zeros(D)),
  "dino of features": prototypes,
  "spectral by moments": lambda z, _: losses.spectral(z),
  "spectral by pairs": lambda z, _: losses.spectral(z[:3]),
  "spectral of a space": lambda z, _: losses.spectral(z, jnp.arange(6.0)),
  "barlow_twins": lambda z, k: losses.barlow_twins(z[:, 0], k[:, 0]),
  "vicreg": lambda z, k: losses.vicreg(z[:, 0], k[:, 0]),
  "cross_entropy": lambda z, k: losses.cross_entropy(z[:, 0], k[:3, 0], LABELS),
  "l1": penalty,
}
ONE_INPUT = ("nt_xent", "sup", "spectral", "l1")


@pytest.mark.parametrize("name", FORMS)
def test_one_entry_that_is_no_number_is_seen_in_the_loss(name):
  generator = np.random.default_rng(0)
  given = generator.normal(size=(2, N, 2, D)).astype(np.float32)
  loss = jax.jit(lambda one, other: jnp.mean(FORMS[name](one, other)))
  assert np.isfinite(loss(*given))
  for which in (0,) if name.startswith(ONE_INPUT) else (0, 1):
    for bad in (NAN, INF, -INF):
      if (name, which, bad) == ("dino", 1, -INF):
        continue  # a teacher's score that gives a prototype no probability
      spoilt = given.copy()
      spoilt[which, 1, 0, 2] = bad
      assert not np.isfinite(loss(*spoilt)), (which, bad)


def test_every_public_loss_is_among_them():
  helpers = {"PRECISIONS", "dino_centre", "l2_normalize", "scores"}
  assert {name.split()[0] for name in FORMS} - {"l1"} == (set(losses.__all__) - helpers)


@pytest.mark.parametrize("name", ["nt_xent", "spectral by moments"])
def test_features_that_a_map_overflows(name):
  z = np.full((N, 2, D), 1.0, np.float32)
  z[2, 1, 3] = 89  # exp is infinite in float32
  assert not np.isfinite(jnp.mean(FORMS[name](jnp.exp(z), None)))
