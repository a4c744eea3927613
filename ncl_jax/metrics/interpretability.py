"""Statistics without labels: how sparse and how correlated feature dimensions are.

`f` is [N, D]: features after the transform, with L2-normalised rows unless said
otherwise. `where` is [N]: rows to count (True), for batches padded to a fixed size.
What is undefined (no row, no active dimension) is NaN. All functions refuse NaN and
infinity in a row that counts. They work under `jax.jit`, where values cannot be seen:
there the row, the dimension or the whole result that such an entry reaches is NaN. A
whole number or a truth value cannot be: see `l0`, `live_dimensions` and
`num_zero_rows`.

Source of all definitions not cited at their place: Wang et al. 2024 (arXiv:2403.12459),
Section 5, with the thresholds of the released code.
"""

import jax
import jax.numpy as jnp

from ncl_jax.errors import InputError
from ncl_jax.metrics.rows import counted, nan_unless
from ncl_jax.numerics import entropy, l2_normalize, on_any_mesh, undefined_is_nan

Array = jax.typing.ArrayLike


@on_any_mesh()
def sparsity(
  f: Array, threshold: float = 1e-5, *, where: Array | None = None
) -> jax.Array:
  """Share of entries that are zero: mean over samples of `share(|f| < threshold)`.

  Args:
    f: [N, D] features.
    threshold: entries below it in absolute value count as zero.
    where: [N] rows to count; None = all.

  Returns:
    [] in 0..1.

  Raises:
    InputError: wrong shape.

  >>> float(sparsity(jnp.eye(4)))
  0.75
  """
  f, valid = counted(f, where)
  share = jnp.mean(jnp.abs(f) < threshold, axis=1, dtype=f.dtype)
  share = jnp.sum(jnp.where(valid, share, 0)) / jnp.sum(valid, dtype=f.dtype)
  return nan_unless(jnp.all(jnp.isfinite(f)), share)


@on_any_mesh(rows="f")
def l0(f: Array, threshold: float = 1e-5, *, where: Array | None = None) -> jax.Array:
  """Number of active dimensions of each sample: `#(d: |f_nd| > threshold)`.

  Args:
    f: [N, D] features.
    threshold: entries not above it in absolute value count as zero.
    where: [N] rows to count, the others get 0; None = all.

  Returns:
    [N] int32; -1 for a row with NaN or infinity that `jax.jit` hides.

  Raises:
    InputError: wrong shape.

  >>> l0(jnp.array([[1.0, 0.5], [0.0, -2.0], [0.0, 0.0]])).tolist()
  [2, 1, 0]
  """
  f, _ = counted(f, where)
  active = jnp.sum(jnp.abs(f) > threshold, axis=1, dtype=jnp.int32)
  return jnp.where(jnp.all(jnp.isfinite(f), axis=1), active, -1)


@on_any_mesh()
def active_dimensions(
  f: Array, threshold: float = 1e-5, *, where: Array | None = None
) -> jax.Array:
  """Tells which dimensions are ever active: `any_n |f_nd| > threshold`.

  Args:
    f: [N, D] features.
    threshold: entries not above it in absolute value count as zero.
    where: [N] rows to count; None = all.

  Returns:
    [D] bool; NaN that `jax.jit` hides is not active, infinity is.

  Raises:
    InputError: wrong shape.

  >>> active_dimensions(jnp.array([[1.0, 0.0], [0.0, 0.0]])).tolist()
  [True, False]
  """
  f, _ = counted(f, where)
  return jnp.any(jnp.abs(f) > threshold, axis=0)


@on_any_mesh()
def num_zero_rows(f: Array, *, where: Array | None = None) -> jax.Array:
  """Counts the samples that a transform has emptied: every dimension exactly 0.

  Args:
    f: [N, D] features.
    where: [N] rows to count; None = all.

  Returns:
    [] int32; under `jax.jit`, too, a row with NaN or infinity is not empty.

  Raises:
    InputError: wrong shape.

  >>> int(num_zero_rows(jnp.array([[1.0, 0.0], [0.0, 0.0]])))
  1
  """
  f, valid = counted(f, where)
  return jnp.sum(valid & jnp.all(f == 0, axis=1), dtype=jnp.int32)


@on_any_mesh()
def correlation(f: Array, *, where: Array | None = None) -> jax.Array:
  """Correlation of dimensions: `C = F~^T F~`, unit-norm columns, not centred.

  Args:
    f: [N, D] features.
    where: [N] rows to count; None = all.

  Returns:
    [D, D]; rows and columns of all-zero dimensions are 0, the diagonal included.

  Raises:
    InputError: wrong shape.

  >>> correlation(jnp.array([[3.0, 3.0], [4.0, -4.0]])).round(2).tolist()
  [[1.0, -0.2800000011920929], [-0.2800000011920929, 1.0]]
  """
  f, _ = counted(f, where)
  unit = l2_normalize(f, axis=0)
  return jnp.matmul(unit.T, unit, precision="highest")


