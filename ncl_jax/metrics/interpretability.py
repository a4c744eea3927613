"""Statistics without labels: sparsity and correlation of feature dimensions.

`f` is [N, D]: features after the transform, with L2-normalised rows unless said
otherwise. `where` [N] marks the rows that count, for batches padded to a fixed size;
None = all. Entries of absolute value up to `threshold` count as zero. Undefined values
(no row, no active dimension) are NaN. All functions refuse NaN and infinity in a row
that counts. Under `jax.jit` values cannot be checked, and such an entry makes the
affected part of the result NaN. Integer and boolean results cannot be NaN: see `l0`,
`active_dimensions` and `num_zero_rows`.

Definitions without a source are those of Wang et al. 2024 (arXiv:2403.12459), Section
5, with the thresholds of the released code.
"""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.rows import counted, nan_unless
from ncl_jax.numerics import entropy, l2_normalize, on_any_mesh, undefined_is_nan

Array = jax.typing.ArrayLike


@on_any_mesh()
def sparsity(
  f: Array, threshold: float = 1e-5, *, where: Array | None = None
) -> jax.Array:
  """Fraction of zeros: the mean over samples of `share(|f| < threshold)`.

  Returns:
    [] in 0..1.

  Raises:
    InputError: wrong shape, or a threshold that is no number.

  >>> float(sparsity(jnp.eye(4)))
  0.75
  """
  threshold = checks.number("threshold", threshold)
  f, valid = counted(f, where)
  share = jnp.mean(jnp.abs(f) < threshold, axis=1, dtype=f.dtype)
  share = jnp.sum(jnp.where(valid, share, 0)) / jnp.sum(valid, dtype=f.dtype)
  return nan_unless(jnp.all(jnp.isfinite(f)), share)


@on_any_mesh(rows="f")
def l0(f: Array, threshold: float = 1e-5, *, where: Array | None = None) -> jax.Array:
  """Number of active dimensions of each sample: `#(d: |f_nd| > threshold)`.

  Args:
    threshold: entries not above it in absolute value count as zero.
    where: [N] rows to count, the others get 0; None = all.

  Returns:
    [N] int32; -1 for a row with NaN or infinity that `jax.jit` hides.

  Raises:
    InputError: wrong shape, or a threshold that is no number.

  >>> l0(jnp.array([[1.0, 0.5], [0.0, -2.0], [0.0, 0.0]])).tolist()
  [2, 1, 0]
  """
  threshold = checks.number("threshold", threshold)
  f, _ = counted(f, where)
  active = jnp.sum(jnp.abs(f) > threshold, axis=1, dtype=jnp.int32)
  return jnp.where(jnp.all(jnp.isfinite(f), axis=1), active, -1)


@on_any_mesh()
def active_dimensions(
  f: Array, threshold: float = 1e-5, *, where: Array | None = None
) -> jax.Array:
  """Whether each dimension is ever active: `any_n |f_nd| > threshold`.

  Returns:
    [D] bool. Under `jax.jit` a dimension with NaN is not active, with infinity it is.

  Raises:
    InputError: wrong shape, or a threshold that is no number.

  >>> active_dimensions(jnp.array([[1.0, 0.0], [0.0, 0.0]])).tolist()
  [True, False]
  """
  threshold = checks.number("threshold", threshold)
  f, _ = counted(f, where)
  return jnp.any(jnp.abs(f) > threshold, axis=0)


@on_any_mesh()
def num_zero_rows(f: Array, *, where: Array | None = None) -> jax.Array:
  """Number of all-zero rows: samples for which every dimension is exactly 0.

  Returns:
    [] int32; a row with NaN or infinity is not counted, also under `jax.jit`.

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

  0 means orthogonal. As in the released code, the mean covers all entries, including
  the zeros on the diagonal. A dimension is active if any entry is not exactly 0.

  Returns:
    [] in 0..1; NaN without an active dimension.

  Raises:
    InputError: wrong shape.

  >>> float(orthogonality(jnp.eye(4)))
  0.0
  """
  f, _ = counted(f, where)
  active = jnp.any(f != 0, axis=0)
  error = jnp.abs(correlation(f) - jnp.diag(active.astype(f.dtype)))
  with undefined_is_nan():
    return jnp.sum(error) / jnp.sum(active, dtype=f.dtype) ** 2


@on_any_mesh()
def spectral_entropy(f: Array, *, where: Array | None = None) -> jax.Array:
  """Entropy of the normalised singular values: `-sum p log p`, `p = s / sum s`.

  They are computed from the triangular factor of `f`, with min(N, D) rows and columns.
  Eigenvalues of the Gram matrix would square the spectrum; in float32 their noise
  alone changes the entropy of collapsed features by several per cent.

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

  For each dimension, with A and B the images that activate it in the first and second
  view: the Jaccard index `|A and B| / |A or B|`. Features that are never 0 score 1 by
  construction, so compare with shuffled rows of one view.

  Returns:
    [D] in 0..1; NaN where neither view ever activates the dimension.

  Raises:
    InputError: wrong shape, or a threshold that is no number.

  >>> view_agreement(jnp.array([[1.0], [1.0]]), jnp.array([[0.0], [1.0]])).tolist()
  [0.5]
  """
  threshold = checks.number("threshold", threshold)
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
