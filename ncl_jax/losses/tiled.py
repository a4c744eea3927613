"""NT-Xent in tiles of similarities: on one device, or inside `jax.shard_map`.

With `e_ij = exp(s_ij)` and `R_i = sum_{j != i} e_ij` the loss of row i is
`log R_i - s_ip`, and for cotangents c of the rows

  dL/df_i = 1/T [sum_{j != i} e_ij (c_i / R_i + c_j / R_j) f_j - (c_i + c_p) f_p].

So the backward pass needs only z and B numbers; it rematerialises the tiles. Because p
is the only positive of i and i the only positive of p, `dL/dT = -1/(2 T) sum_i f_i .
dL/df_i` needs no extra work.

Each device computes its own rows against the columns of all devices. Gathered: the
embeddings are gathered once and saved for backward, which gathers only c and log R.
Autodiff would gather the embeddings and scatter their gradients. Ring: the embeddings
go from device to device, once forward and once backward, so that each device holds
three parts of the batch.

Sources: the loss of Chen et al. 2020 (arXiv:2002.05709), Eq. 1; rematerialised tiles as
in Dao et al. 2022 (arXiv:2205.14135) and Cheng et al. 2024 (arXiv:2410.17243).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ncl_jax.losses.similarities import product, rounded
from ncl_jax.numerics import at_least_float32, l2_normalize

# Similarity of a pair that does not count: exp gives 0, as for -inf, but derivatives of
# logarithms of sums without any pair stay finite.
_NONE = -1e30


class Tiling(NamedTuple):
  """How the loss is computed; `axis_name` and `ring` as in `nt_xent`.

  Attributes:
    block: rows of a tile; even.
    precision: of the products.
  """

  block: int
  precision: str
  axis_name: str | None
  ring: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def row_losses(z: jax.Array, temperature: jax.Array, tiling: Tiling) -> jax.Array:
  """The loss [n] of this device's rows `z` [n, D], with negatives from all devices.

  Rows 2i and 2i + 1 are the views of an example.
  """
  return _forward(z, temperature, tiling)[0]


def _forward(z, temperature, tiling):
  scale = _scale(z, temperature)
  rows = _own(z, tiling)

  def sweep(log_sums, columns, _):
    def row(i, log_sums):
      f = rows.features(i)

      def tile(j, log_sum):
        s = _similarities(rows, i, f, columns, j, columns.features(j), scale, tiling)
        return jnp.logaddexp(log_sum, jax.nn.logsumexp(s, axis=1))

      log_sum = jax.lax.fori_loop(0, columns.count, tile, rows.take(log_sums, i))
      return rows.put(log_sums, i, log_sum)

    return jax.lax.fori_loop(0, rows.count, row, log_sums)

  def positives(i, positive):
    f = rounded(rows.features(i), tiling.precision)
    return rows.put(positive, i, jnp.sum(f * _swap(f), axis=1) * scale)

  none = jnp.full_like(z[:, 0], _NONE, scale.dtype)
  columns = _gathered(z, tiling)
  log_sums = _over_columns(sweep, none, (columns,), tiling)
  positive = jax.lax.fori_loop(0, rows.count, positives, jnp.zeros_like(log_sums))
  return log_sums - positive, (z, columns, temperature, log_sums)


def _backward(tiling, residuals, c):
  z, columns, temperature, log_sums = residuals
  scale = _scale(z, temperature)
  rows = _own(z, tiling)
  c = at_least_float32(c)

  def sweep(g, columns, numbers):
    def row(i, g):
      f = rows.features(i)
      c_i, log_i = rows.take(c, i)[:, None], rows.take(log_sums, i)[:, None]

      def tile(j, g_i):
        f_j = columns.features(j)
        c_j, log_j = (columns.take(x, j)[None] for x in numbers)
        s = _similarities(rows, i, f, columns, j, f_j, scale, tiling)
        weights = c_i * jnp.exp(s - log_i) + c_j * jnp.exp(s - log_j)
        return g_i + product(weights, f_j, tiling.precision)

      return rows.put(g, i, jax.lax.fori_loop(0, columns.count, tile, rows.take(g, i)))

    return jax.lax.fori_loop(0, rows.count, row, g)

  def finish(i, carry):
    """Turns the sums over j of block i into its gradient."""
    g, along = carry
    f, unscale = jax.vjp(l2_normalize, rows.take(z, i))
    f = rounded(f, tiling.precision)
    c_i, old, new = rows.take(c, i), rows.take(g, i), rows.is_new(i)[:, None]
    df = scale * (old - (c_i + _swap(c_i))[:, None] * _swap(f))
    (dz,) = unscale(df)
    g = rows.put(g, i, jnp.where(new, dz.astype(g.dtype), old))
    return g, along + jnp.sum(jnp.where(new, f * df, 0))

  g = jnp.zeros_like(z, scale.dtype)
  numbers = _gathered((c, log_sums), tiling)
  g = _over_columns(sweep, g, (columns, *numbers), tiling)
  along = jnp.zeros_like(g, shape=())
  g, along = jax.lax.fori_loop(0, rows.count, finish, (g, along))
  return g.astype(z.dtype), (-along * scale / 2).astype(temperature.dtype)


row_losses.defvjp(_forward, _backward)


class _Blocks:
  """Rows `z` [n, D] in blocks of equal size; the last may overlap the one before.

  `first` is the index of the first row in the whole batch.
  """

  def __init__(self, z: jax.Array, block: int, first: Any = 0):
    self.z, self.block, self.first = z, min(block, len(z)), first
    self.count = -(-len(z) // self.block)

  def start(self, i) -> Any:
    """First row of block i."""
    return jnp.minimum(i * self.block, len(self.z) - self.block)

  def take(self, x: jax.Array, i) -> jax.Array:
    """The entries of block i of an array [n, ...]."""
    return jax.lax.dynamic_slice_in_dim(x, self.start(i), self.block)

  def put(self, x: jax.Array, i, value: jax.Array) -> jax.Array:
    """The array with the entries of block i replaced."""
    return jax.lax.dynamic_update_slice_in_dim(x, value, self.start(i), 0)

  def features(self, i) -> jax.Array:
    """The normalised rows of block i, [block, D]."""
    return l2_normalize(self.take(self.z, i))

  def is_new(self, i) -> jax.Array:
    """Whether each row of block i is in no earlier block, [block]."""
    return self.start(i) + jnp.arange(self.block) >= i * self.block

  def numbers(self, i) -> jax.Array:
    """Indices of the rows of block i in the whole batch, [block]."""
    return self.first + self.start(i) + jnp.arange(self.block)


def _own(z, tiling):
  here = jax.lax.axis_index(tiling.axis_name) if tiling.axis_name else 0
  return _Blocks(z, tiling.block, here * len(z))


def _similarities(rows, i, f_i, columns, j, f_j, scale, tiling):
  """Tile (i, j), with `_NONE` on the diagonal and for pairs of an earlier tile."""
  s = product(f_i, f_j.T, tiling.precision) * scale
  new = rows.is_new(i)[:, None] & columns.is_new(j)[None]
  itself = rows.numbers(i)[:, None] == columns.numbers(j)[None]
  return jnp.where(new & ~itself, s, _NONE)


def _gathered(arrays, tiling):
  """The arrays of all devices, unless they stay where they are."""
  if tiling.axis_name is None or tiling.ring:
    return arrays
  return jax.lax.all_gather(arrays, tiling.axis_name, tiled=True)


def _over_columns(sweep, result, columns, tiling):
  """`sweep(result, blocks of z, the other arrays)` over all columns.

  In a ring these are the columns of one device after the other, its own first. The loop
  is not unrolled: XLA would merge the transfers of the forward and backward passes and
  keep every device's columns.
  """

  def visit(result, first, columns):
    z, *numbers = columns
    return sweep(result, _Blocks(z, tiling.block, first), numbers)

  if not tiling.ring:
    return visit(result, 0, columns)
  axis, n = tiling.axis_name, len(columns[0])
  devices, here = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
  ahead = [(i, (i + 1) % devices) for i in range(devices)]

  def first(hop):
    return (here - hop) % devices * n

  def body(hop, carry):
    result, visiting = carry
    # Needed only in the next turn, so the transfer overlaps with this turn's work.
    following = jax.lax.ppermute(visiting, axis, ahead)
    return visit(result, first(hop), visiting), following

  result, visiting = jax.lax.fori_loop(0, devices - 1, body, (result, columns))
  return visit(result, first(devices - 1), visiting)


def _scale(z, temperature):
  """1/T in the dtype of the loss, []."""
  return (1 / temperature).astype(at_least_float32(z[:0]).dtype)


def _swap(x):
  """Rows 2n and 2n + 1 exchanged: each row's other view."""
  return x.reshape(-1, 2, *x.shape[1:])[:, ::-1].reshape(x.shape)
