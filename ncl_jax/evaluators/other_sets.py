"""Further data sets: of the transfer, and of shifted test images."""

import functools
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import data as data_lib
from ncl_jax.data.source import Source
from ncl_jax.training import fingerprints


def transfer(spec: str, config: ConfigDict) -> Source:
  """The transfer set, to which `selection` fits another probe."""
  return _load(spec, fingerprints.stamp(spec), image_size=config.data.image_size)


def shifted(spec: str, config: ConfigDict, source: Source) -> Source:
  """An out-of-distribution set for `robustness`: our classes, our image size."""
  other = _load(
    spec,
    fingerprints.stamp(spec),
    image_size=min(source.image_shape[:2]),
    on_bad_image=config.data.on_bad_image,
    need_train=False,
  )
  return data_lib.matched(other, source.class_names)


def transfer_digest(config: ConfigDict, source: Source) -> dict[str, str]:
  """`eval.transfer` -> digest of its data; {} if there is none."""
  spec = config.eval.transfer
  return {spec: fingerprints.data(transfer(spec, config))} if spec else {}


def shifted_digests(config: ConfigDict, source: Source) -> dict[str, str]:
  """Each set of `eval.ood` -> digest of its test images."""
  return {
    spec: fingerprints.data(shifted(spec, config, source), "test")
    for spec in config.eval.ood
  }


# A comparison asks for the same ones for every method.
@functools.lru_cache(maxsize=2)
def _load(spec: str, stamp: tuple, **settings: Any) -> Source:
  del stamp  # of the files: others are loaded anew
  return data_lib.load(spec, **settings)
