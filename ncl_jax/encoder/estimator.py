"""`NonNegativeEncoder`: the projector as a scikit-learn estimator."""

import copy
import pathlib
from collections.abc import Iterator
from typing import Any, Self

import jax
import numpy as np
import scipy.sparse
from sklearn.base import (
  BaseEstimator,
  ClassNamePrefixFeaturesOutMixin,
  TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ncl_jax import checks
from ncl_jax.encoder import files, given, training
from ncl_jax.encoder.scaling import BLOCK, measured, some
from ncl_jax.errors import InputError


class NonNegativeEncoder(
  ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
  """Turns embeddings into sparse non-negative codes by contrastive learning.

  A projector is trained so that the codes of two views of a row are similar, and those
  of different rows are not. Codes have unit length, so their inner product is a cosine.
  Columns are sorted by expected activation on the training data, highest first, so the
  first n columns are the best n; see `shorten`.

  Embeddings are centred and divided by one number, which preserves their geometry.
  Columns that are constant in the training data are ignored.

  Args:
    n_components: D, dimensions of a code.
    n_active: largest number of active dimensions in a code, also in training; 0 = all.
      It can be changed after fitting by `set_params`.
    hidden: width of the projector's hidden layer; 0 = a linear projector.
    activation: the non-negative transform, one of `ncl_jax.nonneg.NON_NEGATIVE`.
    positives: pairs that should be similar: "views" of the same row, the two of
      `pairs`, or rows with the same label y (-1 = no label).
    temperature: of the loss.
    noise: standard deviation of a view's noise, relative to each column's.
    dropout: fraction of the columns that a view loses.
    reconstruction: weight of a linear decoder's squared error, see `training.loss`; 0 =
      none.
    epochs: passes over the rows; 0 leaves the projector untrained, as a control.
    batch_size: rows in a batch, which are negatives of each other; at most all rows.
    learning_rate: of AdamW, the peak of warm-up and cosine decay.
    weight_decay: of AdamW.
    sparse_output: whether `transform` returns a scipy.sparse.csr_array.
    random_state: of initialisation, order and views; a number makes fitting repeatable.

  Attributes:
    loss_curve_: [epochs] mean loss of each epoch.
    expected_activation_: [D] mean of each column over the training data, descending.
    n_features_in_: E.

  Source: Wang et al. 2024 (arXiv:2403.12459), Sections 3 and 5.3.

  >>> x = np.random.default_rng(0).normal(size=(32, 4))
  >>> codes = NonNegativeEncoder(8, n_active=2, epochs=1).fit_transform(x)
  >>> codes.shape, bool((codes >= 0).all()), int((codes > 0).sum(1).max())
  ((32, 8), True, 2)
  """

  def __init__(
    self,
    n_components: int = 256,
    *,
    n_active: int = 0,
    hidden: int = 0,
    activation: str = "rep_relu",
    positives: str = "views",
    temperature: float = 0.2,
    noise: float = 0.1,
    dropout: float = 0.0,
    reconstruction: float = 0.0,
    epochs: int = 20,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-4,
    sparse_output: bool = False,
    random_state: Any = None,
  ):
    self.n_components = n_components
    self.n_active = n_active
    self.hidden = hidden
    self.activation = activation
    self.positives = positives
    self.temperature = temperature
    self.noise = noise
    self.dropout = dropout
    self.reconstruction = reconstruction
    self.epochs = epochs
    self.batch_size = batch_size
    self.learning_rate = learning_rate
    self.weight_decay = weight_decay
    self.sparse_output = sparse_output
    self.random_state = random_state

  def fit(self, X: Any, y: Any = None, *, pairs: Any = None) -> Self:
    """Trains the projector.

    Args:
      X: [N, E] embeddings, N at least 2.
      y: [N] labels if positives are "labels"; else ignored.
      pairs: [N, E] the partner of each row if positives are "pairs".

    Raises:
      ValueError: an invalid setting, shape or number, or nothing to learn from.
      FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
        names the step. The encoder is then not fitted.
    """
    self.__dict__.pop("scaling_", None)  # not fitted until training has succeeded
    given.check(self)
    X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
    if (pairs is None) != (self.positives != "pairs"):
      what = "no pairs are" if pairs is None else "pairs are"
      raise InputError(f"positives = {self.positives!r} and {what} given")
    parts = [X]
    if pairs is not None:
      parts.append(check_array(pairs, dtype=X.dtype, input_name="pairs"))
      if parts[1].shape != X.shape:
        raise InputError(
          f"pairs are {parts[1].shape}, X is {X.shape}: they need one partner per row"
        )
    scaling = measured(parts)
    data = {"deviation": scaling.unit()}
    for name, part in zip(("x", "other"), parts, strict=False):
      data[name] = scaling(part)
    if self.positives == "labels":
      data["labels"] = given.numbered(y, len(X))
    self._train(data)
    self.scaling_ = scaling
    return self

  def transform(self, X: Any) -> Any:
    """Codes of embeddings [N, E].

    Returns:
      [N, D] array of X's type (float32 or float64), or a csr_array if `sparse_output`.
      Rows have unit length or are all zero.

    Raises:
      ValueError: NaN, another width, or not numbers.
    """
    check_is_fitted(self)
    X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
    codes = (
      block.astype(X.dtype, copy=False) for block in self._encoded(self.scaling_(X))
    )
    if not self.sparse_output:
      return np.concatenate(list(codes))
    parts = [scipy.sparse.csr_array(block) for block in codes]
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))

  def shorten(self, n_dims: int) -> Self:
    """A copy with only the `n_dims` columns of highest expected activation.

    Nothing is trained. They are the first columns, so stored codes can be shortened by
    taking these and scaling rows to unit length. With `n_active`, a newly computed code
    may also use columns that were not among the largest of all D.

    Raises:
      InputError: `n_dims` is not in 1..D.

    Source: Wang et al. 2024 (arXiv:2403.12459), Section 5.3.
    """
    check_is_fitted(self)
    checks.whole("n_dims", n_dims, 1, self._n_features_out)
    short = copy.deepcopy(self).set_params(n_components=n_dims)
    short._keep(np.arange(n_dims))
    return short

  def save(self, path: str | pathlib.Path) -> None:
    """Writes tensors and settings to a new file NAME.safetensors.

    Raises:
      InputError: if the file exists already or has another ending.
    """
    check_is_fitted(self)
    files.save(self, path)

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads a file that `save` wrote, without executing anything in it.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if it is another kind of file.
    """
    return files.load(cls, path)

  def __sklearn_is_fitted__(self) -> bool:
    """For `check_is_fitted`: training may have failed after setting some attributes."""
    return hasattr(self, "scaling_")

  @property
  def _n_features_out(self) -> int:
    return len(self.expected_activation_)

  def __sklearn_tags__(self) -> Any:
    """Properties for scikit-learn."""
    tags = super().__sklearn_tags__()
    tags.transformer_tags.preserves_dtype = ["float64", "float32"]
    tags.target_tags.required = self.positives == "labels"
    return tags

  def _recipe(self, steps: int) -> training.Recipe:
    return training.Recipe(
      network=self._network(int(self.n_components), int(self.hidden)),
      temperature=float(self.temperature),
      noise=float(self.noise),
      dropout=float(self.dropout),
      reconstruction=float(self.reconstruction),
      learning_rate=float(self.learning_rate),
      weight_decay=float(self.weight_decay),
      steps=steps,
      labelled=self.positives == "labels",
    )

  def _network(self, out: int, hidden: int) -> training.Network:
    return training.Network(out, hidden, int(self.n_active), self.activation)

  def _train(self, data: dict[str, np.ndarray]) -> None:
    rows = len(data["x"])
    size = min(int(self.batch_size), rows)
    highest = np.iinfo(np.int32).max
    self.params_, self.loss_curve_ = training.train(
      data,
      self._recipe(rows // size * self.epochs),
      epochs=int(self.epochs),
      batch_size=size,
      seed=check_random_state(self.random_state).randint(highest),
    )
    self.expected_activation_ = np.zeros(self.n_components)
    for block in self._encoded(data["x"]):
      self.expected_activation_ += block.sum(0, dtype=np.float64) / rows
    self._keep(np.argsort(-self.expected_activation_, kind="stable"))

  def _keep(self, columns: np.ndarray) -> None:
    """Keeps only these dimensions of the last layer, in this order."""
    self.expected_activation_ = self.expected_activation_[columns]
    last = self.params_.get("linear2", self.params_)
    for name, tensor in last.items():
      last[name] = np.ascontiguousarray(tensor[..., columns])

  def _encoded(self, x: np.ndarray) -> Iterator[np.ndarray]:
    """Codes of scaled embeddings, block by block."""
    # The trained width, because settings may have changed since.
    hidden = len(self.params_["linear1"]["bias"]) if "linear1" in self.params_ else 0
    network = self._network(self._n_features_out, hidden)
    params = jax.device_put(self.params_)
    for block in some(x):
      padded = np.zeros((BLOCK, x.shape[1]), np.float32)
      padded[: len(block)] = block
      codes = np.asarray(training.encode(params, padded, network))[: len(block)]
      if bad := np.count_nonzero(~np.isfinite(codes).all(1)):
        raise InputError(
          f"{bad} of {len(block)} codes hold NaN or infinity: their embeddings are "
          "too large for float32, or the encoder's parameters are not finite"
        )
      yield codes
