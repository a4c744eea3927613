"""Encoders in files, and as ONNX graphs."""

import copy
import sys

import numpy as np
import pytest

from ncl_jax import interop
from ncl_jax.encoder import NonNegativeEncoder
from ncl_jax.errors import InputError


def test_a_file_gives_the_same_codes(tmp_path, x, fitted):
  file = tmp_path / "a b" / "encoder.safetensors"
  fitted.save(file)
  again = NonNegativeEncoder.load(file)
  np.testing.assert_array_equal(again.transform(x), fitted.transform(x))
  np.testing.assert_array_equal(
    again.shorten(4).transform(np.float32(x)),
    fitted.shorten(4).transform(np.float32(x)),
  )
  assert again.get_params() == fitted.get_params()
  with pytest.raises(InputError, match="exists already"):
    fitted.save(file)
  with pytest.raises(ValueError, match="expecting 6 features"):
    again.transform(x[:, :5])


@pytest.mark.parametrize("settings", [{}, {"n_active": 0}, {"normalize": False}])
def test_an_onnx_graph_gives_the_same_codes(tmp_path, x, fitted, settings):
  pytest.importorskip("onnx")
  runtime = pytest.importorskip("onnxruntime")
  made = copy.deepcopy(fitted).set_params(**settings)
  made.to_onnx(tmp_path / "a.onnx")
  rows = np.float32(np.concatenate([x, made.scaling_.mean[None]]))
  rows[-1] -= 1e3 * np.float32(made.scaling_.deviation)  # far out
  session = runtime.InferenceSession(tmp_path / "a.onnx")
  (codes,) = session.run(None, {"embeddings": rows})
  expected = made.transform(rows)
  np.testing.assert_array_equal(codes > 0, expected > 0)
  np.testing.assert_allclose(codes, expected, rtol=1e-5, atol=1e-6)
  with pytest.raises(InputError, match="exists"):
    made.to_onnx(tmp_path / "a.onnx")
  with pytest.raises(InputError, match=r"end in \.onnx"):
    made.to_onnx(tmp_path / "a.pt")


def test_a_missing_onnx_is_named(tmp_path, fitted, monkeypatch):
  monkeypatch.setitem(sys.modules, "onnx", None)
  with pytest.raises(InputError, match="pip install onnx"):
    fitted.to_onnx(tmp_path / "a.onnx")


def test_a_file_keeps_names_free_decoders_and_no_generator(tmp_path, x):
  encoder = NonNegativeEncoder(
    np.int64(4), tied=False, epochs=0, random_state=np.random.RandomState(0)
  ).fit(x)
  # As scikit-learn notes it where X is a table with names.
  encoder.feature_names_in_ = np.array(list("abcdef"), object)
  encoder.save(tmp_path / "e.safetensors")
  again = NonNegativeEncoder.load(tmp_path / "e.safetensors")
  assert again.feature_names_in_.tolist() == list("abcdef")
  with pytest.warns(UserWarning, match="valid feature names"):
    codes = encoder.transform(x), again.transform(x)
  np.testing.assert_array_equal(*codes)
  assert again.random_state is None and not again.tied


def test_other_files_are_refused(tmp_path, fitted):
  load, file = NonNegativeEncoder.load, tmp_path / "x.safetensors"
  with pytest.raises(FileNotFoundError, match="no such file"):
    load(file)
  file.write_bytes(b"no tensors")
  with pytest.raises(InputError, match="not a .safetensors"):
    load(file)
  other = tmp_path / "y.safetensors"
  other.write_bytes(interop.tensors_to_bytes({"a": np.zeros(2, np.float32)}, {}))
  with pytest.raises(InputError, match="not written by"):
    load(other)
  fitted.save(tmp_path / "z.safetensors")
  # A setting of a later version.
  content = (tmp_path / "z.safetensors").read_bytes()
  later = content.replace(b'n_active\\"', b'n_agtive\\"')
  assert later != content
  other.write_bytes(later)
  with pytest.raises(InputError, match="not written by"):
    load(other)
  with pytest.raises(InputError, match="end in .safetensors"):
    fitted.save(tmp_path / "x.npz")
