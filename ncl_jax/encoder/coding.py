"""Computes codes with a trained network, decodes them, and measures them."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import scipy.sparse

from ncl_jax import numerics
from ncl_jax.encoder.autoencoder import Autoencoder
from ncl_jax.encoder.scaling import BLOCK, Scaling, some
from ncl_jax.errors import InputError

Params = dict[str, np.ndarray]


def codes(
  X: np.ndarray, params: Params, network: Autoencoder, scaling: Scaling, unit: bool
) -> Iterator[np.ndarray]:
  """Yields the codes [B, D] of embeddings [N, E], `unit`: of unit length.

  Raises:
    InputError: if a code is not finite.
  """
  on_device = jax.device_put(params)
  for block in some(X):
    padded = np.zeros((BLOCK, X.shape[1]), np.float32)
    padded[: len(block)] = scaling(block)
    found = encode_scaled(on_device, padded, network, unit)
    yield finite(np.asarray(found)[: len(block)])


def finite(found: np.ndarray) -> np.ndarray:
  """The codes [N, D], or an InputError if one is not finite."""
  if bad := np.count_nonzero(~np.isfinite(found).all(1)):
    raise InputError(
      f"{bad} of {len(found)} codes hold NaN or infinity: their embeddings are too "
      "large for float32, or the encoder's parameters are not finite"
    )
  return found


def stacked(blocks: Iterator[np.ndarray]) -> scipy.sparse.csr_array:
  """The blocks one below the other, as a sparse array."""
  parts = [scipy.sparse.csr_array(block) for block in blocks]
  return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))


def decoder(params: Params) -> np.ndarray:
  """[D, E], the encoder transposed unless it is free."""
  return params.get("decoder", params["kernel"].T)


def decoded(params: Params, z: Any) -> np.ndarray:
  """Scaled embeddings [N, E] of codes that were not normalised, dense or sparse."""
  return z @ decoder(params) + params["pre_bias"]


def measured(
  X: np.ndarray, params: Params, network: Autoencoder, scaling: Scaling
) -> tuple[np.ndarray, float]:
  """(mean of each column of the normalised codes [D], share of variance explained)."""
  activation, error, square = np.zeros(network.out), 0.0, 0.0
  found = codes(X, params, network, scaling, False)
  for block, z in zip(some(X), found, strict=True):
    length = np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-30)
    activation += np.sum(z / length, axis=0, dtype=np.float64)
    x = np.float64(scaling(block))
    error += np.sum((decoded(params, z) - x) ** 2)
    square += np.sum(x**2)
  return activation / len(X), float(1 - error / square)


@functools.partial(jax.jit, static_argnums=(2, 3))
def encode_scaled(
  params: Any, x: jax.Array, network: Autoencoder, unit: bool
) -> jax.Array:
  """Codes [N, D] of scaled embeddings [N, E]."""
  # Accelerators would otherwise multiply in lower precision, which changes neighbours.
  with jax.default_matmul_precision("float32"):
    found = network.codes(params, x)
  return numerics.l2_normalize(found) if unit else found
