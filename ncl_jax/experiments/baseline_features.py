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
    parts = []
    for batch in self.source.eval_batches(split, self.config.eval.batch_size):
      x, labels, ids = (batch[key][batch["mask"]] for key in ("image", "label", "id"))
      side = max(1, round(self.config.augment.eval_crop * min(x.shape[1:3])))
      top, left = (x.shape[1] - side) // 2, (x.shape[2] - side) // 2
      step = max(1, side // PIXEL_SIDE)
      kept = side // step * step
      x = x[:, top : top + kept, left : left + kept] / np.float32(255)
      blocks = x.reshape(len(x), kept // step, step, kept // step, step, x.shape[-1])
      parts.append((blocks.mean((2, 4)).reshape(len(x), -1), labels, ids))
    h, labels, ids = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Features(h, h, h, labels, ids)


@dataclasses.dataclass(frozen=True, eq=False)
class Codes(FeatureSource):
  """Features whose z is a function of a layer of others; `codes` makes them."""

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
  """Features of a width, without a transform.

  Args:
    base: gives the layer, and h.
    encode: [N, F] -> [N, width].
    layer: "h", or "f" of a network without a transform.
  """
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
  """Codes of a kind of `KINDS`, fitted to h, as wide as the run's projector at most.

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
    return codes(base, _encoder(kind, h, width, seed), width)


def _encoder(kind: str, h: np.ndarray, width: int, seed: int) -> Callable:
  from sklearn import cluster, decomposition  # two seconds that few runs need

  if kind == "pca":
    return decomposition.PCA(width, random_state=seed).fit(h).transform
  if kind == "nmf":
    nmf = decomposition.MiniBatchNMF(width, random_state=seed, max_iter=50)
    return nmf.fit(h).transform
  model = cluster.MiniBatchKMeans(width, random_state=seed, n_init=1).fit(h)

  def encode(x: np.ndarray) -> np.ndarray:
    distance = model.transform(x)
    return np.maximum(distance.mean(1, keepdims=True) - distance, 0)

  return encode


# (label, what its features are).
KINDS = {
  "pca": ("PCA", "the principal components"),
  "nmf": ("NMF", "the parts of a non-negative factorisation"),
  "kmeans": (
    "k-means",
    "how much nearer than on average each cluster is (Coates & Ng's triangle)",
  ),
}
