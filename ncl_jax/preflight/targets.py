"""What a plan is for, where it need not be at hand: devices and data."""

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from ml_collections import ConfigDict

from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.training import workdir

# (training images, height, width, channels, classes) of sets that need not be at hand.
KNOWN = {
  "digits": (1_438, 8, 8, 1, 10),
  "tfds:cifar10": (50_000, 32, 32, 3, 10),
  "tfds:cifar100": (50_000, 32, 32, 3, 100),
  "tfds:fashion_mnist": (60_000, 28, 28, 1, 10),
  "tfds:imagenet2012": (1_281_167, 256, 256, 3, 1_000),
  "folder:imagenet100": (126_689, 256, 256, 3, 100),
}


def devices(topology: str, slices: int = 1) -> Sequence[jax.Device]:
  """The devices of a machine that need not be at hand.

  Args:
    topology: "GENERATION:SHAPE", as "v5e:4x4" or "v4:2x2x2", in chips; "cpu:N" for N
      simulated ones of this machine.
    slices: number of TPU slices of that shape.

  Raises:
    InputError: for an unknown one, or where libtpu is not installed.
  """
  # The machine's own accelerator is not needed, and asking for it may take minutes.
  with contextlib.suppress(RuntimeError):  # jax has started, on CPU in our tests
    jax.config.update("jax_platforms", "cpu")
  kind, _, shape = topology.partition(":")
  if slices > 1 and kind == "cpu":
    raise InputError(f"topology {topology}: only TPUs have slices")
  if kind == "cpu" and shape.isdigit() and int(shape):
    with contextlib.suppress(RuntimeError):
      jax.config.update("jax_num_cpu_devices", int(shape))
    if jax.device_count() < int(shape):
      raise InputError(f"topology {topology}: jax runs with {jax.device_count()}")
    return jax.devices()[: int(shape)]
  if not re.fullmatch(r"v\w+:\d+(x\d+)+", topology):
    raise InputError(f"topology {topology!r}; allowed: cpu:8, v5e:4x4, v4:2x2x2, ...")
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # this is no machine of Google's
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  # Of a v4 chip's two cores one device is made, as on the real machines.
  options: dict[str, Any] = {"chip_config_name": "megacore"} if kind == "v4" else {}
  if slices > 1:
    options["num_slices"] = slices
  try:
    return topologies.get_topology_desc(topology, "tpu", **options).devices
  except RuntimeError as error:
    why = str(error).splitlines()[0]
    if "not installed" in str(error):
      why = "libtpu is not installed: pip install '.[tpu]'"
    raise InputError(f"topology {topology}: {why}") from error


def dummy_data(config: ConfigDict, shape: Sequence[int] = ()) -> Source:
  """A source of the data's shapes, which takes no memory.

  Args:
    shape: (training images, height, width, channels, classes); (): from what is known,
      else from the data themselves.
  """
  shape = tuple(shape) or KNOWN.get(config.data.source, ())
  if not shape:
    return workdir.load_source(workdir.streamed(config))
  if len(shape) != 5 or min(shape[:4]) < 1:
    raise InputError(
      f"data shape {shape}; allowed: training images, height, width, channels, classes"
    )
  count, height, width, channels, classes = shape
  if config.data.image_size:
    height = width = config.data.image_size
  count = config.data.train_examples or count
  # One zero, seen from everywhere.
  images = np.broadcast_to(np.uint8(0), (count, height, width, channels))
  labels = np.zeros(count, np.int32) - (not classes)
  split = Split(images, labels)
  names = tuple(map(str, range(classes)))
  return Source(config.data.source, {"train": split, "test": split}, names)
