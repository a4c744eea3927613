"""Two views at 224 pixels from JPEG files: ours against torchvision in DataLoader.

  python -m benchmarks.jpeg

Photographs of --width x --height are decoded once each, two views of the recipe made of
each, batch by batch. Ours decodes in threads to 256 pixels and makes the views by the
compiled program, here on the CPU too; torch has --workers processes. CPU seconds of all
threads and processes count. torch's rows need torch and torchvision.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import pathlib
import resource
import statistics
import tempfile
import time

import jax
import numpy as np
from PIL import Image

from benchmarks import augment as augment_benchmark
from benchmarks import measure
from ncl_jax import augment, data
from ncl_jax.data import source as source_module

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
  """Prints a line a way."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--images", type=int, default=64)
  parser.add_argument("--batch", type=int, default=32)
  parser.add_argument("--width", type=int, default=500)
  parser.add_argument("--height", type=int, default=375)
  parser.add_argument("--workers", type=int, default=2)
  flags = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", 1)
  with tempfile.TemporaryDirectory() as folder:
    bytes_each = write(pathlib.Path(folder), flags.images, (flags.width, flags.height))
    contestants = ours(folder, flags) | torch_ways(folder, flags)
    seen = {name: [] for name in contestants}
    for round_ in range(flags.repeats + 1):
      for name, function in contestants.items():
        wall, cpu = time.perf_counter(), cpu_seconds()
        function()
        if round_:
          seen[name].append((time.perf_counter() - wall, cpu_seconds() - cpu))
  rows = []
  for name, pairs in seen.items():
    wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
    row = {
      "": name,
      "images/s": flags.images / wall,
      "CPU ms/image": cpu / flags.images * 1e3,
    }
    rows.append(row)
  for row in rows:
    row["against the last"] = rows[-1]["CPU ms/image"] / row["CPU ms/image"]
  measure.finish(
    f"Two views at 224 pixels from JPEGs of {flags.width} x {flags.height}, "
    f"{bytes_each / 1024:.0f} KiB each, {len(os.sched_getaffinity(0))} cores",
    rows,
    flags.json,
    "Medians; images/s by the clock, CPU milliseconds over all threads and processes; "
    "the last column is the last way's CPU time over this one's.",
  )


def cpu_seconds():
  """Of this process's threads and of its children that have ended."""
  used = [resource.getrusage(resource.RUSAGE_SELF)]
  used.append(resource.getrusage(resource.RUSAGE_CHILDREN))
  return sum(u.ru_utime + u.ru_stime for u in used)


def write(folder, count, size):
  """Images as detailed as photographs, by their file size; the mean in bytes."""
  random = np.random.default_rng(0)
  total = 0
  for i in range(count):
    image = np.zeros((size[1], size[0], 3))
    for level in range(6):
      shape = (max(2, size[1] >> level), max(2, size[0] >> level), 3)
      noise = Image.fromarray(random.integers(0, 256, shape, np.uint8))
      image += np.asarray(noise.resize(size, Image.Resampling.BICUBIC)) * 2.0**level
    path = folder / str(i % 4) / f"{i}.jpg"
    path.parent.mkdir(exist_ok=True)
    Image.fromarray((image / 63).astype(np.uint8)).save(path, quality=90)
    total += path.stat().st_size
  return total / count


def ours(folder, flags):
  """The feed of training, with and without the views."""
  source_module.IN_MEMORY_BYTES = 0  # of a set as small as this one, too
  source = data.load(f"folder:{folder}", image_size=256)
  # All of the images, also those held out for tests.
  paths = [p for split in source.splits.values() for p in _paths(split.images)]
  images = data.decode.Files(paths, 256)
  config = augment.AugmentConfig(size=224, mean=MEAN, std=STD)
  shape = jax.ShapeDtypeStruct((flags.batch, 256, 256, 3), np.uint8)
  key = jax.random.key(0)
  views = (
    jax.jit(augment.two_views, static_argnames="config")
    .lower(key, shape, config=config)
    .compile()
  )

  def decoded():
    for start in range(0, flags.images, flags.batch):
      yield images[np.arange(start, start + flags.batch)]

  def whole():
    for batch in decoded():
      jax.block_until_ready(views(key, batch))

  return {
    "ours, decoded to 256 pixels": lambda: list(decoded()),
    "ours, with both views": whole,
  }


def _paths(images):
  while not hasattr(images, "paths"):
    rows, images = images.rows, images.images
    return [_paths(images)[i] for i in rows]
  return list(images.paths)


def torch_ways(folder, flags):
  """torch's DataLoader, if installed."""
  chain = augment_benchmark.torchvision_chain(224, MEAN, STD)
  if not chain:
    return {}
  from torch.utils.data import DataLoader
  from torchvision.datasets import ImageFolder

  dataset = ImageFolder(folder, lambda image: (chain(image), chain(image)))
  plain = DataLoader(dataset, flags.batch, shuffle=True, num_workers=flags.workers)

  def epoch():
    for _ in plain:
      pass

  return {f"torchvision, DataLoader, {flags.workers} workers": epoch}


if __name__ == "__main__":
  main()
