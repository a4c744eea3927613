"""Checks an encoder's settings and labels."""

import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from ncl_jax import checks
from ncl_jax.data import labels as labels_lib
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.encoder.training import OBJECTIVES
from ncl_jax.errors import InputError

# A column with this share of the total variance, of at least so many columns, decides
# which rows are neighbours.
OUTLIER, COLUMNS = 0.5, 8
POSITIVES = ("views", "pairs", "labels")


def check(encoder: Any) -> None:
  """Raises an InputError for the first invalid setting of a `NonNegativeEncoder`."""
  for name, low in (
    ("n_components", 1),
    ("n_active", 0),
    ("epochs", 0),
    ("batch_size", 2),
  ):
    checks.whole(name, getattr(encoder, name), low)
  if encoder.n_iter_no_change is not None:
    checks.whole("n_iter_no_change", encoder.n_iter_no_change, 1)
  checks.choice("objective", encoder.objective, OBJECTIVES)
  checks.choice("positives", encoder.positives, POSITIVES)
  for name in ("temperature", "learning_rate"):
    checks.positive(name, getattr(encoder, name))
  for name, below in (
    ("noise", np.inf),
    ("beta", np.inf),
    ("gamma", np.inf),
    ("weight_decay", np.inf),
    ("dropout", 1),
  ):
    value = getattr(encoder, name)
    if not 0 <= value < below:
      raise InputError(f"{name} = {value!r}: it must be at least 0 and below {below}")


def active(n_active: Any) -> int:
  """The number of active dimensions; the setting may have changed since fitting."""
  checks.whole("n_active", n_active, 0)
  return int(n_active)


def warn_of_outliers(scaling: Scaling) -> None:
  """Warns where one column holds most of the variance of the embeddings."""
  share = scaling.deviation**2 / np.sum(scaling.deviation**2)
  worst = int(np.argmax(share))
  if len(share) >= COLUMNS and share[worst] > OUTLIER:
    warnings.warn(
      f"column {worst} of X holds {share[worst]:.0%} of the variance of its "
      f"{len(share)} columns: codes and cosine similarities mostly follow this column. "
      "Standardise the columns, or drop it, unless this is intended",
      stacklevel=3,
    )


def warn_of_dead(activation: np.ndarray) -> None:
  """Warns where most dimensions are in no code of the training data."""
  dead = int(np.sum(activation == 0))
  if 2 * dead > len(activation):
    warnings.warn(
      f"{dead} of {len(activation)} dimensions are active in no row of X. Lower "
      "n_components, raise n_active or beta, or train for more epochs",
      stacklevel=3,
    )


def numbered(y: Any, rows: int) -> np.ndarray:
  """Numbers labels [rows] by their position among the sorted labels.

  Labels are whole numbers or names, see `data.labels`; -1, NaN, None and "" mean no
  label.

  Returns:
    int32 [rows]; -1 for no label.

  Raises:
    InputError: if y is missing or has another shape, or no label has two rows.
  """
  if y is None:
    raise InputError(
      "positives = 'labels' requires y to be passed, but the target y is None"
    )
  y = check_array(
    y, ensure_2d=False, dtype=None, input_name="y", ensure_all_finite="allow-nan"
  )
  if y.shape != (rows,):
    raise InputError(f"y has shape {y.shape}: it must be ({rows},), one label per row")
  labels = labels_lib.parse(y, "y")
  labels_lib.check_coding([labels], "y")
  numbers = np.full(rows, -1)
  names, numbers[~labels.missing] = np.unique(
    labels.values[~labels.missing], return_inverse=True
  )
  if (np.bincount(numbers[numbers >= 0], minlength=1) < 2).all():
    raise InputError(
      f"y: none of the {len(names)} labels has two rows, so there are no positive pairs"
    )
  return numbers.astype(np.int32)
