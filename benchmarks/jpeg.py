"""Two views at 224 pixels from JPEG files, compared with torchvision in a DataLoader.

  python -m benchmarks.jpeg

Photographs of --width x --height are decoded once each, and two views are made of each,
batch by batch. Ours works as in training without an accelerator: centre squares are
decoded to 256 pixels in the background, and the compiled program makes views of them on
simulated devices. torch has --workers persistent processes and crops the whole
pictures. CPU seconds count all threads and processes. torch's rows need torch and
torchvision.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import multiprocessing
import pathlib
import resource
import shutil
import tempfile
import time

import jax
import numpy as np
from PIL import Image

from benchmarks import augment as augment_benchmark
from benchmarks import measure
from ncl_jax import augment, data
from ncl_jax.data import source as source_module
from ncl_jax.host import resources
from ncl_jax.runtime import compiler, sharding

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
  """Prints a line for each way."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--images", type=int, default=256, help="whole batches of them")
  parser.add_argument("--batch", type=int, default=32)
  parser.add_argument("--width", type=int, default=500)
  parser.add_argument("--height", type=int, default=375)
  parser.add_argument("--workers", type=int, default=2)
  flags = parser.parse_args()
  devices = sharding.set_cpu_devices(flags.batch)
  with tempfile.TemporaryDirectory() as folder:
    train, test = (pathlib.Path(folder) / part for part in ("train", "test"))
    bytes_each = write(train, flags.images, (flags.width, flags.height))
    # Without a test folder, a part of the images would be held out.
    shutil.copytree(train / "0", test / "0")
    contestants = ours(folder, flags) | torch_ways(train, flags)
    seen = {name: [] for name in contestants}
    for round_ in range(flags.repeats + 1):
      for name, function in contestants.items():
        wall, cpu = time.perf_counter(), cpu_seconds()
        function()
        if round_:
          seen[name].append((time.perf_counter() - wall, cpu_seconds() - cpu))
  # The last is torchvision, if it is installed.
  pairs = {name: np.array(rounds) for name, rounds in seen.items()}
  *_, last = pairs.values()
  rows = []
  for name, mine in pairs.items():
    wall, cpu = np.median(mine, axis=0)
    # Ratios within each round, so that other load affects both.
    faster, cheaper = np.median(last / mine, axis=0)
    row = {
      "": name,
      "images/s": flags.images / wall,
      "CPU ms/image": cpu / flags.images * 1e3,
      "images/s relative to last row": float(faster),
      "last row's CPU time / this": float(cheaper),
    }
    rows.append(row)
  measure.finish(
    f"Two views at 224 pixels from JPEGs of {flags.width} x {flags.height}, "
    f"{bytes_each / 1024:.0f} KiB each, {resources.cores()} cores",
    rows,
    flags.json,
    f"Medians of {flags.repeats} rounds. images/s: wall time. CPU ms: summed over "
    "threads and processes. The last columns are medians of each round's ratio to the "
    "last row. With an accelerator, the host does only the work of the first row; here "
    f"{devices} simulated device(s) make the views on the same cores. If the machine "
    "does other work, compare CPU time.",
  )


def cpu_seconds():
  """CPU seconds of this process's threads and its children, running or ended."""
  used = [resource.getrusage(resource.RUSAGE_SELF)]
  used.append(resource.getrusage(resource.RUSAGE_CHILDREN))
  seconds = sum(u.ru_utime + u.ru_stime for u in used)
  for child in multiprocessing.active_children():
    fields = pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2]
    ticks = [int(field) for field in fields.split()[11:13]]
    seconds += sum(ticks) / os.sysconf("SC_CLK_TCK")
  return seconds


def write(folder, count, size):
  """Writes images with the file size of photographs; returns their mean bytes."""
  random = np.random.default_rng(0)
  total = 0
  for i in range(count):
    image = np.zeros((size[1], size[0], 3))
    for level in range(6):
      shape = (max(2, size[1] >> level), max(2, size[0] >> level), 3)
      noise = Image.fromarray(random.integers(0, 256, shape, np.uint8))
      image += np.asarray(noise.resize(size, Image.Resampling.BICUBIC)) * 2.0**level
    path = folder / str(i % 4) / f"{i}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image / 63).astype(np.uint8)).save(path, quality=90)
    total += path.stat().st_size
  return total / count


def ours(folder, flags):
  """The input pipeline of training, with and without the views."""
  source_module.IN_MEMORY_BYTES = 0  # do not keep even this small set in memory
  source = data.load(f"folder:{folder}", image_size=256)
  assert source.num_examples("train") == flags.images
  config = augment.AugmentConfig(size=224, mean=MEAN, std=STD)
  mesh = sharding.make_mesh()
  split = sharding.batch_sharded(mesh)
  shape = jax.ShapeDtypeStruct((flags.batch, 256, 256, 3), np.uint8, sharding=split)
  key = jax.random.key(0)
  # Compiled like the train step.
  views = (
    jax.jit(augment.two_views, static_argnames="config", out_shardings=split)
    .lower(key, shape, config=config)
    .compile(compiler_options=compiler.cpu_effort(1, mesh))
  )

  def decoded():
    # Every image once, in the background; training's batches never end.
    for batch in source.eval_batches("train", flags.batch):
      yield sharding.to_global(mesh, batch["image"])

  def whole():
    for batch in decoded():
      jax.block_until_ready(views(key, batch))

  return {
    "ours, decoded to 256 pixels": lambda: jax.block_until_ready(list(decoded())),
    "ours, with both views": whole,
  }


def torch_ways(folder, flags):
  """torch's DataLoader, if installed."""
  chain = augment_benchmark.torchvision_chain(224, MEAN, STD)
  if not chain:
    return {}
  from torch.utils.data import DataLoader
  from torchvision.datasets import ImageFolder

  dataset = ImageFolder(folder, lambda image: (chain(image), chain(image)))
  loader = DataLoader(
    dataset,
    flags.batch,
    shuffle=True,
    num_workers=flags.workers,
    persistent_workers=True,
  )

  def epoch():
    for _ in loader:
      pass

  return {f"torchvision, DataLoader, {flags.workers} workers": epoch}


if __name__ == "__main__":
  main()
