"""From variables and a split to feature matrices, each image exactly once."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ncl_jax import augment, models, nonneg, numerics
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.models import vit
from ncl_jax.runtime import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Features:
  """Features of a split: numpy arrays in the split's order.

  Attributes:
    h: [N, F] float32, backbone features.
    hidden: [N, M] float32, the projector's hidden layer, after its ReLU.
    z: [N, D] float32, raw projector outputs.
    labels: [N] int32; -1 where unknown.
    ids: [N] int64, positions in the split.

  Raises:
    FloatingPointError: if a layer holds NaN or infinity, naming the layer and how many
      images.
  """

  h: np.ndarray
  hidden: np.ndarray
  z: np.ndarray
  labels: np.ndarray
  ids: np.ndarray

  def __post_init__(self) -> None:
    """Nothing is measured of what is not finite."""
    for name in ("h", "hidden", "z"):
      _check_finite(name, getattr(self, name), self.ids)

  def layer(self, name: str, transform: str) -> np.ndarray:
    """One layer as evaluation sees it.

    Args:
      name: "h", "hidden", "z", or "f" = z after the transform, rows of unit length.
      transform: the config's transform.

    Returns:
      [N, width] float32.

    Raises:
      InputError: for another name.
      FloatingPointError: if the transform makes NaN or infinity of z, as "exp" does
        above 88.
    """
    if name == "f":
      f = np.asarray(embed(self.z, transform))
      _check_finite(f"f = {transform}(z)", f, self.ids)
      return f
    if name not in ("h", "hidden", "z"):
      raise InputError(f"layer is {name!r}: allowed are h, hidden, z, f")
    return getattr(self, name)


def _check_finite(name: str, x: np.ndarray, ids: np.ndarray) -> None:
  # The sum is NaN or infinite if an entry is, and read without a copy: entries are
  # looked at only then.
  with np.errstate(over="ignore", invalid="ignore"):
    if np.isfinite(x.sum()):
      return
  bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))
  if bad.size:
    raise FloatingPointError(
      f"the features {name} of {len(bad)} of {len(x)} images hold NaN or infinity, "
      f"first of image {ids[bad[0]]}: nothing is measured. Use an earlier checkpoint, "
      "or train again with a lower learning rate or a higher temperature"
    )


@jax.jit(static_argnames="transform")
def embed(z: jax.typing.ArrayLike, transform: str) -> jax.Array:
  """`f = map(z) / |map(z)|`: the features that the loss compared.

  Args:
    z: [N, D] raw projector outputs.
    transform: see `nonneg.NAMES`.

  Returns:
    [N, D], rows of unit length, or zero where the transform left nothing.
  """
  return numerics.l2_normalize(nonneg.apply_map(z, transform))


def extract(
  model: models.ContrastiveModel | models.TwoTowers,
  variables: Any,
  source: Source,
  split: str,
  *,
  view: augment.AugmentConfig,
  mesh: Mesh,
  batch_size: int,
) -> Features:
  """Runs the network in evaluation mode over a split.

  Args:
    model: from `config.model`.
    variables: {"params", "batch_stats"}, replicated over the mesh or on the host.
    source: the data.
    split: "train", "test", ...
    view: for `augment.eval_view`.
    mesh: batches are split over its devices.
    batch_size: images in flight; rounded up to a multiple of the devices. The last
      batch is padded and masked: the result does not depend on it.

  Returns:
    The features of all images, on every process.
  """
  whole = sharding_lib.replicated(mesh)

  def forward(variables, batch):
    return _forward(model, view, whole, variables, batch)

  return Features(**_collect(forward, variables, source, split, mesh, batch_size))


def extract_two_views(
  model: models.ContrastiveModel | models.TwoTowers,
  variables: Any,
  source: Source,
  split: str,
  *,
  view: augment.AugmentConfig,
  mesh: Mesh,
  batch_size: int,
  seed: int,
) -> tuple[Features, Features]:
  """As `extract`, of two random views of each image, as training makes them.

  An image's views depend on the seed and on its position in the split alone.

  Args:
    model: from `config.model`.
    variables: as in `extract`.
    source: the data.
    split: "train", "test", ...
    view: the recipe, for `augment.make_views`.
    mesh: as in `extract`.
    batch_size: images in flight; the result does not depend on it.
    seed: of the views.

  Returns:
    The features of all first and of all second views, rows in the same order.
  """
  whole = sharding_lib.replicated(mesh)
  key = numerics.key(seed)

  def forward(variables, batch):
    return _forward_two(model, view, whole, key, variables, batch)

  columns = _collect(forward, variables, source, split, mesh, batch_size)
  layers = ("h", "hidden", "z")
  one, other = (
    Features(**columns | {name: columns[name][:, v] for name in layers}) for v in (0, 1)
  )
  return one, other


def attention(
  backbone: vit.ViT,
  variables: Any,
  source: Source,
  split: str,
  *,
  view: augment.AugmentConfig,
  mesh: Mesh,
  batch_size: int,
) -> np.ndarray:
  """What a vision transformer looks at in each image of a split: `vit.attention`.

  Args:
    backbone: of the model.
    variables: of the model, as in `extract`.
    source: the data.
    split: "train", "test", ...
    view: for `augment.eval_view`.
    mesh: as in `extract`.
    batch_size: images in flight; the result does not depend on it.

  Returns:
    [N, heads, rows, columns] float32, patches of the view that evaluation sees.
  """
  whole = sharding_lib.replicated(mesh)

  def forward(variables, batch):
    return _attention(backbone, view, whole, variables, batch)

  columns = _collect(forward, variables, source, split, mesh, batch_size)
  maps = columns["attention"]
  _check_finite("attention", maps, np.arange(len(maps)))
  return maps


def _collect(
  forward: Callable[[Any, Any], Any],
  variables: Any,
  source: Source,
  split: str,
  mesh: Mesh,
  batch_size: int,
) -> dict[str, Any]:
  """The outputs of `forward(variables, batch)` over a split, without padding rows."""
  batch_size = sharding_lib.pad_to_devices(mesh, batch_size)
  # The online probe is not part of the network.
  params = {k: v for k, v in variables["params"].items() if k != "probe"}
  variables = {"params": params, "batch_stats": variables["batch_stats"]}
  variables = jax.device_put(variables, sharding_lib.replicated(mesh))
  parts = []
  own = sharding_lib.process_rows(mesh, batch_size)
  for batch in source.eval_batches(split, batch_size, own):
    rows = sharding_lib.to_global(mesh, batch)
    parts.append(jax.device_get(forward(variables, rows)))
  columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
  mask = columns.pop("mask")
  return {key: column[mask] for key, column in columns.items()}


@jax.jit(static_argnums=(0, 1, 2))
def _forward(model, view, whole, variables, batch):
  images = augment.eval_view(batch["image"], view)
  return _embed(model, whole, variables, images, batch)


@jax.jit(static_argnums=(0, 1, 2))
def _attention(backbone, view, whole, variables, batch):
  images = augment.eval_view(batch["image"], view)
  maps = vit.attention(backbone, variables["params"]["backbone"], images)
  return jax.lax.with_sharding_constraint(
    {"attention": maps, "mask": batch["mask"]}, whole
  )


@jax.jit(static_argnums=(0, 1, 2))
def _forward_two(model, view, whole, key, variables, batch):
  # A key for each image: the same views whatever batch it comes in.
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["id"])
  u = jax.vmap(lambda key: augment.draws(key, 1))(keys)
  u = {step: value[:, 0] for step, value in u.items()}
  images = augment.make_views(u, batch["image"], view)
  return _embed(model, whole, variables, images, batch)


def _embed(model, whole, variables, images, batch):
  """The layers of images [N, H, W, C] or [N, V, H, W, C], with their bookkeeping."""
  *lead, height, width, channels = images.shape
  images = images.reshape(-1, height, width, channels)
  # A TPU would otherwise multiply in bfloat16, and neighbours would change.
  with jax.default_matmul_precision("float32"):
    h, hidden, z = model.apply(variables, images, method="embed")
  h, hidden, z = (x.reshape(*lead, x.shape[-1]) for x in (h, hidden, z))
  out = {
    "h": h,
    "hidden": hidden,
    "z": z,
    "labels": batch["label"],
    "ids": batch["id"],
    "mask": batch["mask"],
  }
  # Gathered, so that every process can read all of it.
  return jax.lax.with_sharding_constraint(out, whole)
