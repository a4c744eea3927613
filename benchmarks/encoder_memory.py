"""Peak memory of fitting NonNegativeEncoder to embeddings in a file.

Makes a file of [--rows, 768] float32: every --step-th row is random, the others are
zeros, which take no room on the disk. Fits an encoder to all rows, memory-mapped (31 GB
for 10,000,000 rows). Prints the peak of anonymous memory, which the kernel cannot free,
and of all resident memory, which includes the file's pages.

  python -m benchmarks.encoder_memory
"""

import os
import pathlib
import tempfile
import threading

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

from benchmarks import measure
from ncl_jax.encoder import NonNegativeEncoder

WIDTH = 768
BLOCK = 10_000  # rows that are written at a time
GIB = 2**30


def main() -> None:
  """Prints a line."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--rows", type=int, default=10_000_000)
  parser.add_argument("--step", type=int, default=20)
  parser.add_argument("--folder", default=None, help="for the file; a temporary one")
  flags = parser.parse_args()
  with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
    path = pathlib.Path(folder) / "rows.npy"
    shape = (flags.rows, WIDTH)
    x = np.lib.format.open_memmap(path, "w+", np.float32, shape)[:: flags.step]
    random = np.random.default_rng(0)
    for start in range(0, len(x), BLOCK):
      part = x[start : start + BLOCK]
      part[:] = random.standard_normal(part.shape, np.float32)
    del x, part
    x = np.load(path, mmap_mode="r")
    peak = Peak()
    before = peak.now()
    encoder = NonNegativeEncoder(
      64, n_active=8, epochs=1, batch_size=2048, objective="reconstruction"
    )
    encoder.fit(x)
    row = {"rows": len(x)}
    row |= {"GiB of these rows": x.size * 4 / GIB, "GiB before": before["RssAnon"]}
    row |= {f"GiB peak, {k}": v for k, v in peak.stop().items()}
  measure.finish("Memory of a fit", [row], flags.json)


class Peak:
  """The largest memory of this process, by kind, sampled a hundred times a second."""

  def __init__(self):
    """Starts sampling."""
    self.most, self.ended = self.now(), threading.Event()
    self.thread = threading.Thread(target=self.sample, daemon=True)
    self.thread.start()

  def now(self) -> dict[str, float]:
    """GiB of anonymous and of all resident memory."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    values = dict(
      line.split(":") for line in lines if line.startswith(("Rss", "VmRSS"))
    )
    return {k: int(values[k].split()[0]) / 2**20 for k in ("RssAnon", "VmRSS")}

  def sample(self) -> None:
    """Updates the peak until it is stopped."""
    while not self.ended.wait(0.01):
      self.most = {k: max(v, self.most[k]) for k, v in self.now().items()}

  def stop(self) -> dict[str, float]:
    """The peak so far."""
    self.ended.set()
    self.thread.join()
    return self.most


if __name__ == "__main__":
  main()
