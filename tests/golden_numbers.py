"""Golden numbers: arrays recorded by running the released PyTorch code on CPU."""

import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden"


def load(name: str) -> dict[str, np.ndarray]:
  """All arrays of `golden/NAME.npz`."""
  with np.load(FOLDER / f"{name}.npz") as file:
    return dict(file)


def tensors(name: str) -> dict:
  """The tensor list `golden/NAME_tensors.json`."""
  return json.loads((FOLDER / f"{name}_tensors.json").read_text())
