"""NT-Xent over devices, inside `jax.shard_map`: own rows against all devices' columns.

Gathered: the embeddings are gathered once and saved for backward. In the backward pass
each device fetches the log-sums and cotangents of the other rows, 2 B numbers, which is
all that the gradient of its own rows needs. Autodiff would gather the embeddings and
scatter their gradients.

Ring: blocks of rows go from device to device in a loop. (If the loop were unrolled, XLA
would merge the transfers of the forward and backward passes and keep every block.) Each
device holds three parts of the batch. The embeddings travel once forward and once
backward.

See `tiles` for the formulas. Each device computes full rows, because the transpose of a
tile would belong to another device.
"""

import functools

import jax
import jax.numpy as jnp

from ncl_jax.losses import tiles
from ncl_jax.losses.similarities import product
from ncl_jax.numerics import at_least_float32


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def row_losses(
  z: jax.Array, temperature: jax.Array, kind: tiles.Kind, axis_name: str, ring: bool
) -> jax.Array:
  """The loss [n] of this device's rows, with negatives from all devices.

  Args:
    z: [n, D] this device's rows; 2i and 2i + 1 are the views of an example.
    ring: pass the rows from device to device instead of gathering them.
  """
  return _forward(z, temperature, kind, axis_name, ring)[0]


def _forward(z, temperature, kind, axis_name, ring):
  scale = tiles.scale_of(z, temperature)
  rows = _own(z, kind, axis_name)

  def sweep(sums, columns):
    def row(i, sums):
      f = rows.features(i)

      def tile(j, sums):
        f_j = columns.features(j)
        s = tiles.similarities(f, f_j, scale, kind)
        s = tiles.once(rows, i, columns, j, s)
        if kind.bounded:
          terms = jnp.sum(jnp.exp(s - scale), axis=1)
          return tiles.add_terms(rows, sums, i, terms)
        return tiles.add(rows, sums, i, s)

      return jax.lax.fori_loop(0, columns.count, tile, sums)

    return jax.lax.fori_loop(0, rows.count, row, sums)

  sums = tiles.no_sums(z, scale, kind)
  if ring:
    everything = None

    def visit(sums, first, visiting):
      return sweep(sums, tiles.Blocks(visiting[0], kind.block, first))

    sums = _round(visit, sums, (z,), axis_name)
  else:
    everything = jax.lax.all_gather(z, axis_name, tiled=True)
    sums = sweep(sums, tiles.Blocks(everything, kind.block))
  log_sums = sums.log()
  loss = log_sums - tiles.positives(rows, scale, kind)
  return loss, (z, everything, temperature, log_sums)


def _backward(kind, axis_name, ring, residuals, c):
  z, everything, temperature, log_sums = residuals
  scale = tiles.scale_of(z, temperature)
  rows = _own(z, kind, axis_name)
  c = at_least_float32(c)

  def sweep(g, columns, column_c, column_log_sums):
    def row(i, g):
      f = rows.features(i)
      by_row = rows.take(c, i), rows.take(log_sums, i)

      def tile(j, g_i):
        f_j = columns.features(j)
        s = tiles.similarities(f, f_j, scale, kind)
        s = tiles.once(rows, i, columns, j, s)
        by_column = columns.take(column_c, j), columns.take(column_log_sums, j)
        w = tiles.weights(s, by_row, by_column, scale, kind)
        return g_i + product(w, f_j, kind.precision)

      g_i = jax.lax.fori_loop(0, columns.count, tile, jnp.zeros_like(f))
      return rows.put(g, i, rows.take(g, i) + g_i)

    return jax.lax.fori_loop(0, rows.count, row, g)

  g = jnp.zeros_like(z, scale.dtype)
  if ring:

    def visit(g, first, visiting):
      z, c, log_sums = visiting
      return sweep(g, tiles.Blocks(z, kind.block, first), c, log_sums)

    g = _round(visit, g, (z, c, log_sums), axis_name)
  else:
    both = jax.lax.all_gather(jnp.stack([c, log_sums]), axis_name, axis=1, tiled=True)
    g = sweep(g, tiles.Blocks(everything, kind.block), both[0], both[1])
  dz, dt = tiles.finish(rows, g, c, scale, kind)
  return dz.astype(z.dtype), dt.astype(temperature.dtype)


row_losses.defvjp(_forward, _backward)


def _own(z: jax.Array, kind: tiles.Kind, axis_name: str) -> tiles.Blocks:
  return tiles.Blocks(z, kind.block, jax.lax.axis_index(axis_name) * len(z))


def _round(visit, result, own, axis_name):
  """The result after the rows of every device, its own first, have visited this one.

  Args:
    visit: `visit(result, first, visiting) -> result`; `first` is the global index of
      the first visiting row.
    own: this device's rows, a tuple of arrays [n, ...].
  """
  devices, here = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
  n = len(own[0])
  ahead = [(i, (i + 1) % devices) for i in range(devices)]

  def first(hop):
    return (here - hop) % devices * n

  def body(hop, carry):
    result, visiting = carry
    # Needed only in the next turn, so the transfer overlaps with this turn's work.
    following = jax.lax.ppermute(visiting, axis_name, ahead)
    return visit(result, first(hop), visiting), following

  result, visiting = jax.lax.fori_loop(0, devices - 1, body, (result, own))
  return visit(result, first(devices - 1), visiting)
