"""NT-Xent on one device, from the upper triangle of tiles: `s_ij = s_ji`.

A tile adds to its rows' sums along one axis and to its columns' sums along the other.
This takes about 4 B^2 D operations forward and backward, including rematerialisation.
Autodiff of the plain implementation needs 6 B^2 D. See `tiles` for the formulas.
"""

import functools

import jax
import jax.numpy as jnp

from ncl_jax.losses import tiles
from ncl_jax.losses.similarities import product
from ncl_jax.numerics import at_least_float32


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def row_losses(z: jax.Array, temperature: jax.Array, kind: tiles.Kind) -> jax.Array:
  """The loss of every row, [B] float32 (float64 if `z` is).

  Rows 2n and 2n + 1 of `z` [B, D] are the views of example n, not normalised.
  """
  return _forward(z, temperature, kind)[0]


def _forward(z, temperature, kind):
  scale = tiles.scale_of(z, temperature)
  blocks = tiles.Blocks(z, kind.block)

  def row(i, sums):
    f = blocks.features(i)

    def tile(j, sums):
      s = tiles.similarities(f, blocks.features(j), scale, kind)
      s = tiles.once(blocks, i, blocks, j, s)
      if kind.bounded:
        e = jnp.exp(s - scale)
        sums = tiles.add_terms(blocks, sums, i, jnp.sum(e, axis=1))
        transposed = jnp.where(j > i, jnp.sum(e, axis=0), 0)
        return tiles.add_terms(blocks, sums, j, transposed)
      sums = tiles.add(blocks, sums, i, s)
      return tiles.add(blocks, sums, j, jnp.where(j > i, s.T, -jnp.inf))

    return jax.lax.fori_loop(i, blocks.count, tile, sums)

  start = tiles.no_sums(z, scale, kind)
  log_sums = jax.lax.fori_loop(0, blocks.count, row, start).log()
  return log_sums - tiles.positives(blocks, scale, kind), (z, temperature, log_sums)


def _backward(kind, residuals, c):
  z, temperature, log_sums = residuals
  scale = tiles.scale_of(z, temperature)
  blocks = tiles.Blocks(z, kind.block)
  c = at_least_float32(c)

  def of(i):
    return blocks.take(c, i), blocks.take(log_sums, i)

  def row(i, g):
    f = blocks.features(i)

    def tile(j, carry):
      g, g_i = carry
      f_j = blocks.features(j)
      s = tiles.similarities(f, f_j, scale, kind)
      s = tiles.once(blocks, i, blocks, j, s)
      w = tiles.weights(s, of(i), of(j), scale, kind)
      g_i += product(w, f_j, kind.precision)
      transposed = product(w.T, jnp.where(j > i, f, 0), kind.precision)
      return blocks.put(g, j, blocks.take(g, j) + transposed), g_i

    g, g_i = jax.lax.fori_loop(i, blocks.count, tile, (g, jnp.zeros_like(f)))
    return blocks.put(g, i, blocks.take(g, i) + g_i)

  g = jax.lax.fori_loop(0, blocks.count, row, jnp.zeros_like(z, scale.dtype))
  dz, dt = tiles.finish(blocks, g, c, scale, kind)
  return dz.astype(z.dtype), dt.astype(temperature.dtype).reshape(temperature.shape)


row_losses.defvjp(_forward, _backward)
