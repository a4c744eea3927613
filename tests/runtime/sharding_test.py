"""The mesh, and batches on it."""

import importlib.util
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType

from ncl_jax.errors import InputError
from ncl_jax.preflight import targets
from ncl_jax.runtime import sharding


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
  assert list(sharding.make_mesh(some[::-1]).devices.flat) == some


class Chip:
  """A device of another machine, as far as a mesh asks."""

  def __init__(self, process_index, id):
    self.process_index, self.id = process_index, id


def test_slices_are_counted():
  chips = [Chip(process, process) for process in range(4)]
  assert sharding.slices(sharding.make_mesh(chips)) == 1
  for chip in chips:
    chip.slice_index = chip.id // 2
  assert sharding.slices(sharding.make_mesh(chips)) == 2
  assert sharding.slices(sharding.make_mesh()) == 1


def test_devices_lie_in_the_order_of_their_processes():
  # A v5e slice of 4 x 4 chips, as its topology lies.
  owners = [0, 0, 1, 1, 1, 1, 0, 2, 3, 3, 3, 3, 2, 2, 2, 0]
  chips = [Chip(process, 99 - i) for i, process in enumerate(owners)]
  mesh = sharding.make_mesh(chips)
  assert mesh.axis_types == (AxisType.Auto,) and mesh.axis_names == ("data",)
  found = [(chip.process_index, chip.id) for chip in mesh.devices.flat]
  assert found == sorted(found) and len(found) == 16


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
@pytest.mark.parametrize("kind", ["v4", "v5e", "v5p", "v6e"])
def test_processes_are_neighbours_on_every_slice_of_a_tpu(kind):
  if kind in ("v4", "v5p"):
    shapes = ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"]
  else:
    shapes = ["2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]
  found = {shape: targets.devices(f"{kind}:{shape}") for shape in shapes}
  found["two slices"] = topologies.get_topology_desc(
    f"{kind}:{shapes[2]}", "tpu", num_slices=2
  ).devices
  for shape, devices in found.items():
    mesh = sharding.make_mesh(devices)
    order = [device.process_index for device in mesh.devices.flat]
    assert order == sorted(order) and len(order) == len(devices), shape
    assert {device.id for device in mesh.devices.flat} == {d.id for d in devices}


@pytest.mark.parametrize(
  ("owners", "batch_size", "used"),
  [
    ([0] * 3, 64, [0, 1]),
    ([0] * 12, 64, range(8)),
    ([0] * 8, 3, [0, 1, 2]),
    ([0] * 3 + [1] * 3, 64, [0, 1, 3, 4]),
    ([0] * 4 + [1] * 4, 64, range(8)),
    ([0] * 3 + [1] * 2, 12, [0, 1, 3, 4]),
    ([0, 1, 2], 9, range(3)),
  ],
)
def test_devices_that_share_a_batch(owners, batch_size, used):
  chips = [Chip(process, i) for i, process in enumerate(owners)]
  mesh = sharding.that_share(sharding.make_mesh(chips), batch_size)
  assert [chip.id for chip in mesh.devices.flat] == list(used)
  with pytest.raises(InputError, match="64.* 3 processes.* is 63"):
    sharding.that_share(sharding.make_mesh([Chip(i, i) for i in range(3)]), 64)


def test_rows_of_a_process_follow_its_devices(monkeypatch):
  mesh = jax.sharding.Mesh([Chip(p, p) for p in (0, 2, 2, 1, 0, 1)], ("data",))
  rows = [[0, 1, 8, 9], [6, 7, 10, 11], [2, 3, 4, 5]]
  for process, expected in enumerate(rows):
    monkeypatch.setattr(jax, "process_index", lambda process=process: process)
    assert sharding.process_rows(mesh, 12).tolist() == expected
  with pytest.raises(InputError, match="13.*6 devices.*12 or 18"):
    sharding.process_rows(mesh, 13)


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
    "from ncl_jax.runtime import sharding\n"
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
