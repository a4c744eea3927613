"""The mesh, and batches on it."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from ncl_jax import sharding
from ncl_jax.errors import InputError


def test_a_batch_is_split_in_order():
  mesh = sharding.make_mesh()
  rows = np.arange(32).reshape(16, 2)
  split = sharding.to_global(mesh, {"x": rows})["x"]
  assert split.shape == (16, 2)
  for device, shard in enumerate(split.addressable_shards):
    np.testing.assert_array_equal(shard.data, rows[2 * device : 2 * device + 2])


def test_a_mesh_of_some_devices():
  some = jax.devices()[2:4]
  assert list(sharding.make_mesh(some).devices.flat) == some


def test_batches_must_be_shared_equally():
  mesh = sharding.make_mesh()
  sharding.check_batch(mesh, 16)
  with pytest.raises(InputError, match="20.*8 devices.*16 or 24"):
    sharding.check_batch(mesh, 20)
  with pytest.raises(InputError, match="4.*8 devices.*nearest that can is 8"):
    sharding.check_batch(mesh, 4)
  assert [sharding.pad_to_devices(mesh, n) for n in (1, 8, 9)] == [8, 8, 16]


def test_a_users_choice_of_devices_stands():
  assert sharding.set_cpu_devices(6, wanted=3) == jax.device_count() == 8


@pytest.mark.parametrize(("batch", "wanted"), [(6, 3), (5, 0)])
def test_simulated_devices(batch, wanted):
  code = (
    "from ncl_jax import sharding\n"
    f"n = sharding.set_cpu_devices({batch}, {wanted})\n"
    "import jax; print(n, jax.device_count())"
  )
  out = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  n, count = map(int, out.stdout.split())
  assert n == count and batch % n == 0
  if wanted:
    assert n == wanted
