"""One of several processes, started by processes.py: a program, or some steps."""

import json
import pathlib
import runpy
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from ncl_jax import cli, data, optimizers
from ncl_jax import config as config_lib
from ncl_jax.data import dsprites
from ncl_jax.data import source as source_module
from ncl_jax.evaluators import disentangle, pairs
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import explorer as explorer_lib
from ncl_jax.report import explorer
from ncl_jax.runtime import checkpoint, distributed, lock, sharding
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


def steps(folder=""):
  """Ten SGD steps in float64 on all devices of all processes, printed as JSON.

  Of a folder of photographs if one is named.
  """
  source = tiny.source()
  config = tiny.config(backbone="resnet_two_blocks")
  if folder:
    source = data.load(f"folder:{folder}", image_size=16, on_bad_image="skip")
    config.data.source, config.augment.size = source.name, 8
  config.model.dtype = "float64"
  config = config_lib.resolve(config, source)
  optimizer = optimizers.partition(optimizers.sgd(0.3), optimizers.sgd(0.1))
  mesh = sharding.make_mesh()
  step = step_lib.make_step(config, source, mesh, optimizer, lambda _: jnp.asarray(0.3))
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  state = jax.jit(lambda state: jax.tree.map(as_float64, state))(state)
  norm = jax.jit(lambda tree: sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(tree)))
  batches = source.train_batches(0, 0, 16, sharding.process_rows(mesh, 16))
  values, read = [], []
  for _ in range(10):
    batch = next(batches)
    read.append(batch["id"].tolist())
    needed = {"image": batch["image"], "label": batch["label"]}
    state, seen, _ = step(state, sharding.to_global(mesh, needed))
    seen = [seen[key] for key in ("probe_loss", "loss", "gradient_norm")]
    values.append([float(x) for x in (*seen, norm(state.params))])
  batches.close()
  print(json.dumps({"values": values, "read": read}))


def by_position():
  """What pairs features with their images by position, printed as JSON; float64."""
  source = data.subset(dsprites.load(16, ("orientation",)), train=64, test=45)
  config = config_lib.defaults()
  config.data.source, config.data.pair_factors = "dsprites", ("orientation",)
  config.augment.update(crop_scale=(1.0, 1.0), flip=0.0, blur=0.0, jitter=0.0)
  config.model.update(
    backbone="resnet_tiny",
    width=2,
    projector_hidden=16,
    projector_out=8,
    dtype="float64",
  )
  config.train.batch_size = config.eval.batch_size = 16
  config_lib.set_method(config, "ncl")
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  variables = jax.jit(lambda tree: jax.tree.map(as_float64, tree))(variables)
  found = Run(config, variables, source, mesh).extract("test")
  two = Run(config, variables, source, mesh).extract_two_views("train")
  pages = []
  run = Run(config, variables, source, mesh)
  explorer_lib.open_run = lambda *_, **__: run
  explorer.write = lambda _, page: pages.append(page)
  explorer_lib.explore("", sepin=True)
  (side,) = pages[0].sides
  # Partners that each step draws anew are refused; one draw is enough here.
  fixed = config.copy_and_resolve_references()
  fixed.data.pair_factors = ()
  paired = pairs.evaluate(fixed, variables, source, mesh)
  shown = {
    "ids": found.ids,
    "h": found.h,
    "ids of views": two[1].ids,
    "second views": two[1].z,
    "disentangle": disentangle.evaluate(config, variables, source, mesh)["f"],
    "pairs": {k: paired[k] for k in ("recall", "image", "dimensions")},
    "explorer": [side.f, side.sepin, side.partners],
  }
  print(json.dumps(shown, default=lambda array: np.asarray(array).tolist()))


def hold_open(folder):
  copied = checkpoint._copied

  def wait(tree):
    if not (folder / "go").exists():
      (folder / "held").touch()
      while not (folder / "go").exists():
        time.sleep(0.05)
    return copied(tree)

  checkpoint._copied = wait


def evaluating(folder):
  """A long evaluation after a training's loop: nobody asks whether to stop."""
  with distributed.StopRequests() as stop:
    assert not stop.at()
  (folder / str(jax.process_index())).touch()
  time.sleep(600)


def interleaved():
  devices = np.array(jax.devices())[[0, 5, 4, 1, 2, 7, 3, 6]]
  return jax.sharding.Mesh(devices, ("data",))


def as_float64(x):
  return x.astype(jnp.float64) if x.dtype == jnp.float32 else x


if __name__ == "__main__":
  mode = sys.argv.pop(1)
  if mode == "lazily":  # nothing is small enough to be decoded as a whole
    source_module.IN_MEMORY_BYTES = 0
    mode = sys.argv.pop(1)
  if mode == "interleaved":  # as `jax.make_mesh` lays out most slices of a TPU
    sharding.make_mesh = interleaved
    mode = sys.argv.pop(1)
  if mode == "brief":  # the lock of a process that was killed is soon free
    lock.LEASE_SECONDS = 4.0
    mode = sys.argv.pop(1)
  if mode == "held":  # this process's first save lasts until a file FOLDER/go appears
    hold_open(pathlib.Path(sys.argv.pop(1)))
    mode = sys.argv.pop(1)
  if mode == "evaluating":
    folder = pathlib.Path(sys.argv.pop(1))
    cli.run(lambda: evaluating(folder))
  elif mode == "by_position":
    with jax.enable_x64(True):
      cli.run(by_position)
  elif mode == "steps":
    folder = "" if sys.argv[1].startswith("--") else sys.argv.pop(1)
    with jax.enable_x64(True):
      cli.run(lambda: steps(folder))
  else:
    runpy.run_module(mode, run_name="__main__")
