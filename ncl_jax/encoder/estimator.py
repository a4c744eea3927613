"""`NonNegativeEncoder`: the sparse autoencoder as a scikit-learn estimator."""

import copy
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.base import (
  BaseEstimator,
  ClassNamePrefixFeaturesOutMixin,
  TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ncl_jax import checks
from ncl_jax.encoder import coding, given, training
from ncl_jax.encoder.autoencoder import Autoencoder
from ncl_jax.encoder.exchange import Exchange
from ncl_jax.encoder.names import Named
from ncl_jax.encoder.pursuit import Pursuit
from ncl_jax.errors import InputError


class NonNegativeEncoder(
  Named,
  Pursuit,
  Exchange,
  ClassNamePrefixFeaturesOutMixin,
  TransformerMixin,
  BaseEstimator,
):
  """Turns embeddings into sparse non-negative codes.

  The default is contrastive sparse representation (CSR): a TopK autoencoder whose codes
  reconstruct the embedding, and are similar for two views of a row and dissimilar for
  different rows. Columns are sorted by expected activation on the training data,
  highest first, so the first n columns are the best n; see `shorten`.

  Embeddings are centred and divided by one number, which preserves their geometry.
  Columns that are constant in the training data are ignored. A memory-mapped array is
  never read as a whole.

  Args:
    n_components: D, dimensions of a code.
    n_active: k, largest number of active dimensions in a code, also in training; 0 =
      all. It can be changed after fitting by `set_params`.
    objective: "csr", or one part of it: "contrastive" (non-negative contrastive
      learning alone, without a decoder) or "reconstruction"; see `training.loss`.
    beta: weight of the loss that revives dead dimensions.
    gamma: weight of the contrastive loss in "csr"; published with 1, see studies/codes.
    tied: whether the decoder is the encoder transposed; else it is free.
    positives: pairs that should be similar: "views" of the same row, the two of
      `pairs`, or rows with the same label y (-1 = no label).
    temperature: of the contrastive loss.
    noise: standard deviation of a view's noise, relative to each column's; 0 without
      dropout: both views are the row itself, as published.
    dropout: fraction of the columns that a view loses.
    normalize: whether codes have unit length, so that their inner product is a cosine.
      `inverse_transform` needs codes that were not normalised. It can be changed after
      fitting.
    epochs: passes over the rows; 0 leaves the network untrained, as a control.
    n_iter_no_change: ends training after this many epochs without a higher recall of
      held-out rows, and keeps the best epoch; None: never. Holds out a tenth of the
      rows, at most 1,000.
    batch_size: rows in a batch, which are negatives of each other; at most all rows.
    learning_rate, weight_decay: of AdamW; the rate is the peak of warm-up and decay.
    sparse_output: whether `transform` returns a scipy.sparse.csr_array.
    random_state: of initialisation, order and views; a number makes fitting repeatable.

  Attributes:
    loss_curve_: [epochs] mean loss of each epoch, and of each call of `partial_fit`.
    validation_scores_: [epochs] share of the ten nearest neighbours of held-out rows
      that their codes keep, if `n_iter_no_change` is set.
    expected_activation_: [D] mean of each column over the training data, descending;
      after `partial_fit`, over the rows of the last call, and not sorted.
    explained_variance_: share of the variance of the same rows that decoded codes
      explain; at most 1. Not of "contrastive".
    names_: of the dimensions, after `name_dimensions`; see `names.Names`.
    n_features_in_: E.

  Source: Wen et al. 2025 (arXiv:2503.01776); Wang et al. 2024 (arXiv:2403.12459),
  Sections 3 and 5.3.

  >>> x = np.random.default_rng(0).normal(size=(32, 4))
  >>> codes = NonNegativeEncoder(8, n_active=2, epochs=1).fit_transform(x)
  >>> codes.shape, bool((codes >= 0).all()), int((codes > 0).sum(1).max())
  ((32, 8), True, 2)
  """

  def __init__(
    self,
    n_components: int = 1024,
    *,
    n_active: int = 32,
    objective: str = "csr",
    beta: float = 1 / 32,
    gamma: float = 0.1,
    tied: bool = True,
    positives: str = "views",
    temperature: float = 0.2,
    noise: float = 0.0,
    dropout: float = 0.0,
    normalize: bool = True,
    epochs: int = 10,
    n_iter_no_change: int | None = None,
    batch_size: int = 256,
    learning_rate: float = 1e-2,
    weight_decay: float = 0.0,
    sparse_output: bool = False,
    random_state: Any = None,
  ):
    self.n_components = n_components
    self.n_active = n_active
    self.objective = objective
    self.beta = beta
    self.gamma = gamma
    self.tied = tied
    self.positives = positives
    self.temperature = temperature
    self.noise = noise
    self.dropout = dropout
    self.normalize = normalize
    self.epochs = epochs
    self.n_iter_no_change = n_iter_no_change
    self.batch_size = batch_size
    self.learning_rate = learning_rate
    self.weight_decay = weight_decay
    self.sparse_output = sparse_output
    self.random_state = random_state

  def fit(self, X: Any, y: Any = None, *, pairs: Any = None) -> Self:
    """Trains the network.

    Args:
      X: [N, E] embeddings, N at least 2.
      y: [N] labels if positives are "labels"; else ignored.
      pairs: [N, E] the partner of each row if positives are "pairs".

    Raises:
      ValueError: an invalid setting, shape or number, or nothing to learn from.
      FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
        names the step. The encoder is then not fitted.
    """
    # Not fitted until training has succeeded.
    self._forget("scaling_", "names_", "validation_scores_", "_progress")
    data = given.data(self, X, y, pairs, None)
    given.warn_of_outliers(data.scaling)
    params, self.loss_curve_, scores = training.train(
      data,
      self._recipe(),
      epochs=int(self.epochs),
      batch_size=int(self.batch_size),
      seed=self._seed(),
      patience=self.n_iter_no_change,
    )
    if self.n_iter_no_change is not None:
      self.validation_scores_ = scores
    self._set(params, data)
    self._keep(np.argsort(-self.expected_activation_, kind="stable"))
    self.scaling_ = data.scaling
    if self.epochs:
      given.warn_of_dead(self.expected_activation_)
    return self

  def partial_fit(self, X: Any, y: Any = None, *, pairs: Any = None) -> Self:
    """Trains on the rows once, in their order, and continues where training was.

    Parameters, optimizer state and counts of dead dimensions continue, so chunks of
    full batches give the same encoder as their rows in one call. The learning rate is
    constant, as the end is unknown; lower it between calls by `set_params`. Rows are
    not shuffled: give them in random order, in chunks of a multiple of `batch_size`.

    The first call draws the weights and fixes the centre, scale and constant columns
    by its rows, so make it large. After `fit`, or on an encoder from another package,
    it continues from those weights with a new optimizer. Columns keep their places.

    Args:
      X, y, pairs: as in `fit`.

    Raises:
      ValueError: as `fit`, or another width, n_components or tied than before.
      FloatingPointError: as `fit`. The encoder is then as before the call.
    """
    first = not hasattr(self, "scaling_")
    data = given.data(self, X, y, pairs, None if first else self.scaling_)
    if first:
      given.warn_of_outliers(data.scaling)
    else:
      asked = int(self.n_components), bool(self.tied)
      trained = self._n_features_out, "decoder" not in self.params_
      if asked != trained:
        raise InputError(
          f"n_components = {asked[0]} and tied = {asked[1]}, but the encoder was "
          f"fitted with {trained[0]} and {trained[1]}: partial_fit continues it. Call "
          "fit to start again"
        )
    recipe = self._recipe()
    progress = getattr(self, "_progress", None)
    if progress is None:
      live = data.scaling.deviation > 0
      params, progress = training.begin(self._seed(), live, recipe)
    params, progress, loss = training.advance(
      params if first else self.params_, progress, data, recipe, int(self.batch_size)
    )
    self._set(params, data)
    self._progress = progress
    earlier = [] if first else getattr(self, "loss_curve_", [])
    self.loss_curve_ = np.append(earlier, loss)
    self.scaling_ = data.scaling
    self._forget("names_")  # were of other weights
    return self

  def transform(self, X: Any) -> Any:
    """Codes of embeddings [N, E].

    Returns:
      [N, D] array of X's type (float32 or float64), or a csr_array if `sparse_output`.
      With `normalize`, rows have unit length or are all zero.

    Raises:
      ValueError: NaN, another width, or not numbers.
    """
    blocks = self._blocks(X)
    return coding.stacked(blocks) if self.sparse_output else np.concatenate([*blocks])

  def inverse_transform(self, Z: Any) -> np.ndarray:
    """Embeddings [N, E] that the decoder makes of codes [N, D], dense or sparse.

    Returns:
      [N, E] array of the codes' type (float32 or float64), in the units of X.

    Raises:
      InputError: the encoder has no decoder, or codes are normalised.
      ValueError: NaN, another width, or not numbers.
    """
    self._directions("inverse_transform")
    if self.normalize:
      raise InputError(
        "normalize = True: codes of unit length have lost their scale. Compute them "
        "after set_params(normalize=False)"
      )
    Z = check_array(Z, accept_sparse="csr", dtype=given.FLOATS, input_name="Z")
    if Z.shape[1] != self._n_features_out:
      raise InputError(
        f"Z has {Z.shape[1]} columns: codes of this encoder have {self._n_features_out}"
      )
    embeddings = (
      coding.decoded(self.params_, Z) * self.scaling_.scale + self.scaling_.mean
    )
    return embeddings.astype(Z.dtype, copy=False)

  def shorten(self, n_dims: int) -> Self:
    """A copy with only the `n_dims` columns of highest expected activation.

    Nothing is trained. After `fit` they are the first columns, so stored codes are
    shortened by taking these and scaling rows to unit length. With `n_active`, a new
    code may also use columns that were not among the largest of all D.

    Raises:
      InputError: `n_dims` is not in 1..D, or the expected activation is unknown.

    Source: Wang et al. 2024 (arXiv:2403.12459), Section 5.3.
    """
    check_is_fitted(self)
    checks.whole("n_dims", n_dims, 1, self._n_features_out)
    if not hasattr(self, "expected_activation_"):
      raise InputError(
        "the encoder was read from a module whose columns are not sorted by expected "
        "activation: only one that was fitted here can be shortened"
      )
    short = copy.deepcopy(self).set_params(n_components=n_dims)
    short._keep(np.argsort(-self.expected_activation_, kind="stable")[:n_dims])
    short._forget("explained_variance_", "_progress")  # were of all dimensions
    return short

  def __sklearn_is_fitted__(self) -> bool:
    """Whether training succeeded: it may fail after setting some attributes."""
    return hasattr(self, "scaling_")

  def __sklearn_tags__(self) -> Any:
    """Properties for scikit-learn."""
    tags = super().__sklearn_tags__()
    tags.transformer_tags.preserves_dtype = ["float64", "float32"]
    tags.target_tags.required = self.positives == "labels"
    return tags

  @property
  def _n_features_out(self) -> int:
    return len(self.params_["bias"])

  def _blocks(self, X: Any) -> Iterator[np.ndarray]:
    """The codes of embeddings [N, E], block by block, in their type."""
    check_is_fitted(self)
    X = validate_data(self, X, dtype=given.FLOATS, reset=False)
    network = self._network(self._n_features_out)
    unit = bool(self.normalize)
    found = coding.codes(X, self.params_, network, self.scaling_, unit)
    return (block.astype(X.dtype, copy=False) for block in found)

  def _network(self, out: int) -> Autoencoder:
    transform = "rep_relu" if self.objective == "contrastive" else "relu"
    return Autoencoder(out, given.active(self.n_active), transform, bool(self.tied))

  def _recipe(self) -> training.Recipe:
    return training.Recipe(
      network=self._network(int(self.n_components)),
      objective=self.objective,
      beta=float(self.beta),
      gamma=float(self.gamma),
      temperature=float(self.temperature),
      noise=float(self.noise),
      dropout=float(self.dropout),
      learning_rate=float(self.learning_rate),
      weight_decay=float(self.weight_decay),
      labelled=self.positives == "labels",
    )

  def _seed(self) -> int:
    return check_random_state(self.random_state).randint(np.iinfo(np.int32).max)

  def _forget(self, *names: str) -> None:
    for name in names:
      self.__dict__.pop(name, None)

  def _set(self, params: coding.Params, data: training.Data) -> None:
    """Takes these parameters once their codes are measured, or raises an InputError."""
    network = self._network(len(params["bias"]))
    found = coding.measured(data.parts[0], params, network, data.scaling)
    self.params_ = params
    self.expected_activation_, explained = found
    self._forget("explained_variance_")  # was of other weights
    if self.objective != "contrastive":
      self.explained_variance_ = explained

  def _keep(self, columns: np.ndarray) -> None:
    """Keeps only these dimensions, in this order."""
    self.expected_activation_ = self.expected_activation_[columns]
    for name in ("kernel", "bias"):
      self.params_[name] = np.ascontiguousarray(self.params_[name][..., columns])
    if hasattr(self, "names_"):
      self.names_ = self.names_.kept(columns)
    if "decoder" in self.params_:
      self.params_["decoder"] = self.params_["decoder"][columns]
