"""NT-Xent, value and gradient: the released formula, all pairs at once, and tiles.

  python -m benchmarks.loss
  python -m benchmarks.loss --rows 65536 --run_rows=65536 --repeats=1 --figure=loss.svg

Memory is each compiled program's for temporaries and the gradient. Time is measured up
to --run_rows rows. "released" is the released code's formula restated in JAX, and
"torch" the same in PyTorch, if installed. "gathered" and "ring" are compiled for eight
devices, with the memory of each device. The last row is the spectral loss, from all
pairs ("plain") and by moments ("tiled").
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from ncl_jax import losses
from ncl_jax.methods.implementations import CPU_BLOCK
from ncl_jax.numerics import l2_normalize
from ncl_jax.runtime import sharding

TEMPERATURE, DEVICES = 0.2, 8
ROWS = [512, 2048, 8192, 65_536, 1_048_576]
WIDTHS = [128, 512, 2048]


def main() -> None:
  """Prints a line for each size."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="B, at D = 256")
  parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS, help="D")
  parser.add_argument("--width_rows", type=int, default=8192, help="B of other widths")
  parser.add_argument(
    "--run_rows", type=int, default=8192, help="largest B that is run"
  )
  parser.add_argument("--block", type=int, default=CPU_BLOCK)
  parser.add_argument("--figure", default="", help="file for a figure: .svg or .png")
  flags = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", DEVICES)
  sizes = [(rows, 256) for rows in flags.rows]
  sizes += [(flags.width_rows, width) for width in flags.widths]
  table = [measured(flags, rows, width) for rows, width in sizes]
  if flags.figure:
    draw([row for row in table if row["D"] == 256], flags.figure)
  table.append(spectral(flags, 4096, 256))
  measure.finish(
    f"NT-Xent, value and gradient, float32, tiles of {flags.block} rows",
    table,
    flags.json,
    "B rows of D dimensions. MiB: temporaries and gradient of the compiled program; "
    f"for gathered and ring, on each of {DEVICES} devices. CPU s: median, summed over "
    "threads.",
  )


def released(z):
  """The formula of the released code: ratios of exponentials, B x B masks."""
  f = l2_normalize(z).reshape(-1, z.shape[-1])
  similarity = jnp.exp(jnp.matmul(f, f.T, precision="highest") / TEMPERATURE)
  example = jnp.arange(len(f)) // 2
  same = example[:, None] == example[None]
  itself = jnp.eye(len(f), dtype=bool)
  positive = jnp.sum(similarity * (same & ~itself).astype(f.dtype), axis=1)
  negative = jnp.sum(similarity * (~same).astype(f.dtype), axis=1)
  return -jnp.mean(jnp.log(positive / (positive + negative)))


def in_one(**settings):
  """The mean of our loss with some settings."""
  return lambda z: losses.nt_xent(z, temperature=TEMPERATURE, **settings).mean()


def over_devices(block, ring):
  """The mean of our loss over all devices."""
  mesh = sharding.make_mesh()
  rows = jax.sharding.PartitionSpec(sharding.AXIS)

  def part(z):
    return losses.nt_xent(
      z, temperature=TEMPERATURE, block_size=block, axis_name=sharding.AXIS, ring=ring
    )

  return lambda z: jax.shard_map(part, mesh=mesh, in_specs=rows, out_specs=rows)(
    z
  ).mean()


def compiled(loss, shape, split=False):
  """(the program of value and gradient, its temporaries and gradient in MiB)."""
  mesh = sharding.make_mesh(None if split else jax.devices()[:1])
  batch = sharding.batch_sharded(mesh)
  program = jax.jit(
    jax.value_and_grad(loss),
    in_shardings=batch,
    out_shardings=(sharding.replicated(mesh), batch),
  )
  program = program.lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile()
  sizes = program.memory_analysis()
  return program, (sizes.temp_size_in_bytes + sizes.output_size_in_bytes) / 2**20


