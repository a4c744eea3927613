"""Controls: what no training, a rotation or pixels give under the same evaluation.

Each is a config and variables, so that every program of `evaluators` takes it as it
takes a run. What is linear in z becomes a last layer of the network; what is not is a
function from a split to features.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA, FastICA, MiniBatchNMF

from ncl_jax import augment, features
from ncl_jax import config as config_lib
from ncl_jax import sharding as sharding_lib
from ncl_jax.data.source import Source
from ncl_jax.evaluators import program

FITTED_ON = 5000  # training images at most: rotations, parts and clusters need no more
PIXEL_SIDE = 32  # larger images are reduced to it
CALIBRATION_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Control:
  """One control.

  Attributes:
    key: short name.
    label: what a reader sees.
    note: one sentence: what it is.
    config: as of a run, with its own map and width.
    variables: {"params", "batch_stats"}, or a function that `program.extract` calls.
  """

  key: str
  label: str
  note: str
  config: ConfigDict
  variables: Any


def controls(cl: program.Run, ncl: program.Run) -> list[Control]:
  """The controls of a pair of runs of one seed.

  Args:
    cl: the run without a map.
    ncl: the run with one.

  Returns:
    Untrained ones, CL with something done to it afterwards, and classical ones on
    pixels and on CL's h.
  """
  fresh = program.untrained(ncl)
  calibrated = calibrate(ncl.config, fresh, ncl.source, ncl.mesh)
  z = program.extract(cl.config, cl.variables, cl.source, "train", cl.mesh).z
  z = some_rows(z, cl.config.seed)
  active = _activity(ncl)
  rotation = varimax(np.asarray(features.embed(z, "identity")))
  turned = orient(z @ rotation, rotation)
  unmixing, mean = ica(z, cl.config.seed)
  map_name = ncl.config.loss.map
  threshold = np.quantile(z, 1 - active, axis=0)
  identity = np.eye(z.shape[1])

  def after(key, label, note, matrix, shift, name):
    changed = last_layer(cl.config, cl.variables, matrix, shift, name)
    return Control(key, label, note, *changed)

  found = [
    Control(
      "untrained",
      "untrained + map",
      "the network before training, with NCL's map on it",
      ncl.config,
      fresh,
    ),
    Control(
      "untrained_calibrated",
      "untrained, calibrated + map",
      "the same with BatchNorm's running statistics taken from the training images",
      ncl.config,
      calibrated,
    ),
    after(
      "cl_map",
      "CL + map",
      f"CL with {map_name} put on it after training",
      identity,
      0.0,
      map_name,
    ),
    after(
      "cl_matched",
      f"CL, {active:.0%} active",
      "of each dimension of CL what lies above the value that so many training images "
      "exceed, as many as activate a live dimension of NCL",
      identity,
      -threshold,
      "relu",
    ),
    after(
      "cl_varimax",
      "CL + varimax",
      "CL rotated to the sparsest axes, which leaves distances as they are",
      turned,
      0.0,
      "identity",
    ),
    after(
      "cl_varimax_map",
      "CL + varimax + map",
      "the rotated CL with NCL's map after it, axes pointing where their tail is long",
      turned,
      0.0,
      map_name,
    ),
    after(
      "cl_ica",
      "CL + ICA",
      "independent components of CL's z",
      unmixing,
      -mean @ unmixing,
      "identity",
    ),
  ]
  inputs = {"pixels": pixels, "h": hidden_of(cl)}
  for name, extract in inputs.items():
    for kind, fit in FITS.items():
      codes = fitted(extract, fit, cl)
      config = _changed(cl.config, codes.width, "identity")
      found.append(
        Control(
          f"{name}_{kind}",
          f"{name}: {LABELS[kind]}",
          f"h is {'pixels' if name == 'pixels' else 'of CL'}, f is {NOTES[kind]} of it",
          config,
          codes,
        )
      )
  return found


def last_layer(
  config: ConfigDict,
  variables: Any,
  matrix: np.ndarray,
  shift: np.ndarray | float,
  map_name: str,
) -> tuple[ConfigDict, Any]:
  """A network whose output is `map(z matrix + shift)`.

  Args:
    config: of the network that gives z.
    variables: likewise; not changed.
    matrix: [D, M].
    shift: [M], or a number for all.
    map_name: see `nonneg.NAMES`.

  Returns:
    (config, variables) of the new network.
  """
  params = dict(variables["params"])
  projector = dict(params["projector"])
  last = jax.tree.map(lambda x: np.asarray(x, np.float64), projector["linear2"])
  projector["linear2"] = {
    "kernel": jnp.asarray(last["kernel"] @ matrix, jnp.float32),
    "bias": jnp.asarray(last["bias"] @ matrix + shift, jnp.float32),
  }
  params["projector"] = projector
  changed = _changed(config, matrix.shape[1], map_name)
  return changed, {"params": params, "batch_stats": variables["batch_stats"]}


def calibrate(config: ConfigDict, variables: Any, source: Source, mesh: Mesh) -> Any:
  """BatchNorm's running statistics from training images, without any training.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}; not changed.
    source: the data.
    mesh: batches are split over its devices.

  Returns:
    {"params", "batch_stats"} after `CALIBRATION_BATCHES` forward passes in training
    mode, enough that nothing is left of the statistics before.
  """
  model = config_lib.model(config)
  view = config_lib.augmentation(config)
  params = {k: v for k, v in variables["params"].items() if k != "probe"}

  @jax.jit
  def forward(params, batch_stats, images):
    _, mutated = model.apply(
      {"params": params, "batch_stats": batch_stats},
      augment.eval_view(images, view),
      train=True,
      mutable=["batch_stats"],
    )
    return mutated["batch_stats"]

  batch_stats = variables["batch_stats"]
  batches = source.train_batches(
    config.seed, 0, config.train.batch_size, jax.process_index(), jax.process_count()
  )
  for _ in range(CALIBRATION_BATCHES):
    images = sharding_lib.to_global(mesh, next(batches)["image"])
    batch_stats = forward(params, batch_stats, images)
  batches.close()
  return {"params": variables["params"], "batch_stats": batch_stats}


def varimax(f: np.ndarray, iterations: int = 100) -> np.ndarray:
  """The rotation R that maximises `sum_j var_n((f R)_nj^2)`: sparse axes.

  Args:
    f: [N, D].
    iterations: at most.

  Returns:
    [D, D], orthogonal.

  Reference: Kaiser 1958, "The varimax criterion for analytic rotation".
  """
  f = np.asarray(f, np.float64)
  rotation, before = np.eye(f.shape[1]), 0.0
  for _ in range(iterations):
    turned = f @ rotation
    slope = f.T @ (turned**3 - turned * np.mean(turned**2, 0))
    u, s, v = np.linalg.svd(slope)
    rotation, now = u @ v, s.sum()
    if now < before * (1 + 1e-6):
      break
    before = now
  return rotation


def orient(turned: np.ndarray, rotation: np.ndarray) -> np.ndarray:
  """The rotation with each axis pointing where the longer tail is.

  Args:
    turned: [N, D], features after the rotation.
    rotation: [D, D].

  Returns:
    [D, D].
  """
  third = np.mean((turned - turned.mean(0)) ** 3, 0)
  return rotation * np.where(third < 0, -1.0, 1.0)


def ica(z: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Unmixing matrix [D, M] and mean [D] of the independent components of z.

  Args:
    z: [N, D]; directions without variance are left out, so M <= D.
    seed: of the start.

  Reference: Hyvarinen and Oja 2000 (FastICA), scikit-learn's.
  """
  z = np.asarray(z, np.float64)
  size = np.linalg.svd(z - z.mean(0), compute_uv=False)
  components = int(np.sum(size > 1e-5 * size[0]))
  model = FastICA(components, whiten="unit-variance", max_iter=200, random_state=seed)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not converged: it stays a control
    model.fit(z)
  return model.components_.T, model.mean_


