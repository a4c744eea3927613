"""What a dimension stands for: a wide group, one narrow group within it, or nothing.

Wide and narrow are a coarse and a fine class, or one object of an image and the pair
that it makes with another. All at matched activity, see `metrics.activated`.
"""

import dataclasses

import numpy as np

from ncl_jax import metrics

SHARE = 0.75  # of the activated images: from here on a dimension stands for a group
SHUFFLES = 10


@dataclasses.dataclass(frozen=True)
class Groups:
  """Which images are in which group.

  Attributes:
    wide: bool [N, K]; an image may be in several.
    narrow: bool [N, M]; each image in one.
    inside: bool [K, M], whether a narrow group lies within a wide one.
  """

  wide: np.ndarray
  narrow: np.ndarray
  inside: np.ndarray


@dataclasses.dataclass(frozen=True)
class Meaning:
  """What each of D dimensions stands for; NaN in a constant one.

  Attributes:
    wide: [D], largest share of a wide group among the activated images.
    narrow: [D], likewise of a narrow group.
    best: int [D], the wide group of the largest share.
    inner: [D], of the activated images in that group, the largest share that one of its
      narrow groups has.
  """

  wide: np.ndarray
  narrow: np.ndarray
  best: np.ndarray
  inner: np.ndarray


def two_levels(coarse: np.ndarray, fine: np.ndarray) -> Groups:
  """Groups by two labels [N] of each image, the fine class deciding the coarse one."""
  wide, narrow = onehot(coarse), onehot(fine)
  return Groups(wide, narrow, (wide.T @ narrow.astype(int)) > 0)


def two_objects(one: np.ndarray, other: np.ndarray, classes: int) -> Groups:
  """Groups of images that hold an object of each of two classes [N]: wide is a class
  that an image holds, narrow the pair of them."""
  low, high = np.minimum(one, other), np.maximum(one, other)
  pairs = [(a, b) for a in range(classes) for b in range(a + 1, classes)]
  number = {pair: i for i, pair in enumerate(pairs)}
  chosen = np.array([number[pair] for pair in zip(low, high, strict=True)])
  kinds = np.arange(classes)
  inside = np.stack([(kinds[:, None] == pair).any(1) for pair in pairs], axis=1)
  wide = (kinds == one[:, None]) | (kinds == other[:, None])
  return Groups(wide, np.arange(len(pairs)) == chosen[:, None], inside)


def onehot(labels: np.ndarray) -> np.ndarray:
  """Bool [N, K] of labels [N], K the number of different ones."""
  return np.unique(labels) == labels[:, None]


def of_dimensions(weight: np.ndarray, groups: Groups) -> Meaning:
  """What each dimension stands for.

  Args:
    weight: [N, D], from `metrics.activated`.
    groups: of the N images.
  """
  wide, narrow = shares(weight, groups.wide), shares(weight, groups.narrow)
  best = np.argmax(wide, axis=1)
  within = np.where(groups.inside[best], narrow, 0).max(1)
  return Meaning(wide.max(1), narrow.max(1), best, within / wide.max(1))


def shares(weight: np.ndarray, marks: np.ndarray) -> np.ndarray:
  """[D, K] share of the activated images of each dimension that have each mark."""
  return (weight.T @ marks.astype(weight.dtype)) / weight.sum(0)[:, None]


def figures(
  f: np.ndarray, groups: Groups, activity: float, seed: int
) -> dict[str, float]:
  """Means over live dimensions, and what permuted groups give.

  Args:
    f: [N, D] features.
    groups: of the N images.
    activity: share of the images that count as activating a dimension.
    seed: of the permutations.

  Returns:
    live (dimensions that are not constant), wide, narrow and inner, as `Meaning` has
    them, inner over dimensions whose wide group has several narrow ones; each with
    `_chance`: the images permuted, and for inner only those within the wide group.
    Then shares of the live dimensions, which add up to 1: nothing (wide below `SHARE`),
    and of the others single (the wide group has one narrow group only), narrow_group
    (inner at least `SHARE`), wide_group (less: several narrow groups are in it).
  """
  weight = np.asarray(metrics.activated(f, activity))
  weight = weight[:, ~np.isnan(weight[0])]
  found = of_dimensions(weight, groups)
  several = groups.inside.sum(1)[found.best] > 1
  stands = found.wide >= SHARE
  generator = np.random.default_rng(seed)
  chance = {"wide": [], "narrow": [], "inner": []}
  for _ in range(SHUFFLES):
    order = generator.permutation(len(weight))
    chance["wide"].append(shares(weight, groups.wide[order]).max(1).mean())
    chance["narrow"].append(shares(weight, groups.narrow[order]).max(1).mean())
    chance["inner"].append(_permuted_within(weight, groups, found, generator)[several])
  return {
    "live": weight.shape[1],
    "wide": float(found.wide.mean()),
    "wide_chance": float(np.mean(chance["wide"])),
    "narrow": float(found.narrow.mean()),
    "narrow_chance": float(np.mean(chance["narrow"])),
    "inner": float(found.inner[several].mean()),
    "inner_chance": float(np.mean(chance["inner"])),
    "nothing": float(np.mean(~stands)),
    "single": float(np.mean(stands & ~several)),
    "narrow_group": float(np.mean(stands & several & (found.inner >= SHARE))),
    "wide_group": float(np.mean(stands & several & (found.inner < SHARE))),
  }


def _permuted_within(
  weight: np.ndarray, groups: Groups, found: Meaning, generator: np.random.Generator
) -> np.ndarray:
  """[D] `inner`, the narrow groups permuted among the images of the best wide one."""
  inner = np.empty(weight.shape[1])
  for k in np.unique(found.best):
    dims = found.best == k
    rows = np.flatnonzero(groups.wide[:, k])
    narrow = groups.narrow[np.ix_(generator.permutation(rows), groups.inside[k])]
    part = weight[np.ix_(rows, dims)]
    inner[dims] = shares(part, narrow).max(1)
  return inner
