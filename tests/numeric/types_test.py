"""Settings, masks and images of any type of number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from numeric_functions import DTYPES, IMAGES, LAYOUTS, N, draw

from ncl_jax import augment, losses, metrics, optimizers
from ncl_jax.errors import InputError

FEATURES = np.arange(12.0, dtype=np.float32).reshape(4, 3)
VIEWS = FEATURES.reshape(2, 2, 3)
# Functions of a number.
SETTINGS = {
  "nt_xent": lambda x: losses.nt_xent(VIEWS, temperature=x),
  "nt_xent, tiled": lambda x: losses.nt_xent(VIEWS, temperature=x, block_size=2),
  "sup_con": lambda x: losses.sup_con(VIEWS, [0, 1], temperature=x),
  "supervised_nt_xent": lambda x: losses.supervised_nt_xent(
    VIEWS, [0, 1], temperature=x
  ),
  "clip": lambda x: losses.clip(FEATURES, FEATURES, temperature=x),
  "moco_v3": lambda x: losses.moco_v3(VIEWS, VIEWS, temperature=x),
  "barlow_twins": lambda x: losses.barlow_twins(FEATURES, FEATURES, off_diagonal=x),
  "vicreg": lambda x: losses.vicreg(FEATURES, FEATURES, variance=x),
  "dino": lambda x: losses.dino(VIEWS, VIEWS, np.zeros(3), teacher_temperature=x),
  "dino_centre": lambda x: losses.dino_centre(np.zeros(3), VIEWS, momentum=x),
  "scores": lambda x: losses.scores(FEATURES, FEATURES, scale=x),
  "cross_entropy": lambda x: losses.cross_entropy(
    FEATURES, FEATURES, [0, 1, 2, 3], label_smoothing=x
  ),
  "sepin": lambda x: metrics.sepin(FEATURES, FEATURES, temperature=x),
  "knn_scores": lambda x: metrics.knn_scores(
    FEATURES, [0, 1, 1, 0], FEATURES, 2, 2, temperature=x
  ),
  "purity": lambda x: metrics.purity(FEATURES, [0, 1, 1, 0], 2, x),
  "sparsity": lambda x: metrics.sparsity(FEATURES, x),
  "l0": lambda x: metrics.l0(FEATURES, x),
  "active_dimensions": lambda x: metrics.active_dimensions(FEATURES, x),
  "view_agreement": lambda x: metrics.view_agreement(FEATURES, FEATURES, x),
  "class_consistency": lambda x: metrics.class_consistency(
    FEATURES, [0, 1, 1, 0], 2, threshold=x
  )[0],
  "consistency_at_matched_rates": lambda x: metrics.consistency_at_matched_rates(
    FEATURES, FEATURES, [0, 1, 1, 0], 2, threshold=x, minimum=1
  )[0],
  "gaussian_blur": lambda x: augment.gaussian_blur(VIEWS[None], np.ones(1), x),
  "lars": lambda x: of_an_update(optimizers.lars(x, weight_decay=x, momentum=x)),
  "sgd": lambda x: of_an_update(optimizers.sgd(x, weight_decay=x, momentum=x)),
  "adamw": lambda x: of_an_update(optimizers.adamw(x, weight_decay=x)),
  "warmup_cosine": lambda x: optimizers.warmup_cosine(
    1.0, warmup_steps=2, total_steps=4, start=x, end=x
  )(0),
  "step_decay": lambda x: optimizers.step_decay(1.0, milestones=[2], factor=x)(3),
}


def same(some, others):
  """Whether constants of programs are equal, in type and value."""
  return all(
    x.dtype == y.dtype and np.array_equal(x, y)
    for x, y in zip(map(np.asarray, some), map(np.asarray, others), strict=True)
  )


def of_an_update(optimizer):
  return optimizer.update(FEATURES, optimizer.init(FEATURES), FEATURES)[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_may_have_any_type_of_number(name):
  """Traced alone: the same program gives the same numbers."""
  # optax's own Adam stops under strict promotion.
  strict = "standard" if name == "adamw" else "strict"

  def program(x):
    with jax.numpy_dtype_promotion(strict):
      traced = jax.make_jaxpr(lambda: SETTINGS[name](x))()
    return str(traced), traced.consts

  expected, constants = program(0.5)
  other, others = program(0.25)
  assert other != expected or not same(others, constants)
  for dtype in ("float16", "bfloat16", "float32", "float64"):
    seen, given_ = program(jnp.dtype(dtype).type(0.5))
    assert seen == expected
    assert same(given_, constants)
  # For neighbours, no temperature means Euclidean distance.
  none = [] if name == "knn_scores" else [None]
  for wrong in ("0.5", True, 0.5j, np.nan, np.inf, [0.5], [[1], [1, 2]], *none):
    with pytest.raises(InputError, match=r"^\w+ "):
      SETTINGS[name](wrong)


def test_a_mask_says_which_rows_count_in_any_type():
  f, where = draw()[0], np.arange(N) % 2
  expected = metrics.sparsity(f[1::2])
  for dtype in DTYPES:
    seen = metrics.sparsity(f, where=where.astype(jnp.dtype(dtype)))
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
  for wrong in (
    np.arange(N),
    where * np.nan,
    where.astype(str),
    where * 0.5,
    where[1:],
  ):
    with pytest.raises(InputError, match="^where "):
      metrics.sparsity(f, where=wrong)


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_any_type_give_the_same_or_are_refused(name):
  rng = np.random.default_rng(0)
  x, r = rng.integers(0, 2, (2, 4, 4, 3)), np.array([0.5, 1.5])
  with jax.numpy_dtype_promotion("strict"):
    expected = IMAGES[name](x.astype(np.float32), r.astype(np.float32))
  of_any_range = name in (
    "grayscale", "normalize", "gaussian_blur", "resized_crop", "horizontal_flip"
  )  # fmt: skip
  for dtype in DTYPES:
    for layout in LAYOUTS.values():
      given_ = layout(x.astype(jnp.dtype(dtype)))
      if "int" in dtype and not of_any_range:
        with pytest.raises(InputError, match="^images are u?int"):
          IMAGES[name](given_, r)
        break
      with jax.numpy_dtype_promotion("strict"):
        seen = IMAGES[name](given_, r)
      np.testing.assert_allclose(seen, expected, atol=1e-6)
      if dtype != "float32":
        break
  without_pixels = [x[:, :0]] * (name != "horizontal_flip")
  for wrong in (
    *without_pixels,
    scipy.sparse.csr_array(x[0, :, :, 0]),
    x.astype(str),
    x.astype(complex),
    x.astype(object),
    x[0],
    [[1.0], [1.0, 2.0]],
  ):
    with pytest.raises(InputError, match="^images "):
      IMAGES[name](wrong, r)
