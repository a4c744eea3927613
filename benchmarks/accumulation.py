"""Memory of one train step when the batch passes through the network in k chunks.

Compiles the step of the paper's CIFAR recipe in float32 on one CPU device, for each k
of `train.grad_cache_chunks`. Prints XLA's planned memory for temporaries, which include
the activations. With --steps it also runs the step and prints the median time.
Compiling takes minutes.

  python -m benchmarks.accumulation --batch_size=128
"""

import os
import statistics
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.runtime import sharding
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


def main() -> None:
  """Prints a line for each number of chunks."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--backbone", default="resnet18")
  parser.add_argument("--width", type=int, default=64)
  parser.add_argument("--size", type=int, default=32, help="side of a view in pixels")
  parser.add_argument("--batch_size", type=int, default=128, help="images")
  parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4, 8])
  parser.add_argument("--steps", type=int, default=0, help="to run and time")
  flags = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", 1)

  shape = (flags.batch_size, flags.size, flags.size, 3)
  images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
  labels = (np.arange(flags.batch_size) % 10).astype(np.int32)
  split = Split(images, labels)
  source = Source("noise", {"train": split, "test": split}, tuple("0123456789"))
  rows: list[dict] = []
  for chunks in flags.chunks:
    row = measure_step(make_config(flags, chunks, source), source, flags.steps)
    first = rows[0] if rows else row
    shares = {f"relative to {flags.chunks[0]}": row["temp MiB"] / first["temp MiB"]}
    rows.append({"chunks": chunks} | row | shares)
  measure.finish(
    f"Memory of a step of {flags.batch_size} images in chunks, {flags.backbone}, "
    f"{flags.size} pixels, float32",
    rows,
    flags.json,
    "temp: memory for temporaries of the compiled step on one CPU device.",
  )


def make_config(flags, chunks, source):
  """The paper's CIFAR recipe with the sizes from the flags."""
  config = config_lib.defaults()
  config.data.source = "noise"
  config.model.backbone = flags.backbone
  config.model.width = flags.width
  config.model.dtype = "float32"
  config.train.batch_size = flags.batch_size
  config.train.grad_cache_chunks = chunks
  config_lib.validate(config)
  return config_lib.resolve(config, source)


def measure_step(config, source, steps):
  """Temporaries in MiB and, if steps are run, their median seconds."""
  mesh = sharding.make_mesh()
  sharding.check_batch(mesh, config.train.batch_size, config.train.grad_cache_chunks)
  optimizer, learning_rate = optimizer_lib.make_optimizer(config, 1)
  step = step_lib.make_step(config, source, mesh, optimizer, learning_rate)
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  data = source.split("train")
  batch = {"image": data.images, "label": data.labels}
  compiled = step.lower(state, batch).compile()
  memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
  if not steps:
    return {"temp MiB": memory}
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  batch = sharding.to_global(mesh, jax.tree.map(jnp.asarray, batch))
  seconds = []
  for _ in range(steps + 1):
    start = time.perf_counter()
    state, *rest = jax.block_until_ready(compiled(state, batch))
    seconds.append(time.perf_counter() - start)
  return {"temp MiB": memory, "s/step": statistics.median(seconds[1:])}


if __name__ == "__main__":
  main()
