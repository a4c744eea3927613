"""Speed of the input pipeline: from memory, from files, or from data on the devices.

  python -m benchmarks.feed

Measures batches of --batch images of --size pixels: from an array in host memory,
decoded from PNG files, transferred to the devices, and picked from data that are
already on the devices. torch's row is its DataLoader over the same array in this
process, if installed.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import itertools
import pathlib
import tempfile

import jax
import numpy as np
from PIL import Image

from benchmarks import measure
from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data.source import Source, Split
from ncl_jax.runtime import sharding
from ncl_jax.training import input_pipeline


def main() -> None:
  """Prints a line for each way."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--batch", type=int, default=256)
  parser.add_argument("--size", type=int, default=32)
  parser.add_argument("--batches", type=int, default=8, help="in an epoch")
  flags = parser.parse_args()
  sharding.set_cpu_devices(flags.batch)
  mesh = sharding.make_mesh()
  count = flags.batch * flags.batches
  shape = (count, flags.size, flags.size, 3)
  images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
  labels = (np.arange(count) % 10).astype(np.int32)
  split = Split(images, labels)
  source = Source("noise", {"train": split, "test": split}, tuple("0123456789"))
  config = config_lib.defaults()
  config.data.source = "noise"
  config.train.batch_size = flags.batch
  config = config_lib.resolve(config, source)

  def from_array(source=source):
    batches = source.train_batches(0, 0, flags.batch)
    for _ in itertools.islice(batches, flags.batches):
      pass
    batches.close()

  def sent():
    stream = input_pipeline.open_feed(source, config, mesh, 0, False)
    for step in range(flags.batches):
      jax.block_until_ready(stream.at(step))
    stream.close()

  there = input_pipeline.open_feed(source, config, mesh, 0, True)
  take = jax.jit(
    lambda data, start: input_pipeline.batch_of(
      data, start, flags.batch, mesh, shape[1:]
    )
  )
  starts = jax.device_put(np.arange(flags.batches, dtype=np.int32) * flags.batch)
  starts = [starts[i] for i in range(flags.batches)]

  def picked():
    for start in starts:
      jax.block_until_ready(take(there.at(0), start))

  contestants = {
    "array, in host memory": from_array,
    "array, sent to the devices": sent,
    "kept on the devices, batch selected": picked,
  }
  loader = torch_loader(images, labels, flags.batch)
  if loader:
    contestants["torch's DataLoader, array"] = loader
  with tempfile.TemporaryDirectory() as folder:
    for i, image in enumerate(images):
      path = pathlib.Path(folder) / "train" / str(labels[i]) / f"{i:06d}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(image).save(path)
    files = data.folder.load(pathlib.Path(folder), flags.size)
    contestants["PNG files, decoded"] = lambda: from_array(files)
    times = measure.interleaved(contestants, flags.repeats)
  rows = [
    {
      "": name,
      "images/s": count / times[name]["wall"],
      "CPU us/image": times[name]["cpu"] / count * 1e6,
    }
    for name in contestants
  ]
  measure.finish(
    f"Batches of {flags.batch} images of {flags.size} pixels, "
    f"{mesh.size} simulated device(s)",
    rows,
    flags.json,
    "Medians. The step that uses the images is not included.",
  )


def torch_loader(images, labels, batch):
  """An epoch of torch's DataLoader, shuffled; None if it is not installed."""
  try:
    import torch
    from torch.utils.data import DataLoader, TensorDataset
  except ImportError:
    return None
  pairs = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
  loader = DataLoader(pairs, batch, shuffle=True, drop_last=True)

  def epoch():
    for _ in loader:
      pass

  return epoch


if __name__ == "__main__":
  main()
