"""Ends training when codes of held-out rows no longer keep more of their neighbours."""

import dataclasses
from typing import Any, Self

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
  """The rows that training does not see: a tenth, at most `QUERIES`.

  Raises:
    InputError: too few rows.
  """
  if rows < 2 * SHARE:
    raise InputError(
      f"n_iter_no_change holds out one row of {SHARE}, so it needs {2 * SHARE} rows "
      f"or more: X has {rows}"
    )
  count = min(QUERIES, rows // SHARE)
  return np.random.default_rng(seed).choice(rows, count, replace=False)


@dataclasses.dataclass(eq=False)
class Stopping:
  """The recall of held-out rows after each epoch.

  Attributes:
    items: [M, E] scaled embeddings of rows that training sees.
    queries: [Q, E] those of held-out rows.
    true: [Q, K] the nearest items of each query by cosine.
    patience: epochs without a higher recall after which training ends.
    scores: share of the true neighbours among the nearest codes, after each epoch.
    best: parameters of the highest score.
  """

  items: np.ndarray
  queries: np.ndarray
  true: np.ndarray
  patience: int
  scores: list[float] = dataclasses.field(default_factory=list)
  best: Any = None

  @classmethod
  def of(
    cls,
    X: np.ndarray,
    rows: np.ndarray,
    held: np.ndarray,
    scaling: Scaling,
    patience: int,
  ) -> Self:
    """Searches the neighbours of the rows `held` of X [N, E] among some of `rows`."""
    chosen = rows[np.linspace(0, len(rows) - 1, min(ITEMS, len(rows))).astype(int)]
    items, queries = scaling(X[chosen]), scaling(X[held])
    bank, asked = (np.asarray(numerics.l2_normalize(x)) for x in (items, queries))
    true = search.nearest(bank, asked, min(K, len(items)))
    return cls(items, queries, true, patience)

  def ends(self, params: Any, network: Autoencoder) -> bool:
    """Measures the parameters after an epoch; whether training should end."""
    items, queries = (
      np.asarray(coding.encode_scaled(params, x, network, True))
      for x in (self.items, self.queries)
    )
    found = search.nearest(items, queries, self.true.shape[1])
    self.scores.append(search.recall(found, self.true))
    best = int(np.argmax(self.scores))
    last = len(self.scores) - 1
    if best == last:
      # Copies: the next update overwrites the state.
      self.best = jax.tree.map(np.array, params)
    return last - best >= self.patience
