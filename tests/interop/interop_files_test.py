"""Files of tensors: what is read, what is refused, and that nothing is executed."""

import io
import os
import pickle
import re
import sys
import types

import numpy as np
import pytest
import safetensors.numpy

from ncl_jax import interop
from ncl_jax.errors import InputError
from ncl_jax.interop import torch_names

STATE = {
  "backbone.conv1.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
  "backbone.bn1.num_batches_tracked": np.array(7),
}


class Bomb:
  """Unpickled, it would make a file."""

  def __init__(self, path):
    self.path = str(path)

  def __reduce__(self):
    return open, (self.path, "w")


def write(path, state=STATE):
  if path.suffix == ".npz":
    np.savez(path, **state)
  else:
    safetensors.numpy.save_file(state, path)
  return path


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_reads_what_was_written(tmp_path, name):
  found = interop.read(write(tmp_path / name))
  assert found.keys() == STATE.keys()
  for key, array in STATE.items():
    np.testing.assert_array_equal(found[key], array)
    assert found[key].dtype == array.dtype


def content(kind, path):
  """Bytes that are not what a file's name says."""
  if kind == "empty":
    return b""
  if kind == "text":
    return b"<!DOCTYPE html>\n<html>404 not found</html>\n" * 9
  if kind == "pickle":
    return pickle.dumps({"state_dict": Bomb(path.with_name("executed"))})
  buffer = io.BytesIO()
  objects = np.array([Bomb(path.with_name("executed"))], object)
  np.savez(buffer, weight=objects)
  return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".ckpt", ".pth"])
@pytest.mark.parametrize("kind", ["empty", "text", "pickle", "objects"])
def test_anything_else_is_refused_and_nothing_executed(tmp_path, suffix, kind):
  path = tmp_path / f"a{suffix}"
  path.write_bytes(content(kind, path))
  with pytest.raises(InputError, match=re.escape(str(path))):
    interop.read(path)
  assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_bomb_would_go_off(tmp_path):
  pickle.loads(content("pickle", tmp_path / "a")).get("state_dict").close()
  assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
  ("state", "says"),
  [
    ({}, "no tensor"),
    ({"w": np.array([1.0, np.nan])}, "w holds numbers that are not finite"),
    ({"w": np.arange(3)}, "w is int64"),
    ({"w": np.array(["a"])}, "w is <U1"),
  ],
)
def test_tensors_that_are_no_weights(tmp_path, state, says):
  with pytest.raises(InputError, match=says):
    interop.read(write(tmp_path / "a.npz", state))


def test_names_and_places(tmp_path):
  with pytest.raises(FileNotFoundError, match="nowhere.npz"):
    interop.read(tmp_path / "nowhere.npz")
  (tmp_path / "a.bin").write_bytes(b"1")
  with pytest.raises(InputError, match=r"allowed: \.npz, \.safetensors, \.ckpt"):
    interop.read(tmp_path / "a.bin")
  (tmp_path / "folder.npz").mkdir()
  with pytest.raises(InputError, match="is not a file"):
    interop.read(tmp_path / "folder.npz")
  with (tmp_path / "a.npz").open("wb") as file:
    np.save(file, np.ones(2))
  with pytest.raises(InputError, match="not an .npz file"):
    interop.read(tmp_path / "a.npz")


def test_without_torch_the_way_on_is_told(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  (tmp_path / "a.ckpt").write_bytes(b"PK")
  with pytest.raises(InputError, match="pip install torch") as error:
    interop.read(tmp_path / "a.ckpt")
  # The advice is Python that runs, up to the missing package.
  lines = str(error.value).split("\n")[1:]
  compile("\n".join(line.strip() for line in lines), "advice", "exec")
  assert "weights_only=True" in str(error.value) and "a.safetensors" in str(error.value)


def test_torch_is_asked_for_weights_only_on_the_cpu(tmp_path, monkeypatch):
  asked = {}

  def load(path, **options):
    asked.update(options)
    return {"epoch": 3, "state_dict": "nothing"}

  torch = types.SimpleNamespace(load=load, Tensor=np.ndarray)
  monkeypatch.setitem(sys.modules, "torch", torch)
  (tmp_path / "a.pth").write_bytes(b"PK")
  with pytest.raises(InputError, match="'epoch' is a int, not a tensor"):
    interop.read(tmp_path / "a.pth")
  assert asked == {"map_location": "cpu", "weights_only": True}


def test_torchs_own_files(tmp_path):
  torch = pytest.importorskip("torch")
  path = tmp_path / "a.ckpt"
  weight = torch.nn.Parameter(torch.tensor([1.0, 2.5], dtype=torch.bfloat16))
  count = torch.tensor(3)
  torch.save({"epoch": 1, "state_dict": {"w": weight, "n": count}}, path)
  found = interop.read(path)
  np.testing.assert_array_equal(found["w"], np.float32([1, 2.5]))
  assert found["w"].dtype == np.float32 and found["n"] == 3
  torch.save({"w": weight, "hyper_parameters": Bomb(tmp_path / "executed")}, path)
  with pytest.raises(InputError, match="weights_only=False"):
    interop.read(path)
  torch.save([1, 2], path)
  with pytest.raises(InputError, match="holds a list"):
    interop.read(path)
  assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]


def test_a_file_is_never_replaced_nor_left_in_part(tmp_path):
  path = tmp_path / "a.bin"

  def fail(file):
    file.write(b"half")
    raise OSError("disk full")

  with pytest.raises(OSError, match="disk full"):
    interop.publish(path, fail)
  assert not list(tmp_path.iterdir())
  interop.publish(path, lambda file: file.write(b"whole"))
  with pytest.raises(InputError, match="exists already"):
    interop.publish(path, lambda file: file.write(b"other"))
  assert path.read_bytes() == b"whole"


def test_what_lies_transposed_is_stored_as_it_is_indexed():
  arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.float32(5)}
  found = safetensors.numpy.load(interop.tensors_to_bytes(arrays, {}))
  np.testing.assert_array_equal(found["a"], arrays["a"])
  assert found["b"].shape == ()


def test_prefixes():
  found = torch_names.standard_names(
    [
      "module.encoder.conv1.weight",
      "backbone.module.bn1.bias",
      "module.projector.0.bias",
      "momentum_encoder.conv1.weight",
      "module.momentum_projector.0.bias",
    ]
  )
  assert list(found.values()) == [
    "backbone.conv1.weight",
    "backbone.bn1.bias",
    "projector.0.bias",
  ]
  names = "encoder.conv1.weight", "backbone.conv1.weight"
  with pytest.raises(InputError, match="are two tensors for backbone.conv1.weight"):
    torch_names.standard_names(names)


def test_of_two_processes_that_write_a_file_the_first_wins(tmp_path):
  path = tmp_path / "codes.npz"

  def late(file):
    path.write_bytes(b"first")
    file.write(b"second")

  with pytest.raises(InputError, match="exists already"):
    interop.publish(path, late)
  assert path.read_bytes() == b"first"
  assert [entry.name for entry in tmp_path.iterdir()] == ["codes.npz"]


def test_a_file_system_without_hard_links_takes_files_too(tmp_path, monkeypatch):
  def refuse(*_):
    raise PermissionError(1, "Operation not permitted")

  monkeypatch.setattr(os, "link", refuse)
  interop.publish(tmp_path / "codes.npz", lambda file: file.write(b"whole"))
  assert (tmp_path / "codes.npz").read_bytes() == b"whole"
  assert len(list(tmp_path.iterdir())) == 1
