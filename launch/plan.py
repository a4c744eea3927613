"""Estimates the memory and traffic of a run.

  ncl plan --config=cifar10:ncl --topology=v5e:4x4 --batch=4096

The real train step is compiled for the topology. Nothing is trained, and no data are
read if their shape is known. A TPU topology needs libtpu (pip install '.[tpu]') but no
TPU; cpu:8 means eight simulated devices. Prints the memory of a device by purpose,
whether the step fits, the FLOPs and the collectives. Speed is not measured; the
roofline of a TPU is a bound. Compiling a large network to machine code takes minutes;
--nocode stops before that and leaves out the program's own memory and its FLOPs.
"""

import os
import pathlib
import sys
import tempfile

from absl import flags

from ncl_jax import cli

_CONFIG = cli.define_config()
_TOPOLOGY = flags.DEFINE_string("topology", None, "v5e:4x4, v4:2x2x2, ..., or cpu:8")
_SLICES = flags.DEFINE_integer(
  "slices", 1, "number of TPU slices of that topology", lower_bound=1
)
_BATCH = flags.DEFINE_integer("batch", 0, "images in a global batch; 0: the config's")
_SHAPE = flags.DEFINE(
  cli.INTS,
  "data_shape",
  (),
  "if data are missing: images,height,width,channels,classes",
)
_CODE = flags.DEFINE_bool("code", True, "compile to machine code")


def main() -> None:
  """Compiles and prints."""
  from ncl_jax.preflight import memory_plan, plan_page, targets

  config = _CONFIG.value
  if _BATCH.value:
    config.train.batch_size = _BATCH.value
  topology = _TOPOLOGY.value or ""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    dump = None
    if not _CODE.value or not topology.startswith("cpu"):
      dump = pathlib.Path(folder)
      memory_plan.dump_to(dump)
    devices = targets.devices(topology, _SLICES.value)
    source = targets.dummy_data(config, _SHAPE.value or ())
    found = memory_plan.plan(config, source, devices, dump, _CODE.value)
  title = f"{config.method.upper()} on {config.data.source}, {topology}"
  print(plan_page.text(found, title))
  if not _CODE.value:
    sys.stdout.flush()
    os._exit(0)  # nothing else stops the compiler


if __name__ == "__main__":
  cli.run(main, required=("config", "topology"))
