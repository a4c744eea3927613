"""Which dimensions and images a figure shows: pure functions on the feature matrix."""

import dataclasses

import numpy as np
import scipy.cluster.hierarchy
import scipy.spatial.distance

from ncl_jax import metrics


def active_dimensions(f: np.ndarray, threshold: float) -> np.ndarray:
  """Indices of the dimensions with `|f| > threshold` for at least one image, [live].

  >>> active_dimensions(np.array([[0.0, 1.0], [0.0, -1.0]]), 1e-5).tolist()
  [1]
  """
  return np.flatnonzero(metrics.active_dimensions(f, threshold))


@dataclasses.dataclass(frozen=True)
class TopImages:
  """The images that activate some dimensions most.

  Attributes:
    dimensions: [R] highest expected activation first.
    images: [R, C] of each, highest activation first, -1 = none left.
    majority: [R] most frequent class among these images, -1 where none is labelled.
    share: [R] of that class among the labelled ones, NaN without one.
  """

  dimensions: np.ndarray
  images: np.ndarray
  majority: np.ndarray
  share: np.ndarray


def top_images(
  f: np.ndarray, labels: np.ndarray, threshold: float, rows: int = 8, columns: int = 8
) -> TopImages:
  """Picks the most active dimensions and, for each, its most activating images.

  Only images with `f > threshold` in the dimension count. Ties go to the lower index,
  of dimensions, images and classes alike.

  Args:
    f: features after the transform, rows of unit length, [N, D].
    labels: classes, -1 = unlabelled, [N].
    rows: R, dimensions at most, of the active ones those with the largest mean.
    columns: C, images at most for each.

  >>> f = np.array([[0.6, 0.8], [0.0, 1.0]])
  >>> top_images(f, np.array([7, 7]), 1e-5).images.tolist()
  [[1, 0], [0, -1]]
  """
  live = active_dimensions(f, threshold)
  activation = np.asarray(metrics.expected_activation(f))[live]
  chosen = live[np.argsort(-activation, kind="stable")[:rows]]
  values = f[:, chosen].T
  order = np.argsort(-values, axis=1, kind="stable")[:, :columns]
  images = np.where(np.take_along_axis(values, order, axis=1) > threshold, order, -1)
  majority = np.full(len(chosen), -1)
  share = np.full(len(chosen), np.nan)
  for row, shown in enumerate(images):
    known = labels[shown[shown >= 0]]
    known = known[known >= 0]
    if known.size:
      counts = np.bincount(known)
      majority[row] = counts.argmax()
      share[row] = counts.max() / known.size
  return TopImages(chosen, images, majority, share)


def correlation_order(
  f: np.ndarray,
  labels: np.ndarray,
  correlation: np.ndarray,
  threshold: float,
  most: int = 256,
) -> tuple[np.ndarray, np.ndarray]:
  """Order in which a heat map shows the active dimensions.

  With labels: by dominant class (the class with the largest mean of f), within a class
  by that mean. Without: leaves of an average-linkage tree on the distance `1 - |C|`.

  Args:
    f: features after the transform, [N, D].
    labels: classes, -1 = unlabelled, [N].
    correlation: C of all dimensions, [D, D].
    most: M, dimensions at most: the active ones with the largest mean of |f|.

  Returns:
    Dimensions in order [M] and the dominant class of each [M], -1 without labels.
  """
  live = active_dimensions(f, threshold)
  activity = np.abs(f[:, live]).mean(axis=0)
  chosen = np.sort(live[np.argsort(-activity, kind="stable")[:most]])
  classes = np.unique(labels[labels >= 0])
  if classes.size:
    means = np.stack([f[labels == k][:, chosen].mean(axis=0) for k in classes])
    dominant = classes[means.argmax(axis=0)]
    order = np.lexsort((-means.max(axis=0), dominant))
    return chosen[order], dominant[order]
  if chosen.size > 2:
    c = np.abs(correlation[np.ix_(chosen, chosen)])
    distance = np.clip(1 - (c + c.T) / 2, 0, 1)
    np.fill_diagonal(distance, 0)
    condensed = scipy.spatial.distance.squareform(distance, checks=False)
    tree = scipy.cluster.hierarchy.linkage(condensed, "average")
    chosen = chosen[scipy.cluster.hierarchy.leaves_list(tree)]
  return chosen, np.full(chosen.size, -1)
