"""Pictures of what the dimensions of CL, NCL and k-means respond to."""

import pathlib

import numpy as np

from ncl_jax.experiments import rivals
from ncl_jax.report import comparison
from ncl_jax.report.figures import images
from studies import scores

ROWS, COLUMNS = 5, 8
LABELS = {"cl": "CL", "ncl": "NCL", "kmeans": "k-means of CL's features"}


def write(
  cl: scores.Features,
  ncl: scores.Features,
  shown: tuple[np.ndarray, np.ndarray, tuple[str, ...]],
  seed: int,
  folder: pathlib.Path,
) -> None:
  """Writes top_images.png (CL beside NCL) and kmeans_images.png, prints captions.

  A row is a dimension, one of those with the largest expected activation. Its images
  are the test images with the highest values in it.

  Args:
    cl: of the run without a transform.
    ncl: of the run with one.
    shown: the test images [N, H, W, C], their labels [N] and the names of the classes.
    seed: of the runs.
    folder: where the pictures go.
  """
  active = round(float((ncl.train > 1e-5).sum(1).mean()))
  encode = rivals.kmeans(cl.train, ncl.train.shape[1], active, seed)
  of = {"cl": cl, "ncl": ncl, "kmeans": scores.made(encode, cl)}
  pixels, labels, names = shown
  for name, pair in (
    ("top_images", ("cl", "ncl")),
    ("kmeans_images", ("kmeans", "ncl")),
  ):
    compared = comparison.Comparison(
      title="",
      facts=(),
      remarks=(),
      metrics=(),
      methods=tuple(
        comparison.Method(key, LABELS[key], {}, (), of[key].test) for key in pair
      ),
      chance={},
      expected={},
      seeds=(seed,),
      labels=labels,
      images=pixels,
      class_names=names,
    )
    picture = images.top_images(compared, ROWS, COLUMNS)
    (folder / f"{name}.png").write_bytes(picture.wide.png)
    print(picture.caption)