@on_any_mesh()
def orthogonality(f: Array, *, where: Array | None = None) -> jax.Array:
  """Mean correlation of active dimensions: mean of `|C - I|`, C = `correlation(f)`.

  0 is orthogonal. As in the released code the mean runs over all entries, the zeros of
  the diagonal included, and a dimension is live if any entry is not exactly 0.

  Args:
    f: [N, D] features.
    where: [N] rows to count; None = all.

  Returns:
    [] in 0..1; NaN without an active dimension.

  Raises:
    InputError: wrong shape.

  >>> float(orthogonality(jnp.eye(4)))
  0.0
  """
  f, _ = counted(f, where)
  live = jnp.any(f != 0, axis=0)
  error = jnp.abs(correlation(f) - jnp.diag(live.astype(f.dtype)))
  with undefined_is_nan():
    return jnp.sum(error) / jnp.sum(live, dtype=f.dtype) ** 2


@on_any_mesh()
def spectral_entropy(f: Array, *, where: Array | None = None) -> jax.Array:
  """Entropy of the normalised singular values: `-sum p log p`, `p = s / sum s`.

  The singular values are those of the triangular factor of `f`, whose side is
  min(N, D). The eigenvalues of the Gram matrix would square the spectrum: in float32
  their noise alone moves the entropy of collapsed features by several per cent.

  Args:
    f: [N, D] features.
    where: [N] rows to count; None = all.

  Returns:
    [] in nats, 0..log(min(N, D)); NaN if all features are 0.

  Raises:
    InputError: wrong shape.

  Source: the statistic that the released code logs as effective rank.

  >>> print(spectral_entropy(jnp.eye(4)).round(3))
  1.386
  """
  f, _ = counted(f, where)
  tall = f if f.shape[0] >= f.shape[1] else f.T
  s = jnp.linalg.svd(jnp.linalg.qr(tall, mode="r"), compute_uv=False)
  with undefined_is_nan():
    return entropy(s / jnp.sum(s))


@on_any_mesh()
def effective_rank(f: Array, *, where: Array | None = None) -> jax.Array:
  """Number of directions in use: the exponential of `spectral_entropy`.

  Args:
    f: [N, D] features.
    where: [N] rows to count; None = all.

  Returns:
    [] in 1..min(N, D); NaN if all features are 0.

  Raises:
    InputError: wrong shape.

  Source: Roy & Vetterli 2007, The effective rank: a measure of effective
  dimensionality.

  >>> print(effective_rank(jnp.eye(4)).round(3))
  4.0
  """
  with undefined_is_nan():
    return jnp.exp(spectral_entropy(f, where=where))


@on_any_mesh()
def expected_activation(f: Array, *, where: Array | None = None) -> jax.Array:
  """Mean activation of each dimension: `EA_d = mean_n f_nd / |f_n|`.

  Ranks dimensions for feature selection: keep the largest.

  Args:
    f: [N, D] features; rows are normalised here, all-zero ones stay zero.
    where: [N] rows to count; None = all.

  Returns:
    [D].

  Raises:
    InputError: wrong shape.

  >>> expected_activation(jnp.array([[2.0, 0.0], [0.0, 0.0]])).tolist()
  [0.5, 0.0]
  """
  f, valid = counted(f, where)
  return jnp.sum(l2_normalize(f), axis=0) / jnp.sum(valid, dtype=f.dtype)


@on_any_mesh()
def view_agreement(
  f_a: Array, f_b: Array, threshold: float = 1e-5, *, where: Array | None = None
) -> jax.Array:
  """Whether two views of an image activate the same dimensions; needs no labels.

  Of each dimension, the images that activate it in both views as a share of those that
  do in at least one: `|A and B| / |A or B|`, the Jaccard index. Features that are never
  0 have 1 by construction: compare with shuffled rows of one view.

  Args:
    f_a: [N, D] features of one view.
    f_b: [N, D] of another view of the same images.
    threshold: entries not above it in absolute value count as zero.
    where: [N] rows to count; None = all.

  Returns:
    [D] in 0..1; NaN where neither view ever activates the dimension.

  Raises:
    InputError: wrong shape.

  >>> view_agreement(jnp.array([[1.0], [1.0]]), jnp.array([[0.0], [1.0]])).tolist()
  [0.5]
  """
  f_a, _ = counted(f_a, where)
  f_b, _ = counted(f_b, where)
  if f_a.shape != f_b.shape:
    raise InputError(
      f"f_a has shape {list(f_a.shape)} and f_b {list(f_b.shape)}: they must be two "
      "views of the same images"
    )
  a, b = jnp.abs(f_a) > threshold, jnp.abs(f_b) > threshold
  both, either = jnp.sum(a & b, axis=0), jnp.sum(a | b, axis=0)
  with undefined_is_nan():
    share = (both / either).astype(f_a.dtype)  # 0 / 0 is NaN
  return nan_unless(jnp.all(jnp.isfinite(f_a) & jnp.isfinite(f_b), axis=0), share)
