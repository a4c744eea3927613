"""Epochs over JPEG files: decoded whenever they are used, or once.

  python -m benchmarks.decoded

Photographs of --width x --height become centre squares of 256 pixels, batch by batch,
as training reads them without an accelerator. Decoded once (`data.decoded_cache`), the
first epoch writes them to a file and later ones read it. CPU seconds count all threads.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import pathlib
import shutil
import tempfile

from benchmarks import jpeg, measure
from ncl_jax import data
from ncl_jax.data import source as source_module
from ncl_jax.host import resources

SIDE = 256


def main() -> None:
  """Prints a line for each way."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--images", type=int, default=512, help="whole batches of them")
  parser.add_argument("--batch", type=int, default=64)
  parser.add_argument("--width", type=int, default=500)
  parser.add_argument("--height", type=int, default=375)
  flags = parser.parse_args()
  source_module.IN_MEMORY_BYTES = 0  # as for sets that memory does not hold
  with tempfile.TemporaryDirectory() as folder:
    train, test, cache, fresh = (
      pathlib.Path(folder) / name for name in ("train", "test", "cache", "fresh")
    )
    bytes_each = jpeg.write(train, flags.images, (flags.width, flags.height))
    (test / "0").mkdir(parents=True)
    shutil.copy(train / "0" / "0.jpg", test / "0")

    def load(decoded=""):
      return data.load(f"folder:{folder}", image_size=SIDE, decoded=str(decoded))

    def epoch(source):
      for _ in source.eval_batches("train", flags.batch):
        pass

    def first():
      shutil.rmtree(fresh, ignore_errors=True)
      epoch(load(fresh))

    streamed, cached = load(), load(cache)
    seen = measure.interleaved(
      {
        "decoded when used": lambda: epoch(streamed),
        "decoded once, first epoch": first,
        "decoded once, later epochs": lambda: epoch(cached),
      },
      flags.repeats,
    )
  usual = seen["decoded when used"]
  rows = [
    {
      "": name,
      "images/s": flags.images / spent["wall"],
      "CPU ms/image": spent["cpu"] / flags.images * 1e3,
      "images/s relative to first row": usual["wall"] / spent["wall"],
      "first row's CPU time / this": usual["cpu"] / spent["cpu"],
    }
    for name, spent in seen.items()
  ]
  measure.finish(
    f"Epochs over {flags.images} JPEGs of {flags.width} x {flags.height}, "
    f"{bytes_each / 1024:.0f} KiB each, as squares of {SIDE} pixels, "
    f"{resources.cores()} cores",
    rows,
    flags.json,
    f"Medians of {flags.repeats} rounds. The first epoch includes listing the files "
    "and writing the squares to disk. Later epochs read them from the page cache. "
    "If memory is too small for that, each image is a read of "
    f"{SIDE * SIDE * 3 / 1024:.0f} KiB from disk.",
  )


if __name__ == "__main__":
  main()
