"""Writes fitted encoders to files and other packages' formats, and reads them."""

import pathlib
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ncl_jax.encoder import files, given, interchange, onnx_graph
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError


class Exchange:
  """The methods of `NonNegativeEncoder` that write and read files."""

  params_: dict[str, np.ndarray]
  scaling_: Scaling
  n_active: int
  n_features_in_: int
  normalize: bool
  tied: bool

  def save(self, path: str | pathlib.Path) -> None:
    """Writes tensors and settings to a new file NAME.safetensors.

    After `partial_fit` the file also holds the optimizer's state, twice as many numbers
    again, so that `partial_fit` on the loaded encoder continues exactly.

    Raises:
      InputError: if the file exists already or has another ending.
    """
    check_is_fitted(self)
    files.save(self, path)

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads a file that `save` wrote, without executing anything in it.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if it is another kind of file.
    """
    return files.load(cls, path)

  def to_sentence_transformers(self, folder: str | pathlib.Path) -> None:
    """Writes the weights as a `SparseAutoEncoder` module of sentence-transformers.

    The module takes embeddings as `transform` does. Its codes are not normalised.

    Raises:
      InputError: the decoder is free, or one of the files exists already.
    """
    check_is_fitted(self)
    if "decoder" in self.params_:  # whatever `tied` is now
      raise InputError(
        "tied = False: a SparseAutoEncoder's decoder is its encoder transposed"
      )
    active = given.active(self.n_active)
    interchange.write(folder, self.params_, self.scaling_, active)

  @classmethod
  def from_sentence_transformers(cls, folder: str | pathlib.Path) -> Self:
    """Reads a module that sentence-transformers or `to_sentence_transformers` wrote.

    Columns keep the module's order, so the encoder cannot be shortened.

    Raises:
      FileNotFoundError: if config.json or model.safetensors is missing.
      InputError: if they hold another module.
    """
    params, scaling, k = interchange.read(folder)
    made: Any = cls(params["kernel"].shape[1], n_active=k)  # type: ignore[call-arg]
    made.params_, made.scaling_ = params, scaling
    made.n_features_in_ = len(scaling.mean)
    return made

  def to_onnx(self, path: str | pathlib.Path) -> None:
    """Writes `transform` as a new file NAME.onnx, for runtimes without Python.

    The graph maps `embeddings` [N, E] float32 to dense `codes` [N, D] float32. Needs
    the package onnx.

    Raises:
      InputError: if the file exists already or has another ending.
    """
    check_is_fitted(self)
    active = given.active(self.n_active)
    onnx_graph.write(path, self.params_, self.scaling_, active, bool(self.normalize))
