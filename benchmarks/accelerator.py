"""The train step and the loss on this machine's accelerators, with synthetic data.

  python -m benchmarks.accelerator

Measures the whole train step (views, network in bfloat16, loss, LARS), one step per
call, on a batch that is already on the devices, so the input pipeline is left out.
Times are wall seconds, because the devices are otherwise idle. The first calls are not
counted.
"""

import time

import jax
import numpy as np

from benchmarks import measure
from ncl_jax import config as config_lib
from ncl_jax.methods import implementations
from ncl_jax.preflight import targets
from ncl_jax.runtime import sharding, timing
from ncl_jax.training import cost
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

# (name, backbone, stem, data: images, height, width, channels, classes; pixels a view)
STEPS = {
  "resnet18-32": ("resnet18", "cifar", (50_000, 32, 32, 3, 10), 32),
  "resnet50-224": ("resnet50", "imagenet", (126_689, 256, 256, 3, 100), 224),
}


def main() -> None:
  """Prints the steps, then the loss."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--batches", type=int, nargs=2, default=[1024, 256])
  parser.add_argument("--steps", type=int, default=20, help="timed, of each network")
  parser.add_argument("--rows", type=int, default=8192, help="of the loss")
  parser.add_argument("--width", type=int, default=64, help="of the networks")
  flags = parser.parse_args()
  mesh = sharding.make_mesh()
  rows = []
  for (name, case), batch in zip(STEPS.items(), flags.batches, strict=True):
    rows.append({"": name} | step_row(case, batch, flags, mesh))
  rows.append({"": f"NT-Xent, {flags.rows} x 256"} | loss_row(flags, mesh))
  devices = jax.devices()
  measure.finish(
    f"{len(devices)} x {devices[0].device_kind}, jax {jax.__version__}",
    rows,
    flags.json,
    "FLOP share: the network's products over the bfloat16 peak; – where unknown.",
  )


def step_row(case, batch, flags, mesh):
  """Images a second of one network."""
  backbone, stem, shape, size = case
  config = config_lib.defaults()
  config.data.source = "synthetic"
  config.model.backbone, config.model.stem = backbone, stem
  config.model.width = flags.width
  config.augment.size = size
  config.augment.mean, config.augment.std = (0.5,) * 3, (0.25,) * 3
  config.train.batch_size = batch
  source = targets.dummy_data(config, shape)
  config = config_lib.resolve(config, source)
  optimizer, learning_rate = optimizer_lib.make_optimizer(
    config, source.steps_per_epoch(batch)
  )
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  step = step_lib.make_step(config, source, mesh, optimizer, learning_rate)
  random = np.random.default_rng(0)
  data = sharding.to_global(
    mesh,
    {
      "image": random.integers(0, 256, (batch, *shape[1:4]), np.uint8),
      "label": random.integers(0, shape[4], batch).astype(np.int32),
    },
  )
  for _ in range(3):
    state, values, _ = step(state, data)
  jax.block_until_ready(values)
  began = time.perf_counter()
  for _ in range(flags.steps):
    state, values, _ = step(state, data)
  jax.block_until_ready(values)
  seconds = (time.perf_counter() - began) / flags.steps
  flops, peak = cost.image_flops(config, source) * batch, timing.peak()
  return {
    "batch": batch,
    "ms": seconds * 1e3,
    "images/s": batch / seconds,
    "FLOP share": flops / seconds / peak if peak else None,
    "peak MiB": timing.peak_memory() / 2**20,
  }


def loss_row(flags, mesh):
  """Milliseconds of the loss and its gradient."""
  z = np.random.default_rng(0).normal(size=(flags.rows // 2, 2, 256))
  z = sharding.to_global(mesh, z.astype(np.float32))

  def loss(z):
    return implementations.each_nt_xent(z, 0.2, mesh).mean()

  call = jax.jit(jax.value_and_grad(loss))
  jax.block_until_ready(call(z))
  began = time.perf_counter()
  for _ in range(flags.steps):
    result = call(z)
  jax.block_until_ready(result)
  return {"ms": (time.perf_counter() - began) / flags.steps * 1e3}


if __name__ == "__main__":
  main()
