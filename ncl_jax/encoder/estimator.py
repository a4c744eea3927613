"""`NonNegativeEncoder`: the projector as an estimator of scikit-learn."""

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

  A projector is trained so that the codes of two views of a row are alike and those of
  other rows are not. Codes have unit length, so their inner product is a cosine; their
  columns are sorted by falling expected activation on the training data, so the first n
  columns are the best n, see `shorten`.

  Embeddings are centred and divided by one number: their geometry stays. Columns that
  were constant in the training data tell nothing and are ignored from then on.

  Args:
    n_components: D, dimensions of a code.
    n_active: most dimensions that one code may use, also in training; 0 = all. A fitted
      encoder takes another one by `set_params`.
    hidden: width of the projector's hidden layer; 0 = it is linear.
    map: to the non-negative, see `ncl_jax.nonneg.NON_NEGATIVE`.
    positives: which rows are to be alike: "views" of the same row, the two of `pairs`,
      or those of the same label y (-1 is no label).
    temperature: of the loss.
    noise: standard deviation of a view's noise, in those of the columns.
    dropout: share of the columns that a view loses.
    reconstruction: weight of a linear decoder's squared error, see `training.loss`; 0 =
      none.
    epochs: passes over the rows; 0 leaves the projector untrained, as a control.
    batch_size: rows in a batch, of which each is a negative for the others; all, if
      there are fewer.
    learning_rate: of AdamW, the highest of a warm-up and cosine.
    weight_decay: of AdamW.
    sparse_output: `transform` gives a scipy.sparse.csr_array.
    random_state: of initialisation, order and views; a number: the same again.

  Attributes:
    loss_curve_: [epochs] mean loss of each.
    expected_activation_: [D] mean of each column over the training data, falling.
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
    map: str = "rep_relu",
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
    self.map = map
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
      y: [N] labels, where positives are "labels"; else ignored.
      pairs: [N, E] the partner of each row, where positives are "pairs".

    Returns:
      itself.

    Raises:
      ValueError: a wrong setting, shape or number, or nothing to learn from.
      FloatingPointError: if the loss, the gradient or a parameter stops being finite,
        naming the step; the encoder is then not fitted.
    """
    self.__dict__.pop("scaling_", None)  # not fitted until all has gone well
    given.check(self)
    X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
    if (pairs is None) != (self.positives != "pairs"):
      what = "no pairs are" if pairs is None else "pairs are"
      raise InputError(f"positives = {self.positives!r} and {what} given")
    parts = [X]
    if pairs is not None:
      parts.append(check_array(pairs, dtype=X.dtype, input_name="pairs"))
      if parts[1].shape != X.shape:
        raise InputError(f"pairs are {parts[1].shape}, X is {X.shape}: a partner a row")
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
    """Codes of embeddings.

    Args:
      X: [N, E].

    Returns:
      [N, D] array of X's type (float32 or float64), or a csr_array of it where
      `sparse_output`; rows of unit length, or zero where the map left nothing.

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
    """An encoder of the `n_dims` columns of highest expected activation; no training.

    They are the first columns of this one's, so stored codes are shortened by taking
    these and scaling rows to unit length; with `n_active` a code made anew may use
    columns that took no place among all D.

    Args:
      n_dims: 1 to D.

    Returns:
      A fitted encoder; this one stays.

    Raises:
      InputError: another number.

    Source: Wang et al. 2024 (arXiv:2403.12459), Section 5.3.
    """
    check_is_fitted(self)
    checks.whole("n_dims", n_dims, 1, self._n_features_out)
    short = copy.deepcopy(self).set_params(n_components=n_dims)
    short._keep(np.arange(n_dims))
    return short

  def save(self, path: str | pathlib.Path) -> None:
    """Writes one file, tensors and settings; nothing in it is ever executed.

    Args:
      path: a new file, NAME.safetensors.

    Raises:
      InputError: if there is one already, or the name ends otherwise.
    """
    check_is_fitted(self)
    files.save(self, path)

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads what `save` wrote: the same codes.

    Args:
      path: the file.

    Raises:
      FileNotFoundError: if there is none.
      InputError: if it is no such file.
    """
    return files.load(cls, path)

  def __sklearn_is_fitted__(self) -> bool:
    """What `check_is_fitted` asks: training may have failed after some was set."""
    return hasattr(self, "scaling_")

  @property
  def _n_features_out(self) -> int:
    return len(self.expected_activation_)

  def __sklearn_tags__(self) -> Any:
    """What scikit-learn is told."""
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
    return training.Network(out, hidden, int(self.n_active), self.map)

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
    """Keeps these dimensions of the last layer, in their order."""
    self.expected_activation_ = self.expected_activation_[columns]
    last = self.params_.get("linear2", self.params_)
    for name, tensor in last.items():
      last[name] = np.ascontiguousarray(tensor[..., columns])

  def _encoded(self, x: np.ndarray) -> Iterator[np.ndarray]:
    """Codes of prepared embeddings, block after block."""
    # As wide as it was trained, whatever the settings became since.
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
