r"""Test images that activate the most active dimensions of CL, NCL and k-means most.

  python -m studies.frozen.figure --data=cifar100.npz --out=runs/frozen

Needs the stage train of studies.frozen.run in --out. The dimensions are chosen by a
rule, those with the largest expected activation, in the runs of the first seed.
"""

import argparse
import pathlib

import numpy as np

from ncl_jax.experiments import rivals
from ncl_jax.report import comparison
from ncl_jax.report.figures import images
from ncl_jax.runtime import jsonl
from studies import scores
from studies.frozen import run

ROWS, COLUMNS = 5, 8
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
  of = {}
  for method in run.METHODS:
    params = run.fitted(out, method, rates[method], seed)
    of[method] = scores.Features(
      *(run.embedded(params, method, h[name]) for name in ("train", "test"))
    )
  active = round(float((of["ncl"].train > 1e-5).sum(1).mean()))
  encode = rivals.kmeans(of["cl"].train, run.OUT, active, seed)
  of["kmeans"] = scores.made(encode, of["cl"])
  labels = {"cl": "CL", "ncl": "NCL", "kmeans": "k-means of CL's features"}
  for name, pair in (
    ("top_images", ("cl", "ncl")),
    ("kmeans_images", ("kmeans", "ncl")),
  ):
    shown = comparison.Comparison(
      title="",
      facts=(),
      remarks=(),
      metrics=(),
      methods=tuple(
        comparison.Method(key, labels[key], {}, (), of[key].test) for key in pair
      ),
      chance={},
      expected={},
      seeds=(seed,),
      labels=arrays["test_labels"],
      images=arrays["test_images"],
      class_names=tuple(str(c) for c in arrays["class_names"]),
    )
    picture = images.top_images(shown, ROWS, COLUMNS)
    (HERE / "data" / f"{name}.png").write_bytes(picture.wide.png)
    print(picture.caption)


if __name__ == "__main__":
  main()
