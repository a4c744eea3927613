r"""Test images that activate the most active dimensions of CL, NCL and k-means most.

  python -m studies.frozen.figure --data=cifar100.npz --out=runs/frozen

Needs the stage train of studies.frozen.run in --out. The dimensions are chosen by a
rule, those with the largest expected activation, in the runs of the first seed.
"""

import argparse
import pathlib

import numpy as np

from ncl_jax.runtime import jsonl
from studies import pictures, scores
from studies.frozen import run

HERE = pathlib.Path(__file__).parent


def main() -> None:
  """Writes top_images.png (CL beside NCL) and kmeans_images.png into data."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--data", required=True, help="CIFAR-100 as .npz")
  parser.add_argument("--out", required=True, help="folder of studies.frozen.run")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out).expanduser().resolve()
  arrays = np.load(flags.data)
  seed = run.SEEDS[0]
  rates = run.best(jsonl.read(HERE / "data" / "tuning.jsonl"))
  h = {name: run.loaded(out / name) for name in ("train", "test")}
  of = []
  for method in run.METHODS:
    params = run.fitted(out, method, rates[method], seed)
    f = (run.embedded(params, method, h[name]) for name in ("train", "test"))
    of.append(scores.Features(*f))
  names = tuple(str(c) for c in arrays["class_names"])
  shown = arrays["test_images"], arrays["test_labels"], names
  pictures.write(*of, shown, seed, HERE / "data")


if __name__ == "__main__":
  main()
