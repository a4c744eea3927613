"""Classical features for controls: PCA, NMF and k-means of pixels or of h."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import features
from ncl_jax.data.source import Source
from ncl_jax.evaluators import program

FITTED_ON = 5000  # training images at most: parts and clusters need no more
PIXEL_SIDE = 32  # larger images are reduced to it


def some_rows(x: np.ndarray, seed: int, count: int = FITTED_ON) -> np.ndarray:
  """At most `count` of the rows, always the same ones."""
  if len(x) <= count:
    return x
  return x[np.random.default_rng(seed).permutation(len(x))[:count]]


Extract = Callable[[ConfigDict, Source, str, Mesh], features.Features]


def pixels(
  config: ConfigDict, source: Source, split: str, mesh: Mesh
) -> features.Features:
  """Raw pixels in [0, 1] as h: the central square, reduced to `PIXEL_SIDE`."""
  images, labels, ids = [], [], []
  for batch in source.eval_batches(split, config.eval.batch_size):
    x = batch["image"][batch["mask"]]
    side = max(1, round(config.augment.eval_crop * min(x.shape[1:3])))
    top, left = (x.shape[1] - side) // 2, (x.shape[2] - side) // 2
    x = x[:, top : top + side, left : left + side] / np.float32(255)
    step = max(1, side // PIXEL_SIDE)
    kept = side // step * step
    blocks = x[:, :kept, :kept].reshape(
      len(x), kept // step, step, kept // step, step, x.shape[-1]
    )
    images.append(blocks.mean((2, 4)).reshape(len(x), -1))
    labels.append(batch["label"][batch["mask"]])
    ids.append(batch["id"][batch["mask"]])
  h = np.concatenate(images)
  return features.Features(h, h, h, np.concatenate(labels), np.concatenate(ids))


def hidden_of(run: program.Run) -> Extract:
  """A run's own features, to make codes of its h."""

  def extract(config, source, split, mesh):
    own = run.config.copy_and_resolve_references()
    own.augment.eval_crop = config.augment.eval_crop
    return program.extract(own, run.variables, source, split, mesh)

  return extract


def remembered(run: program.Run, extract: Extract) -> Extract:
  """The same function, which computes the features of the run's own data once.

  Args:
    run: whose data and view of them are remembered.
    extract: of features that depend on the config by `augment.eval_crop` alone.
  """
  kept: dict[str, features.Features] = {}

  def remembering(config, source, split, mesh):
    crop = config.augment.eval_crop
    if source is not run.source or crop != run.config.augment.eval_crop:
      return extract(config, source, split, mesh)
    if split not in kept:
      found = extract(config, source, split, mesh)
      # The widest layer, which no code is made of.
      kept[split] = dataclasses.replace(found, hidden=found.hidden[:, :0])
    return kept[split]

  return remembering


@dataclasses.dataclass(frozen=True)
class Codes:
  """Features whose z is a function of another layer, fitted on training images.

  Attributes:
    extract: gives that layer.
    encode: [N, F] -> [N, width].
    width: of the codes.
    layer: "h", or "f" of a network without a transform.
  """

  extract: Extract
  encode: Callable[[np.ndarray], np.ndarray]
  width: int
  layer: str = "h"

  def __call__(
    self, config: ConfigDict, source: Source, split: str, mesh: Mesh
  ) -> features.Features:
    """What `program.extract` gives."""
    found = self.extract(config, source, split, mesh)
    z = np.asarray(self.encode(found.layer(self.layer, "identity")), np.float32)
    return dataclasses.replace(found, z=z)


def fitted(extract: Extract, kind: str, run: program.Run) -> Codes | None:
  """Codes of a kind of `FITS`, as wide as the run's projector at most.

  Args:
    extract: gives h, which they are fitted to on training images.
    kind: of `FITS`.
    run: whose data and width.

  Returns:
    None where there are none: NMF has no parts of values below 0, as a transformer's
    h has them.
  """
  train = extract(run.config, run.source, "train", run.mesh)
  h = some_rows(train.h, run.config.seed)
  if kind == "nmf" and h.min() < 0:
    return None
  width = min(config_lib.widths(run.config)["z"], *h.shape)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not converged: it stays a control
    encode = FITS[kind](h, width, run.config.seed)
  return Codes(extract, encode, width)


def _pca(h: np.ndarray, width: int, seed: int) -> Callable:
  from sklearn.decomposition import PCA  # two seconds that few runs need

  return PCA(width, random_state=seed).fit(h).transform


def _nmf(h: np.ndarray, width: int, seed: int) -> Callable:
  from sklearn.decomposition import MiniBatchNMF

  return MiniBatchNMF(width, random_state=seed, max_iter=50).fit(h).transform


def _kmeans(h: np.ndarray, width: int, seed: int) -> Callable:
  from sklearn.cluster import MiniBatchKMeans

  model = MiniBatchKMeans(width, random_state=seed, n_init=1).fit(h)

  def encode(x: np.ndarray) -> np.ndarray:
    distance = model.transform(x)
    return np.maximum(distance.mean(1, keepdims=True) - distance, 0)

  return encode


FITS = {"pca": _pca, "nmf": _nmf, "kmeans": _kmeans}
LABELS = {"pca": "PCA", "nmf": "NMF", "kmeans": "k-means"}
NOTES = {
  "pca": "the principal components",
  "nmf": "the parts of a non-negative factorisation",
  "kmeans": "how much nearer than on average each cluster is (Coates & Ng's triangle)",
}
