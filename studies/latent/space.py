"""Finite sample spaces whose latent classes, and so whose best features, are known."""

import dataclasses

import numpy as np

from ncl_jax import checks

KINDS = ("one_hot", "unequal", "overlapping", "no_anchors")


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
  """Samples x drawn from classes c; a positive pair is two draws from one class.

  `P(x, x') = sum_c P(c) P(x|c) P(x'|c)`: Assumption 1 of Wang et al. 2024
  (arXiv:2403.12459).

  Attributes:
    prior: [C] P(c).
    conditional: [M, C] P(x|c), columns of sum 1.
  """

  prior: np.ndarray
  conditional: np.ndarray

  @property
  def marginal(self) -> np.ndarray:
    """[M] P(x)."""
    return self.conditional @ self.prior

  @property
  def posterior(self) -> np.ndarray:
    """[M, C] P(c|x)."""
    return self.conditional * self.prior[None] / self.marginal[:, None]

  @property
  def phi(self) -> np.ndarray:
    """[M, C] `P(c|x) / sqrt(P(c))`: the features that NCL should find."""
    return self.posterior / np.sqrt(self.prior)[None]

  @property
  def pairs(self) -> np.ndarray:
    """[M, M] P(x, x')."""
    return (self.conditional * self.prior[None]) @ self.conditional.T

  @property
  def normalized_pairs(self) -> np.ndarray:
    """[M, M] A, `A_xx' = P(x, x') / sqrt(P(x) P(x'))`; it is F F^T of `scaled(phi)`."""
    root = np.sqrt(self.marginal)
    return self.pairs / (root[:, None] * root[None])

  def scaled(self, f: np.ndarray) -> np.ndarray:
    """[.., M, D] `F_x = sqrt(P(x)) f(x)`, the factor of A that features stand for."""
    return f * np.sqrt(self.marginal)[:, None]

  @property
  def bayes_error(self) -> float:
    """Of guessing the class from the sample: the least that any features reach."""
    return float(1 - self.marginal @ self.posterior.max(1))


def make(kind: str, classes: int = 8, per_class: int = 6, seed: int = 0) -> Space:
  """Makes a space of `classes * per_class` samples.

  Args:
    kind: "one_hot": a sample belongs to one class, classes are equally large.
      "unequal": the same with `P(c)` proportional to c + 1. "overlapping": half of the
      samples of a class are its own (anchors), the others it shares with a second
      class. "no_anchors": every sample may come from every class, most often its own.
    classes: C, 2 or more.
    per_class: 2 or more.
    seed: of the probabilities.

  Returns:
    The space.

  Raises:
    InputError: another kind or number.

  >>> space = make("one_hot", classes=2, per_class=2)
  >>> (space.posterior > 0).tolist()
  [[True, False], [True, False], [False, True], [False, True]]
  """
  checks.choice("kind", kind, KINDS)
  checks.whole("classes", classes, 2)
  checks.whole("per_class", per_class, 2)
  rng = np.random.default_rng(seed)
  home = np.repeat(np.arange(classes), per_class)
  own = np.eye(classes)[home]
  if kind == "overlapping":
    shared = np.arange(len(home)) % per_class >= per_class // 2
    step = rng.integers(1, classes, len(home))
    second = np.eye(classes)[(home + step) % classes]
    own = own + shared[:, None] * second * rng.uniform(0.3, 1, len(home))[:, None]
  elif kind == "no_anchors":
    own = own + rng.uniform(0.1, 0.3, own.shape)
  weight = own * rng.uniform(0.5, 1.5, len(home))[:, None]
  prior = np.arange(1.0, classes + 1) if kind == "unequal" else np.ones(classes)
  return Space(prior / prior.sum(), weight / weight.sum(0, keepdims=True))
