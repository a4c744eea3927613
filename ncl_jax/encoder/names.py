"""Names the dimensions of codes by words or classes that their active items share."""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer

from ncl_jax import checks
from ncl_jax.data import labels as labels_lib
from ncl_jax.encoder import coding
from ncl_jax.errors import InputError

WORDS = 3  # of a name, at most
CANDIDATES = 10  # words that are tried for it
RAREST = 5  # items that have a word, at least
_DIMENSIONS = 256  # whose correlations are in memory at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Attributes:
  """What items have or do not have, such as words.

  Attributes:
    names: of the A attributes.
    has: bool [N, A], sparse: whether an item has an attribute.
    known: bool [N]: whether an item's attributes are known; the others do not count.
  """

  names: tuple[str, ...]
  has: scipy.sparse.csr_array
  known: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
  """Names of dimensions.

  Attributes:
    words: of each of the D dimensions at most `WORDS` attributes, the best first; none
      if none occurs more often in active items than in others.
    score: [D] correlation, over items that did not choose the words, between an item
      being active and having one of the words; 0 for a dimension without words.
    chance: [D] the same after items and their attributes were permuted.
  """

  words: tuple[tuple[str, ...], ...]
  score: np.ndarray
  chance: np.ndarray

  def kept(self, columns: np.ndarray) -> "Names":
    """Only these dimensions, in this order."""
    words = tuple(self.words[column] for column in columns)
    return Names(words, self.score[columns], self.chance[columns])

  def labels(self) -> np.ndarray:
    """[D] such as "3: dog, breed", or "3" without words."""
    texts = [f"{d}: {', '.join(w)}" if w else f"{d}" for d, w in enumerate(self.words)]
    return np.asarray(texts, object)

  def table(self) -> tuple[tuple[str, ...], np.ndarray]:
    """(the W different words, [W, D] scores of the dimensions with each, else 0)."""
    words = tuple(sorted({word for own in self.words for word in own}))
    values = np.zeros((len(words), len(self.words)), np.float32)
    for d, own in enumerate(self.words):
      values[[words.index(word) for word in own], d] = self.score[d]
    return words, values

  def query(self, word: str) -> scipy.sparse.csr_array:
    """[1, D] code of unit length: the scores of the dimensions with this word.

    Raises:
      InputError: no dimension has it with a score above 0; names similar words.
    """
    known = {d: own for d, own in enumerate(self.words) if self.score[d] > 0}
    found = [d for d, own in known.items() if word in own]
    if not found:
      others = sorted({other for own in known.values() for other in own})
      near = difflib.get_close_matches(word, others, cutoff=0) or others[:3]
      raise InputError(
        f"no dimension is named {word!r}; of {len(others)} names similar ones are: "
        f"{', '.join(near) or 'none'}"
      )
    weights = self.score[found] / np.linalg.norm(self.score[found])
    shape = (1, len(self.words))
    return scipy.sparse.csr_array((weights, (np.zeros_like(found), found)), shape)


class Named:
  """The methods of `NonNegativeEncoder` about names of dimensions."""

  names_: Names
  _blocks: Callable[[Any], Iterator[np.ndarray]]

  def name_dimensions(self, X: Any, *, texts: Any = None, labels: Any = None) -> Self:
    """Names each dimension by the words or classes of the items it is active in.

    `names_` then has the names with scores and chance levels, `get_feature_names_out`
    returns the names, and `query` searches by name.

    Args:
      X: [N, E] embeddings, in training or not.
      texts: [N] a text of each, whose words become names; or
      labels: [N] a class of each. Items without (None or NaN; for labels also -1 or
        "") do not count.

    Raises:
      InputError: both or neither are given, or of another number than X.
    """
    if (texts is None) == (labels is None):
      raise InputError("names are words of texts or classes: give texts or labels")
    codes = coding.stacked(self._blocks(X))
    attributes = of_labels(labels) if texts is None else of_texts(texts)
    self.names_ = separating(codes, attributes)
    return self

  def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
    """[D] names of the dimensions, with words after `name_dimensions`."""
    names = super().get_feature_names_out(input_features)  # type: ignore[misc]
    return self.names_.labels() if hasattr(self, "names_") else names

  def query(self, word: str) -> scipy.sparse.csr_array:
    """[1, D] a code that searches for items of a name, such as "dog".

    Raises:
      InputError: the dimensions have no names, or none has this word.
    """
    if not hasattr(self, "names_"):
      raise InputError("the dimensions have no names yet: call name_dimensions first")
    return self.names_.query(word)


