"""Classical features for controls: pixels, and PCA, NMF and k-means of others."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.evaluators.run import FeatureSource
from ncl_jax.features import Features

FITTED_ON = 5000  # training images at most: parts and clusters need no more
PIXEL_SIDE = 32  # larger images are reduced to it


def some_rows(x: np.ndarray, seed: int, count: int = FITTED_ON) -> np.ndarray:
  """At most `count` of the rows, always the same ones."""
  if len(x) <= count:
    return x
  return x[np.random.default_rng(seed).permutation(len(x))[:count]]


@dataclasses.dataclass(frozen=True, eq=False)
class Pixels(FeatureSource):
  """Raw pixels in [0, 1] as h: the central square, reduced to `PIXEL_SIDE`."""

  config: ConfigDict
  source: Source
  mesh: Mesh

  def _extract(self, split: str) -> Features:
    config = self.config
    images, labels, ids = [], [], []
    for batch in self.source.eval_batches(split, config.eval.batch_size):
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
    return Features(h, h, h, np.concatenate(labels), np.concatenate(ids))


@dataclasses.dataclass(frozen=True, eq=False)
class Codes(FeatureSource):
  """Features whose z is a function of a layer of others, fitted on training images.

  Make them by `codes`.

  Attributes:
    config: of `base`, with the codes' width and no transform.
    base: gives the layer, and h.
    encode: [N, F] -> [N, width].
    layer_name: "h", or "f" of a network without a transform.
  """

  config: ConfigDict
  source: Source
  mesh: Mesh
  base: FeatureSource
  encode: Callable[[np.ndarray], np.ndarray]
  layer_name: str

  def _extract(self, split: str) -> Features:
    found = self.base.extract(split)
    z = self.encode(found.layer(self.layer_name, "identity"))
    return dataclasses.replace(found, z=np.asarray(z, np.float32))

  def _on(self, config: ConfigDict, source: Source) -> "Codes":
    base = self.base.on(source, config.augment.eval_crop)
    return dataclasses.replace(self, config=config, source=source, base=base)


def codes(
  base: FeatureSource,
  encode: Callable[[np.ndarray], np.ndarray],
  width: int,
  layer: str = "h",
) -> Codes:
  """Codes of a width; see `Codes` for the arguments."""
  config = widened(base.config, width, "identity")
  return Codes(config, base.source, base.mesh, base, encode, layer)


def widened(config: ConfigDict, width: int, transform: str) -> ConfigDict:
  """A config of another width of z, and another transform."""
  config = config.copy_and_resolve_references()
  config.model.projector = True  # what gives z its own width
  config.model.projector_out = width
  config.loss.transform = transform
  return config


def fitted(base: FeatureSource, kind: str) -> Codes | None:
  """Codes of a kind of `FITS`, as wide as the run's projector at most.

  Args:
    base: gives h, which they are fitted to on training images.

  Returns:
    None where there are none: NMF has no parts of values below 0, as a transformer's
    h has them.
  """
  seed = base.config.seed
  h = some_rows(base.extract("train").h, seed)
  if kind == "nmf" and h.min() < 0:
    return None
  width = min(config_lib.widths(base.config)["z"], *h.shape)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not converged: it stays a control
    encode = FITS[kind](h, width, seed)
  return codes(base, encode, width)


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