def measured(flags, rows, width):
  """A line of the table."""
  shape = (rows // 2, 2, width)
  implementations = {
    "released": (released, False),
    "plain": (in_one(), False),
    "tiled": (in_one(block_size=flags.block), False),
    "gathered": (over_devices(flags.block, False), True),
    "ring": (over_devices(flags.block, True), True),
  }
  line = {"": "NT-Xent", "B": rows, "D": width}
  programs = {}
  for name, (loss, split) in implementations.items():
    # Above this, a single B x B array exceeds 64 GiB.
    if name in ("released", "plain") and rows > 2**17:
      continue
    program, line[f"{name} MiB"] = compiled(loss, shape, split)
    if not split and rows <= flags.run_rows and line[f"{name} MiB"] < 2**13:
      programs[name] = program
  z = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  line |= seconds(flags, programs, z, torch_released(z))
  return line


def spectral(flags, pairs, width):
  """The spectral loss: all pairs at once ("plain"), and by moments ("tiled")."""

  def all_pairs(z):
    n, (f, g) = len(z), (z[:, 0], z[:, 1])
    positive = jnp.sum(f * g, axis=1)
    total = jnp.sum(jnp.matmul(f, g.T, precision="highest") ** 2)
    return (total - jnp.sum(positive**2)) / (n * (n - 1)) - 2 * positive.mean()

  shape = (pairs, 2, width)
  line, programs = {"": "spectral", "B": 2 * pairs, "D": width}, {}
  for name, loss in (("plain", all_pairs), ("tiled", losses.spectral)):
    programs[name], line[f"{name} MiB"] = compiled(loss, shape)
  z = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  return line | seconds(flags, programs, z)


def seconds(flags, programs, z, torch_step=None):
  """CPU seconds of each program, and ratios to the tiled loss."""
  if not programs:
    return {}
  one = sharding.batch_sharded(sharding.make_mesh(jax.devices()[:1]))
  on_device = jax.device_put(z, one)
  contestants = {
    name: lambda program=program: jax.block_until_ready(program(on_device))
    for name, program in programs.items()
  }
  if torch_step and "released" in programs:
    contestants["torch"] = torch_step
  times = measure.interleaved(contestants, flags.repeats)
  line = {f"{name} CPU s": spent["cpu"] for name, spent in times.items()}
  for name in ("plain", "torch"):
    if name in times and "tiled" in times:
      line[f"tiled/{name}"] = times["tiled"]["cpu"] / times[name]["cpu"]
  return line


def torch_released(z):
  """The released formula in PyTorch, value and gradient; None if not installed."""
  try:
    import torch
  except ImportError:
    return None
  leaf = torch.from_numpy(z.reshape(-1, z.shape[-1])).requires_grad_()
  example = torch.arange(len(leaf)) // 2

  def step():
    leaf.grad = None
    f = torch.nn.functional.normalize(leaf, dim=-1)
    similarity = torch.exp(f @ f.T / TEMPERATURE)
    same = example[:, None] == example[None]
    itself = torch.eye(len(leaf), dtype=torch.bool)
    positive = (similarity * (same & ~itself)).sum(1)
    negative = (similarity * ~same).sum(1)
    (-torch.log(positive / (positive + negative))).mean().backward()

  return step


def draw(table, file):
  """Memory and time over the rows of a batch, both axes logarithmic."""
  import matplotlib

  matplotlib.use("agg")
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
  for axis, unit in zip(axes, ("MiB", "CPU s"), strict=True):
    for name in ("released", "plain", "tiled", "gathered", "ring", "torch"):
      points = [
        (row["B"], row[f"{name} {unit}"]) for row in table if f"{name} {unit}" in row
      ]
      if points:
        axis.loglog(*zip(*points, strict=True), marker="o", label=name)
    axis.set(xlabel="rows of the batch (two per image), D = 256", ylabel=unit)
    axis.set_xscale("log", base=2)  # a decade would be too wide for the times
    axis.grid(alpha=0.3)
    if axis.lines:
      axis.legend()
  pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(file)
  print(f"figure: {file}")


if __name__ == "__main__":
  main()
