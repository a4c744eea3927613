"""Ends training when codes of held-out rows no longer keep more of their neighbours."""

from typing import Any

import jax
import numpy as np

from ncl_jax import numerics
from ncl_jax.encoder import coding, search
from ncl_jax.encoder.autoencoder import Autoencoder
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError

QUERIES = 1000  # largest number of held-out rows
SHARE = 10  # one row of so many is held out
ITEMS = 10_000  # largest number of rows in which neighbours are searched
K = 10


def held_out(rows: int, seed: int) -> np.ndarray:
  """The rows that training does not see; an InputError if there are too few."""
  if rows < 2 * SHARE:
    raise InputError(
      f"n_iter_no_change holds out one row of {SHARE}, so it needs {2 * SHARE} rows "
      f"or more: X has {rows}"
    )
  count = min(QUERIES, rows // SHARE)
  return np.random.default_rng(seed).choice(rows, count, replace=False)


class Stopping:
  """The recall of held-out rows after each epoch.

  Attributes:
    scores: share of the nearest rows by cosine that are nearest in the codes, too.
    best: parameters of the highest score.
  """

  def __init__(
    self,
    X: np.ndarray,
    rows: np.ndarray,
    held: np.ndarray,
    scaling: Scaling,
    patience: int,
  ):
    """Searches the neighbours of the rows `held` of X [N, E] among some of `rows`."""
    chosen = rows[np.linspace(0, len(rows) - 1, min(ITEMS, len(rows))).astype(int)]
    self._sets = scaling(X[chosen]), scaling(X[held])
    items, queries = (np.asarray(numerics.l2_normalize(x)) for x in self._sets)
    self._true = search.nearest(items, queries, min(K, len(items)))
    self._patience = patience
    self.scores: list[float] = []
    self.best: Any = None

  def ends(self, params: Any, network: Autoencoder) -> bool:
    """Measures the parameters after an epoch; whether training should end."""
    items, queries = (
      np.asarray(coding.encode_scaled(params, x, network, True)) for x in self._sets
    )
    found = search.nearest(items, queries, self._true.shape[1])
    self.scores.append(search.recall(found, self._true))
    best, last = int(np.argmax(self.scores)), len(self.scores) - 1
    if best == last:
      # Copies: the next update overwrites the state.
      self.best = jax.tree.map(np.array, params)
    return last - best >= self._patience
