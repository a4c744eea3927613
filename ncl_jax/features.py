"""Computes the features of a split, each image exactly once."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ncl_jax import augment, checks, models, nonneg, numerics
from ncl_jax.data.source import Source
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
    FloatingPointError: if a layer holds NaN or infinity; names the layer and the number
      of images.
  """

  h: np.ndarray
  hidden: np.ndarray
  z: np.ndarray
  labels: np.ndarray
  ids: np.ndarray

  def __post_init__(self) -> None:
    """Refuses features that are not finite."""
    for name in ("h", "hidden", "z"):
      check_finite(name, getattr(self, name), self.ids)

  def layer(self, name: str, transform: str) -> np.ndarray:
    """One layer as evaluators use it, [N, width] float32.

    Args:
      name: "h", "hidden", "z", or "f" = z after the transform, rows of unit length.

    Raises:
      InputError: for another name.
      FloatingPointError: if the transform of z is NaN or infinite, as "exp" is above
        88.
    """
    checks.choice("layer", name, ("h", "hidden", "z", "f"))
    if name == "f":
      f = np.asarray(embed(self.z, transform))
      check_finite(f"f = {transform}(z)", f, self.ids)
      return f
    return getattr(self, name)


def check_finite(
  name: str, x: np.ndarray, ids: Sequence[int] | np.ndarray, of: str = "image"
) -> None:
  """Raises a FloatingPointError that names the layer and the first image or text."""
  # The sum is NaN or infinite if any entry is, and needs no copy.
  with np.errstate(over="ignore", invalid="ignore"):
    if np.isfinite(x.sum()):
      return
  bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))
  if bad.size:
    raise FloatingPointError(
      f"the features {name} of {len(bad)} of {len(x)} {of}s hold NaN or infinity, "
      f"first of {of} {ids[bad[0]]}: nothing is measured. Use an earlier checkpoint, "
      "or train again with a lower learning rate or a higher temperature"
    )


@functools.partial(jax.jit, static_argnames="transform")
def embed(z: jax.typing.ArrayLike, transform: str) -> jax.Array:
  """The features that the loss compares: the transform of `z`, rows of unit length.

  All-zero rows stay zero.
  """
  return numerics.l2_normalize(nonneg.apply(z, transform))


@dataclasses.dataclass(frozen=True)
class Network:
  """A network, and how images are passed through it.

  Attributes:
    view: for `augment.eval_view`; for random views, for `augment.make_views`.
    batch_size: images at a time; rounded up to a multiple of the devices. The last
      batch is padded and masked, so the result does not depend on the batch size.
  """

  model: models.ContrastiveModel | models.TwoTowers
  view: augment.AugmentConfig
  mesh: Mesh
  batch_size: int


def extract(variables: Any, source: Source, split: str, network: Network) -> Features:
  """Runs the network in evaluation mode over a split; every process gets all features.

  Args:
    variables: {"params", "batch_stats"}, replicated over the mesh or on the host.
  """
  return Features(**_collect(_forward, variables, source, split, network))


def extract_two_views(
  variables: Any, source: Source, split: str, network: Network, *, seed: int
) -> tuple[Features, Features]:
  """Like `extract`, for two random views of each image as in training.

  An image's views depend only on `seed` and on its position in the split.

  Returns:
    Features of all first views and of all second views, rows in the same order.
  """
  forward = functools.partial(_forward_two, key=numerics.key(seed))
  columns = _collect(forward, variables, source, split, network)
  one, other = (
    Features(**columns | {name: columns[name][:, v] for name in ("h", "hidden", "z")})
    for v in (0, 1)
  )
  return one, other


def attention(
  variables: Any, source: Source, split: str, network: Network
) -> np.ndarray:
  """Like `extract`, the last layer's attention to each patch (`vit.attention`).

  Args:
    network: a vision transformer.

  Returns:
    [N, heads, rows, columns] float32, over the patches of the evaluation view.
  """
  maps = _collect(_attention, variables, source, split, network)["attention"]
  check_finite("attention", maps, range(len(maps)))
  return maps


def without_probe(variables: Any) -> dict[str, Any]:
  """The variables of a network without the online probe, which is no part of it."""
  params = {k: v for k, v in variables["params"].items() if k != "probe"}
  return {"params": params, "batch_stats": variables["batch_stats"]}


def _collect(
  forward: Callable[..., Any],
  variables: Any,
  source: Source,
  split: str,
  network: Network,
) -> dict[str, Any]:
  """The outputs of `forward` over a split, without padding rows."""
  mesh = network.mesh
  batch_size = sharding_lib.pad_to_devices(mesh, network.batch_size)
  variables = jax.device_put(without_probe(variables), sharding_lib.replicated(mesh))
  parts = []
  own = sharding_lib.process_rows(mesh, batch_size)
  for batch in source.eval_batches(split, batch_size, own):
    rows = sharding_lib.to_global(mesh, batch)
    parts.append(jax.device_get(forward(network, variables, rows)))
  columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
  mask = columns.pop("mask")
  return {key: column[mask] for key, column in columns.items()}


@functools.partial(jax.jit, static_argnums=0)
def _forward(network, variables, batch):
  images = augment.eval_view(batch["image"], network.view)
  return _embed(network, variables, images, batch)


@functools.partial(jax.jit, static_argnums=0)
def _attention(network, variables, batch):
  images = augment.eval_view(batch["image"], network.view)
  backbone = network.model.backbone
  maps = vit.attention(backbone, variables["params"]["backbone"], images)
  return _replicated(network, {"attention": maps, "mask": batch["mask"]})


@functools.partial(jax.jit, static_argnums=0)
def _forward_two(network, variables, batch, *, key):
  # One key per image, so that its views do not depend on the batch.
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["id"])
  u = jax.vmap(lambda key: augment.view_parameters(key, 1))(keys)
  u = {step: value[:, 0] for step, value in u.items()}
  images = augment.make_views(u, batch["image"], network.view)
  return _embed(network, variables, images, batch)


def _embed(network, variables, images, batch):
  """The layers, labels, ids and mask of images [N, H, W, C] or [N, V, H, W, C]."""
  *lead, height, width, channels = images.shape
  images = images.reshape(-1, height, width, channels)
  # A TPU would otherwise multiply in bfloat16, which changes nearest neighbours.
  with jax.default_matmul_precision("float32"):
    layers = network.model.apply(variables, images, method="embed")
  h, hidden, z = (x.reshape(*lead, x.shape[-1]) for x in layers)
  out = {"h": h, "hidden": hidden, "z": z, "mask": batch["mask"]}
  return _replicated(network, out | {"labels": batch["label"], "ids": batch["id"]})


def _replicated(network, columns):
  """So that every process can read all rows."""
  whole = sharding_lib.replicated(network.mesh)
  return jax.lax.with_sharding_constraint(columns, whole)
