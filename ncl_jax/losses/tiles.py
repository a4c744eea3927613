"""Blocks of rows and tiles of similarities, shared by the tiled NT-Xent losses.

With `e_ij = exp(s_ij)` and `R_i = sum_{j != i} e_ij` the loss of row i is
`log R_i - s_ip`, and for cotangents c of the rows

  dL/df_i = 1/T [sum_{j != i} e_ij (c_i / R_i + c_j / R_j) f_j - (c_i + c_p) f_p].

So the backward pass needs only z and B numbers; it rematerialises the tiles. Because p
is the only positive of i and i the only positive of p, `dL/dT = -1/(2 T) sum_i f_i .
dL/df_i` needs no extra work.

Sources: the loss of Chen et al. 2020 (arXiv:2002.05709), Eq. 1; rematerialised tiles as
in Dao et al. 2022 (arXiv:2205.14135) and Cheng et al. 2024 (arXiv:2410.17243).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ncl_jax.losses.similarities import product, rounded
from ncl_jax.numerics import at_least_float32, l2_normalize

# Similarities lie within 1/T. After a shift by -1/T the smallest term is exp(-2/T),
# which float32 can represent up to this range. Then no running maximum is needed.
_LARGEST_RANGE = 85.0
NO_FORWARD_MODE = (
  "tiled nt_xent supports jax.grad and jax.hessian, not jax.jvp: leave block_size and "
  "axis_name out"
)


class Kind(NamedTuple):
  """Settings that are fixed when the loss is compiled.

  Attributes:
    block: rows of a tile; even.
    bounded: whether the constant shift 1/T suffices; if not, running maxima are used.
    precision: of the products.
  """

  block: int
  bounded: bool
  precision: str


def is_bounded(temperature: Any) -> bool:
  """Whether the constant shift 1/T suffices: T is known now and not too low."""
  known = not isinstance(temperature, jax.core.Tracer)
  return known and 2 / float(temperature) <= _LARGEST_RANGE


class Blocks:
  """Rows of z in blocks of equal size; the last block may overlap the one before.

  Attributes:
    z: [n, D].
    first: index of the first row in the whole batch.
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


class Sums(NamedTuple):
  """For each row the sum of exp(s - shift), and the shift, [n] each."""

  shift: jax.Array
  total: jax.Array

  def log(self) -> jax.Array:
    """The logarithm of the sums, without the shift."""
    return self.shift + jnp.log(self.total)


def no_sums(z: jax.Array, scale: jax.Array, kind: Kind) -> Sums:
  """The sums before any tile."""
  zero = jnp.zeros_like(z[:, 0], scale.dtype)
  return Sums(zero + (scale if kind.bounded else -jnp.inf), zero)


def scale_of(z: jax.Array, temperature: jax.Array) -> jax.Array:
  """1/T in the dtype of the loss, []."""
  return (1 / temperature).astype(at_least_float32(z[:0]).dtype).reshape(())


def similarities(
  f_i: jax.Array, f_j: jax.Array, scale: jax.Array, kind: Kind
) -> jax.Array:
  """The similarities s of all pairs of two blocks of features."""
  return product(f_i, f_j.T, kind.precision) * scale


def once(rows: Blocks, i, columns: Blocks, j, s: jax.Array) -> jax.Array:
  """Tile (i, j) with -inf on the diagonal and for pairs of an earlier tile."""
  new = rows.is_new(i)[:, None] & columns.is_new(j)[None]
  itself = rows.numbers(i)[:, None] == columns.numbers(j)[None]
  return jnp.where(new & ~itself, s, -jnp.inf)


def add(blocks: Blocks, sums: Sums, i, s: jax.Array) -> Sums:
  """Adds a tile to the sums of its rows, block i, with running maxima."""
  shift, total = blocks.take(sums.shift, i), blocks.take(sums.total, i)
  higher = jnp.maximum(shift, jnp.max(s, axis=1))
  finite = jnp.where(jnp.isfinite(higher), higher, 0)
  total *= jnp.exp(shift - finite)
  total += jnp.sum(jnp.exp(s - finite[:, None]), axis=1)
  return Sums(blocks.put(sums.shift, i, higher), blocks.put(sums.total, i, total))


def add_terms(blocks: Blocks, sums: Sums, i, terms: jax.Array) -> Sums:
  """Adds terms to the sums of block i when the shift is constant."""
  total = blocks.take(sums.total, i) + terms
  return Sums(sums.shift, blocks.put(sums.total, i, total))


def weights(
  s: jax.Array,
  by_row: tuple[jax.Array, jax.Array],
  by_column: tuple[jax.Array, jax.Array],
  scale: jax.Array,
  kind: Kind,
) -> jax.Array:
  """`e_ij (c_i / R_i + c_j / R_j)` of a tile `s`.

  `by_row` and `by_column` hold the cotangents and log R of its rows and columns.
  """
  (c_i, log_i), (c_j, log_j) = by_row, by_column
  if kind.bounded:
    c_i, c_j = c_i * jnp.exp(scale - log_i), c_j * jnp.exp(scale - log_j)
    return jnp.exp(s - scale) * (c_i[:, None] + c_j[None])
  w = c_i[:, None] * jnp.exp(s - log_i[:, None])
  return w + c_j[None] * jnp.exp(s - log_j[None])


def positives(blocks: Blocks, scale: jax.Array, kind: Kind) -> jax.Array:
  """Similarity of each row with its other view, [n]."""

  def body(i, positive):
    f = rounded(blocks.features(i), kind.precision)
    return blocks.put(positive, i, jnp.sum(f * _swap(f), axis=1) * scale)

  zero = jnp.zeros_like(blocks.z[:, 0], scale.dtype)
  return jax.lax.fori_loop(0, blocks.count, body, zero)


def finish(
  blocks: Blocks, g: jax.Array, c: jax.Array, scale: jax.Array, kind: Kind
) -> tuple[jax.Array, jax.Array]:
  """Turns the sums over j into the gradients of z and T, block by block.

  Args:
    g: [n, D] the sums in the formula above.
    c: [n] cotangents.

  Returns:
    dL/dz [n, D], and these rows' part of dL/dT, [].
  """

  def body(i, carry):
    g, along = carry
    f, unscale = jax.vjp(l2_normalize, blocks.take(blocks.z, i))
    f = rounded(f, kind.precision)
    c_i = blocks.take(c, i)
    old = blocks.take(g, i)
    df = scale * (old - (c_i + _swap(c_i))[:, None] * _swap(f))
    new = blocks.is_new(i)
    along += jnp.sum(jnp.where(new, jnp.sum(f * df, axis=1), 0))
    (dz,) = unscale(df)
    return blocks.put(g, i, jnp.where(new[:, None], dz.astype(g.dtype), old)), along

  along = jnp.zeros_like(g, shape=())
  g, along = jax.lax.fori_loop(0, blocks.count, body, (g, along))
  return g, -along * scale / 2


def _swap(x: jax.Array) -> jax.Array:
  """Rows 2n and 2n + 1 exchanged: each row's other view."""
  return x.reshape(-1, 2, *x.shape[1:])[:, ::-1].reshape(x.shape)
