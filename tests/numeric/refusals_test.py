"""What the numeric functions cannot take is refused by its name."""

import numpy as np
import pytest
import scipy.sparse
from numeric_functions import EVERY, K, N, draw

from ncl_jax import augment, encoder, losses, metrics, nonneg, numerics
from ncl_jax.errors import InputError

WRONG = {
  "sparse": lambda x: scipy.sparse.csr_array(x),
  "sparse matrix": lambda x: scipy.sparse.csr_matrix(x),
  "text": lambda x: x.astype(str),
  "complex": lambda x: x.astype(complex),
  "objects": lambda x: x.astype(object),
  "ragged": lambda x: [[1.0], [1.0, 2.0]],
  "one axis": lambda x: x[0],
  "three axes": lambda x: x[None],
  "no row": lambda x: x[:0],
  "no column": lambda x: x[:, :0],
}
# Of a vector of scores, of vectors along any axis, of sparse matrices alone.
OF_OTHERS = ("sepin_at", "l2_normalize", "inverted index")
# No example, no loss.
MAY_BE_EMPTY = ("zero_shot", "cross_entropy", "scores")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", [x for x in EVERY if x not in OF_OTHERS])
def test_what_is_no_matrix_is_refused_by_name(name, wrong):
  if name in MAY_BE_EMPTY and wrong == "no row":
    pytest.skip("allowed")
  x = WRONG[wrong](draw()[1])
  with pytest.raises(InputError, match=r"^[\w.]+ "):
    EVERY[name](x, x, np.arange(N) % K)


@pytest.mark.parametrize("name", [*sorted(nonneg.NAMES), "l2_normalize"])
def test_what_is_no_number_is_not_transformed(name):
  function = numerics.l2_normalize if name == "l2_normalize" else nonneg.get(name)
  for wrong in ("sparse", "text", "complex", "objects", "ragged"):
    with pytest.raises(InputError, match="^z "):
      function(WRONG[wrong](draw()[1]))


def test_no_class_no_centre_and_no_score_are_refused_by_name():
  f = np.ones((2, 3))
  with pytest.raises(InputError, match=r"prototypes \[0, 3\]"):
    losses.scores(f, f[:0])
  with pytest.raises(InputError, match=r"prototypes \[0, 3\]"):
    losses.cross_entropy(f[:0], f[:0], np.zeros(0, int))
  with pytest.raises(InputError, match=r"centre has shape \[2\]"):
    losses.dino_centre(np.zeros(2), np.ones((2, 2, 3)))
  with pytest.raises(InputError, match=r"scores have shape \[0\]"):
    metrics.sepin_at(np.zeros(0))
  with pytest.raises(InputError, match="bias is of"):
    losses.scores(f, f, bias=np.array(["a", "b"]))
  assert np.isnan(metrics.zero_shot(f, f[:0], [-1, -1]))


def test_vectors_of_no_entry_keep_their_shape():
  assert numerics.l2_normalize(np.zeros((2, 0))).shape == (2, 0)
  assert losses.cross_entropy(np.zeros((0, 3)), np.eye(3), np.zeros(0, int)).size == 0


def test_other_arguments_are_refused_by_name():
  f, y = np.ones((4, 2)), [0, 1, 0, 1]
  for counts in ([1.0, 2.0], ["a"], 3, [[1]]):
    with pytest.raises(InputError, match="^counts "):
      metrics.purity_at(f, y, 2, counts)
  seen = metrics.purity_at(np.arange(8.0).reshape(4, 2), y, 2, [1, 5, 2**32 + 1, -1])
  np.testing.assert_array_equal(np.isnan(seen), [[False, True, True, True]] * 2)
  for found in (
    [[1.0]],
    np.zeros((0, 2), int),
    np.zeros(2, int),
    np.zeros((2, 3), int),
  ):
    with pytest.raises(InputError, match="^found "):
      encoder.recall(found, np.zeros(np.shape(found), int)[:1])
  with pytest.raises(InputError, match="^codes are dense"):
    encoder.InvertedIndex(f)
  for made in (f.astype(complex), np.full((4, 2), np.nan)):
    with pytest.raises(InputError, match=r"codes\.data"):
      encoder.InvertedIndex(scipy.sparse.csr_array(made))
  for labels in (f.astype(str), f.astype(complex), f.astype(object)):
    with pytest.raises(InputError, match="^labels "):
      losses.cross_entropy(f, f[:2], labels)
  for name in ("explicitness", "sap", "importances", "scores"):
    with pytest.raises(InputError, match="1 row"):
      getattr(metrics.factors, name)(f[:1], np.zeros((1, 2), int))
  config = augment.AugmentConfig(size=4, mean=(0.5,), std=(0.2,))
  x = np.zeros((2, 4, 4, 1), np.uint8)
  for wrong in (x.tolist(), x / 255, x[0], x[:, :0], x.astype(str)):
    for make in (
      lambda x: augment.eval_view(x, config),
      lambda x: augment.two_views(numerics.key(0), x, config),
    ):
      with pytest.raises(InputError, match="^images "):
        make(wrong)
  with pytest.raises(InputError, match="^n = -1"):
    augment.view_parameters(numerics.key(0), -1)
  with pytest.raises(InputError, match="^u has"):
    augment.random_boxes(np.zeros(21), 4, 4, scale=(1, 1), ratio=(1, 1))
  with pytest.raises(InputError, match="^boxes have"):
    augment.resized_crop(x, np.zeros((1, 4)), 2)
  for wrong in (np.ones(3), np.array(["a", "b"]), 1.0):
    with pytest.raises(InputError, match="^factor "):
      augment.brightness(x / 255, wrong)