def some_rows(x: np.ndarray, seed: int) -> np.ndarray:
  """At most `FITTED_ON` of the rows, always the same ones."""
  if len(x) <= FITTED_ON:
    return x
  return x[np.random.default_rng(seed).permutation(len(x))[:FITTED_ON]]


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


@dataclasses.dataclass(frozen=True)
class Codes:
  """Features whose z is a function of h, fitted on training images.

  Attributes:
    extract: gives h.
    encode: [N, F] -> [N, width].
    width: of the codes.
  """

  extract: Extract
  encode: Callable[[np.ndarray], np.ndarray]
  width: int

  def __call__(
    self, config: ConfigDict, source: Source, split: str, mesh: Mesh
  ) -> features.Features:
    """What `program.extract` gives."""
    found = self.extract(config, source, split, mesh)
    z = np.asarray(self.encode(found.h), np.float32)
    return dataclasses.replace(found, z=z)


def fitted(extract: Extract, fit: Callable[..., Any], run: program.Run) -> Codes:
  """Codes fitted to a run's training images, as wide as its projector at most."""
  train = extract(run.config, run.source, "train", run.mesh)
  h = some_rows(train.h, run.config.seed)
  width = min(run.config.model.projector_out, *h.shape)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not converged: it stays a control
    encode = fit(h, width, run.config.seed)
  return Codes(extract, encode, width)


def _pca(h: np.ndarray, width: int, seed: int) -> Callable:
  return PCA(width, random_state=seed).fit(h).transform


def _nmf(h: np.ndarray, width: int, seed: int) -> Callable:
  return MiniBatchNMF(width, random_state=seed, max_iter=50).fit(h).transform


def _kmeans(h: np.ndarray, width: int, seed: int) -> Callable:
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


def _activity(ncl: program.Run) -> float:
  """Mean share of the training images that activate a live dimension of NCL."""
  train = program.extract(ncl.config, ncl.variables, ncl.source, "train", ncl.mesh)
  active = np.abs(train.layer("f", ncl.config.loss.map)) > ncl.config.eval.threshold
  rates = active.mean(0)
  return float(rates[rates > 0].mean()) if rates.any() else 1.0


def _changed(config: ConfigDict, width: int, map_name: str) -> ConfigDict:
  config = config.copy_and_resolve_references()
  config.model.projector_out = width
  config.loss.map = map_name
  return config
