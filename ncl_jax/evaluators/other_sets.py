"""Data sets beside a run's own: of the transfer, and of shifted test images."""

import functools
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import data as data_lib
from ncl_jax.data.source import Source
from ncl_jax.training import fingerprints


def transfer(spec: str, config: ConfigDict) -> Source:
  """The set that `selection` fits another probe to.

  Args:
    spec: as `data.load` takes it.
    config: of the run.
  """
  return _load(spec, fingerprints.stamp(spec), image_size=config.data.image_size)


def shifted(spec: str, config: ConfigDict, source: Source) -> Source:
  """The set that `robustness` looks at: of our classes, stored as ours is.

  Args:
    spec: as `data.load` takes it.
    config: of the run.
    source: its data.
  """
  other = _load(
    spec,
    fingerprints.stamp(spec),
    image_size=min(source.image_shape[:2]),
    on_bad_image=config.data.on_bad_image,
    need_train=False,
  )
  return data_lib.matched(other, source.class_names)


def fingerprint(program: str, config: ConfigDict, source: Source) -> dict[str, str]:
  """What a program reads: its part of a cache's key.

  Args:
    program: key of `evaluators.PROGRAMS`.
    config: of the run, or of the comparison where that decides on other sets.
    source: the run's data.

  Returns:
    Set -> digest; "" is the run's own.
  """
  found = {"": fingerprints.data(source)}
  if program == "selection" and config.eval.transfer:
    other = transfer(config.eval.transfer, config)
    found[config.eval.transfer] = fingerprints.data(other)
  if program == "robustness":
    for spec in config.eval.ood:
      found[spec] = fingerprints.data(shifted(spec, config, source), "test")
  return found


# A comparison asks for the same ones for every arm.
@functools.lru_cache(maxsize=2)
def _load(spec: str, stamp: tuple, **settings: Any) -> Source:
  del stamp  # of the files: others are loaded anew
  return data_lib.load(spec, **settings)
