"""Warnings about unusual but accepted data, given once when a set is opened."""

import numpy as np

from ncl_jax.data.classes import listed
from ncl_jax.data.decode import spread
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError

IMAGES = 64  # number of images inspected
DARK = 32  # images whose values all lie below this are suspiciously dark


def found(source: Source) -> list[str]:
  """A sentence about each finding: equal or dark images, classes never trained on.

  Up to `IMAGES` training images are inspected.
  """
  sentences = []
  rows = np.array(spread(source.num_examples("train"), IMAGES))
  try:
    images = source.split("train").images[rows]
  except InputError:
    return []  # a damaged image is reported when it is used
  if len(images) > 1 and (images == images[:1]).all():
    sentences.append(
      f"{len(images)} of {len(images)} training {source.kind} looked at are the same: a"
      " contrastive loss stays at the logarithm of the number of candidates"
    )
  if not source.texts and images.max() < DARK:
    sentences.append(
      f"the brightest of {len(images)} training images has the value {images.max()} of "
      "255: are they stored in fewer bits? Rescale them, so that white is 255"
    )
  count, classes = source.unseen()
  if count:
    known = np.sum(source.split("test").labels >= 0)
    names = listed([source.class_names[k] for k in classes], 5)
    sentences.append(
      f"{count} of {known} labelled test {source.kind} are of {len(classes)} classes "
      f"without a training image ({names}): classifiers and neighbours cannot name "
      "them, and they count as errors"
    )
  return sentences
