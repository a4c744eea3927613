"""What an encoder is given, checked: its settings and its labels."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from ncl_jax import checks, nonneg
from ncl_jax.data import labels as labels_lib
from ncl_jax.errors import InputError

POSITIVES = ("views", "pairs", "labels")


def check(encoder: Any) -> None:
  """Its settings, as the attributes of a `NonNegativeEncoder`.

  Raises:
    InputError: naming the first that is not as it should be.
  """
  for name, low in (
    ("n_components", 1),
    ("n_active", 0),
    ("hidden", 0),
    ("epochs", 0),
    ("batch_size", 2),
  ):
    checks.whole(name, getattr(encoder, name), low)
  checks.choice("map", encoder.map, sorted(nonneg.NON_NEGATIVE))
  checks.choice("positives", encoder.positives, POSITIVES)
  for name in ("temperature", "learning_rate"):
    checks.positive(name, getattr(encoder, name))
  for name, below in (
    ("noise", np.inf),
    ("reconstruction", np.inf),
    ("weight_decay", np.inf),
    ("dropout", 1),
  ):
    value = getattr(encoder, name)
    if not 0 <= value < below:
      raise InputError(f"{name} = {value!r}: it must be at least 0 and below {below}")


def numbered(y: Any, rows: int) -> np.ndarray:
  """Labels by number.

  Args:
    y: labels [N], whole numbers or names, see `data.labels`; -1, NaN, None and "" are
      no label.
    rows: N.

  Returns:
    int32 [N], places among the sorted labels; -1 for none.

  Raises:
    InputError: without y, for another shape, or if no label has two rows.
  """
  if y is None:
    raise InputError(
      "positives = 'labels' requires y to be passed, but the target y is None"
    )
  y = check_array(
    y, ensure_2d=False, dtype=None, input_name="y", ensure_all_finite="allow-nan"
  )
  if y.shape != (rows,):
    raise InputError(f"y has shape {y.shape}: it must be ({rows},), a label a row")
  labels = labels_lib.parse(y, "y")
  labels_lib.check_coding([labels], "y")
  numbers = np.full(rows, -1)
  names, numbers[~labels.missing] = np.unique(
    labels.values[~labels.missing], return_inverse=True
  )
  if (np.bincount(numbers[numbers >= 0], minlength=1) < 2).all():
    raise InputError(f"y: none of the {len(names)} labels has two rows: no positives")
  return numbers.astype(np.int32)
