"""A run opened for evaluation: settings, weights and data, and features on demand."""

import abc
import dataclasses
import pathlib
from typing import Any, Self

import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import features
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.features import Features
from ncl_jax.host import paths
from ncl_jax.runtime import checkpoint
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib

LAYERS = ("h", "f")
ALL_LAYERS = ("h", "hidden", "z", "f")


class FeatureSource(abc.ABC):
  """Features of a data set's splits, from a network or from something simpler.

  Subclasses are frozen dataclasses.

  Attributes:
    config: resolved settings; its transform makes f of z.
  """

  config: ConfigDict
  source: Source
  mesh: Mesh

  def extract(self, split: str) -> Features:
    """Features of a split, computed once: take the arrays as read-only."""
    kept = self.__dict__.setdefault("_kept", {})
    if split not in kept:
      kept[split] = self._extract(split)
    return kept[split]

  def layer(self, name: str, split: str) -> np.ndarray:
    """One layer of a split, [N, width]; see `features.Features.layer`."""
    return self.extract(split).layer(name, self.config.loss.transform)

  def on(self, source: Source, eval_crop: float | None = None) -> Self:
    """The same features of other data.

    Args:
      eval_crop: share of an image's side that evaluation sees; None leaves it.
    """
    crop = self.config.augment.eval_crop if eval_crop is None else eval_crop
    if source is self.source and crop == self.config.augment.eval_crop:
      return self
    config = self.config.copy_and_resolve_references()
    config.augment.eval_crop = crop
    return self._on(config, source)

  def describe(self, **settings: Any) -> dict[str, Any]:
    """The settings that a result needs to be repeated; here `settings` add theirs."""
    config = self.config
    return {
      "split": "test",
      "images": self.source.num_examples("test"),
      **settings,
      "transform": config.loss.transform,
      "method": config.method,
      "seed": config.seed,
      "source": self.source.name,
      "unseen_test_images": self.source.unseen()[0],
      "eval_crop": config.augment.eval_crop,
      "size": config.augment.size,
      "mean": list(config.augment.mean),
      "std": list(config.augment.std),
    }

  @abc.abstractmethod
  def _extract(self, split: str) -> Features:
    """Computes the features of a split."""

  def _on(self, config: ConfigDict, source: Source) -> Self:
    return dataclasses.replace(self, config=config, source=source)  # type: ignore


@dataclasses.dataclass(frozen=True, eq=False)
class Run(FeatureSource):
  """A network with its settings and data.

  Attributes:
    variables: {"params", "batch_stats"} of one checkpoint.
    path: the absolute work directory; empty for a network that lies nowhere.
  """

  config: ConfigDict
  variables: Any
  source: Source
  mesh: Mesh
  path: pathlib.Path = pathlib.Path()
  step: int = 0

  def untrained(self) -> "Run":
    """The same network before its first step."""
    variables = state_lib.untrained(self.config, self.source, self.mesh)
    return dataclasses.replace(self, variables=variables)

  def extract_two_views(self, split: str) -> tuple[Features, Features]:
    """Features of two random views of each image; see the function in `features`."""
    return features.extract_two_views(
      self.variables, self.source, split, self.network(), seed=self.config.seed
    )

  def network(self) -> features.Network:
    """The network without its weights, for the functions of `features`."""
    return state_lib.network(self.config, self.mesh)

  def _extract(self, split: str) -> Features:
    return features.extract(self.variables, self.source, split, self.network())


def open_run(
  workdir: str | pathlib.Path, step: int | None = None, source: Source | None = None
) -> Run:
  """Reads the config, the data and a checkpoint of a work directory.

  Args:
    step: which checkpoint; None for the newest.

  Raises:
    FileNotFoundError: if there is no config or no such checkpoint.
    InputError: if either cannot be used.
  """
  path = paths.absolute(workdir)
  config = workdir_lib.read_config(path)
  sharding_lib.set_cpu_devices(config.train.batch_size, config.train.cpu_devices)
  source = source or workdir_lib.kept_source(config, "--data_source")
  if change := workdir_lib.data_changed(path, source):
    if workdir_lib.moved_to():
      raise InputError(
        f"{config.data.source} is not the training set of {path}: {change}. Name by "
        "--data_source the place that it was moved to"
      )
    logging.warning(
      "the training set of %s is not the one that %s was trained on: %s. Results are "
      "of other neighbours and probes%s",
      *(source.name, path, change),
      ", and of test images that it may have been trained on" * source.divided,
    )
  mesh = sharding_lib.make_mesh()
  shapes = state_lib.shapes(config, source)
  variables, step = checkpoint.load_model(
    path, shapes, sharding_lib.replicated(mesh), step
  )
  return Run(config, variables, source, mesh, path, step)