def of_texts(texts: Sequence[str]) -> Attributes:
  """The lower-case words of at least two letters that occur in `RAREST` texts or more.

  >>> of_texts(["a dog", "Dog!", "the dog", "dog", "dogs, dog"]).names
  ('dog',)
  """
  known = np.array([not labels_lib.is_missing(text) for text in texts], bool)
  given = [str(text) if k else "" for text, k in zip(texts, known, strict=True)]
  words = CountVectorizer(
    binary=True, min_df=RAREST, token_pattern=r"[^\W\d_]{2,}", dtype=bool
  )
  try:
    has = words.fit_transform(given)
  except ValueError:  # there is no such word
    return Attributes((), scipy.sparse.csr_array((len(given), 0), dtype=bool), known)
  names = tuple(words.get_feature_names_out().tolist())
  return Attributes(names, scipy.sparse.csr_array(has), known)


def of_labels(labels: Sequence[Any]) -> Attributes:
  """The class of each item as its only attribute.

  Raises:
    InputError: labels that `data.labels` does not read.

  >>> of_labels(["dog", "cat", None]).names
  ('cat', 'dog')
  """
  found = labels_lib.parse(labels, "labels")
  labels_lib.check_coding([found], "labels")
  rows = np.flatnonzero(~found.missing)
  values, numbers = np.unique(found.values[rows], return_inverse=True)
  if np.asarray(labels).dtype == bool:
    values = values.astype(bool)
  has = scipy.sparse.csr_array(
    (np.ones(len(rows), bool), (rows, numbers)), (len(found.values), len(values))
  )
  return Attributes(tuple(map(str, values)), has, ~found.missing)


def separating(codes: Any, attributes: Attributes, seed: int = 0) -> Names:
  """Names each dimension by the attributes that separate its active items best.

  A random half of the items chooses. It takes the attribute of highest correlation (phi
  coefficient) with being active, then those that raise the correlation of having at
  least one of them. The other half gives the score.

  Entries above 0 of `codes` [N, D], sparse or dense, are active. `attributes` are of
  the same items; `seed` is of the halves and of the permutation for the chance level.

  Raises:
    InputError: another number of items, or fewer than four whose attributes are known.
  """
  active, known = scipy.sparse.csr_array(codes) > 0, np.flatnonzero(attributes.known)
  items = attributes.has.shape[0]
  if active.shape[0] != items:
    raise InputError(f"{active.shape[0]} codes for {items} items: one each is needed")
  checks.whole("number of items", len(known), 4)
  active, has = active[known], attributes.has[known]
  random = np.random.default_rng(seed)
  order = random.permutation(len(known))
  chosen, score = _chosen(active, has, order)
  _, chance = _chosen(active[random.permutation(len(known))], has, order)
  words = tuple(tuple(attributes.names[i] for i in own) for own in chosen)
  return Names(words, score, chance)


def correlation(both: Any, first: Any, second: Any, count: int) -> np.ndarray:
  """The phi coefficient, in -1..1, of two yes-or-no properties of `count` items.

  `first` and `second` items have the one and the other, and `both` items have both. 0
  if all items or none have a property.

  >>> float(correlation(2, 2, 2, 4)), float(correlation(0, 2, 2, 4))
  (1.0, -1.0)
  """
  both, first, second = (np.asarray(n, np.float64) for n in (both, first, second))
  spread = np.sqrt(first * (count - first) * second * (count - second))
  return np.where(
    spread > 0, (count * both - first * second) / (spread + ~(spread > 0)), 0
  )


def _chosen(active: Any, has: Any, order: np.ndarray) -> tuple[list, np.ndarray]:
  """(attributes, score) of each dimension: half of `order` chooses, half scores."""
  halves = np.split(order, [len(order) // 2])
  chooses, scores = (
    tuple(scipy.sparse.csc_array(x[rows]) for x in (active, has)) for rows in halves
  )
  chosen = []
  for d, ranked in enumerate(_candidates(active[halves[0]], has[halves[0]])):
    words: list[int] = []
    best = 0.0
    for word in ranked:
      if (value := _of_words(chooses, d, [*words, word])) > best:
        words, best = [*words, word], value
      if len(words) == WORDS:
        break
    chosen.append(words)
  return chosen, np.array([_of_words(scores, d, own) for d, own in enumerate(chosen)])


def _candidates(active: Any, has: Any) -> np.ndarray:
  """[D, up to `CANDIDATES`] attributes of each dimension, by falling correlation."""
  has, count = np.float64(1) * has, active.shape[0]
  second = np.asarray(has.sum(0)).ravel()
  found = []
  for start in range(0, active.shape[1], _DIMENSIONS):
    part = np.float64(1) * active[:, start : start + _DIMENSIONS]
    first = np.asarray(part.sum(0)).reshape(-1, 1)
    rows = correlation((part.T @ has).toarray(), first, second[None], count)
    found.append(np.argsort(-rows, axis=1, kind="stable")[:, :CANDIDATES])
  return np.concatenate(found)


def _of_words(items: Any, d: int, words: list[int]) -> float:
  """Correlation between dimension d being active and having one of the words."""
  active, has = items  # column by column
  on = active.indices[active.indptr[d] : active.indptr[d + 1]]
  any_word = np.unique(has[:, words].indices)
  both = len(np.intersect1d(on, any_word))
  return float(correlation(both, len(on), len(any_word), active.shape[0]))
