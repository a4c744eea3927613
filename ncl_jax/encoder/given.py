"""Checks an encoder's settings, rows and labels."""

import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, validate_data

from ncl_jax import checks
from ncl_jax.data import labels as labels_lib
from ncl_jax.encoder.scaling import Scaling, measured
from ncl_jax.encoder.training import OBJECTIVES, Data
from ncl_jax.errors import InputError

# A column with this share of the total variance, of at least so many columns, decides
# which rows are neighbours.
OUTLIER, COLUMNS = 0.5, 8
POSITIVES = ("views", "pairs", "labels")
FLOATS = (np.float64, np.float32)


def data(encoder: Any, X: Any, y: Any, pairs: Any, scaling: Scaling | None) -> Data:
  """The rows of a `NonNegativeEncoder`, whose scaling is measured unless it is given.

  Raises:
    ValueError: for the first invalid setting, and for invalid rows or labels.
  """
  _check_settings(encoder)
  X = validate_data(
    encoder, X, dtype=FLOATS, ensure_min_samples=2, reset=scaling is None
  )
  if (pairs is None) != (encoder.positives != "pairs"):
    what = "no pairs are" if pairs is None else "pairs are"
    raise InputError(f"positives = {encoder.positives!r} and {what} given")
  parts = [X]
  if pairs is not None:
    parts.append(check_array(pairs, dtype=X.dtype, input_name="pairs"))
    if parts[1].shape != X.shape:
      raise InputError(
        f"pairs are {parts[1].shape}, X is {X.shape}: they need one partner per row"
      )
    own = list(getattr(encoder, "feature_names_in_", ()))
    if own and list(getattr(pairs, "columns", own)) != own:
      raise InputError("pairs have other columns than X, or in another order")
  labels = numbered(y, len(X)) if encoder.positives == "labels" else None
  return Data(parts, scaling or measured(parts), labels)


def _check_settings(encoder: Any) -> None:
  least = {"n_components": 1, "n_active": 0, "epochs": 0, "batch_size": 2}
  if encoder.n_iter_no_change is not None:
    least["n_iter_no_change"] = 1
  for name, low in least.items():
    checks.whole(name, getattr(encoder, name), low)
  checks.choice("objective", encoder.objective, OBJECTIVES)
  checks.choice("positives", encoder.positives, POSITIVES)
  for name in ("temperature", "learning_rate"):
    checks.positive(name, getattr(encoder, name))
  for name in ("noise", "beta", "gamma", "weight_decay", "dropout"):
    checks.number(name, getattr(encoder, name), 0)
  if encoder.dropout >= 1:
    raise InputError(f"dropout = {encoder.dropout!r}: it must be below 1")


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
  """Numbers labels [rows], see `data.labels`, by their position among the sorted ones.

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
  numbers = np.full(rows, -1, np.int32)
  names, numbers[~labels.missing], count = np.unique(
    labels.values[~labels.missing], return_inverse=True, return_counts=True
  )
  if count.max(initial=0) < 2:
    raise InputError(
      f"y: none of the {len(names)} labels has two rows, so there are no positive pairs"
    )
  return numbers
