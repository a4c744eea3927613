"""One of several processes, started by processes.py: a program, or some steps.

It runs in half the compile time of the real thing: two blocks for a ResNet-10's four.
"""

import json
import runpy
import sys

import jax
import jax.numpy as jnp
import tiny

from ncl_jax import cli, data, models, optimizers, sharding
from ncl_jax import config as config_lib
from ncl_jax import step as step_lib
from ncl_jax.data import source as source_module


def small(stem, width, dtype):
  return models.ResNet((1, 1), models.BasicBlock, stem, width, dtype)


def steps(folder=""):
  """Ten SGD steps in float64 on all devices of all processes, printed as JSON.

  Of a folder of photographs if one is named.
  """
  source = tiny.source()
  config = tiny.config()
  if folder:
    source = data.load(f"folder:{folder}", image_size=16, on_bad_image="skip")
    config.data.source, config.augment.size = source.name, 8
  config.model.dtype = "float64"
  config = config_lib.resolve(config, source)
  optimizer = optimizers.partition(optimizers.sgd(0.3), optimizers.sgd(0.1))
  mesh = sharding.make_mesh()
  step = step_lib.make_step(config, source, mesh, optimizer, lambda _: jnp.asarray(0.3))
  state = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  state = jax.jit(lambda state: jax.tree.map(as_float64, state))(state)
  batches = source.train_batches(0, 0, 16, jax.process_index(), jax.process_count())
  values, read = [], []
  for _ in range(10):
    batch = next(batches)
    read.append(batch["id"].tolist())
    needed = {"image": batch["image"], "label": batch["label"]}
    state, seen, _ = step(state, sharding.to_global(mesh, needed))
    total = sum(jnp.sum(jnp.abs(p)) for p in jax.tree.leaves(state.params))
    seen = [seen[key] for key in ("probe_loss", "loss", "gradient_norm")]
    values.append([float(x) for x in (*seen, total)])
  batches.close()
  print(json.dumps({"values": values, "read": read}))


def as_float64(x):
  return x.astype(jnp.float64) if x.dtype == jnp.float32 else x


if __name__ == "__main__":
  models.resnet10 = small
  mode = sys.argv.pop(1)
  if mode == "lazily":  # nothing is small enough to be decoded as a whole
    source_module.IN_MEMORY_BYTES = 0
    mode = sys.argv.pop(1)
  if mode == "steps":
    folder = "" if sys.argv[1].startswith("--") else sys.argv.pop(1)
    with jax.enable_x64(True):
      cli.run(lambda: steps(folder))
  else:
    runpy.run_module(mode, run_name="__main__")
