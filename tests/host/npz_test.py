"""Array files: what numpy cannot say, and what is larger than the machine."""

import io
import zipfile

import ml_dtypes
import numpy as np
import pytest

from ncl_jax import data, interop
from ncl_jax.encoder import program
from ncl_jax.errors import InputError
from ncl_jax.host import npz

VALUES = np.random.default_rng(0).normal(size=(6, 4)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("end", ["npy", "npz"])
def test_bfloat16_is_read_although_numpy_has_no_name_for_it(end, tmp_path):
  file = tmp_path / f"x.{end}"
  np.save(file, VALUES) if end == "npy" else np.savez(file, z=VALUES)
  found = npz.read(file, only="z")["z"]
  np.testing.assert_array_equal(found, VALUES.astype(np.float32), strict=True)
  rows = program._read(f"arrays:{file}", "z")["z"]
  np.testing.assert_array_equal(rows, found)


def test_images_in_bfloat16(tmp_path):
  share = np.random.default_rng(0).random((10, 4, 4))
  np.savez(tmp_path / "x.npz", images=share.astype(ml_dtypes.bfloat16))
  source = data.load(f"arrays:{tmp_path}/x.npz")
  found = np.concatenate([s.images for s in source.splits.values()])
  assert abs(found.mean() / 255 - share.mean()) < 0.01


def test_types_that_numpy_loses_are_told_with_the_remedy(tmp_path):
  np.savez(tmp_path / "x.npz", z=np.zeros(3, "V3"))
  with pytest.raises(InputError, match=r"z in .* \|V3.*astype\(numpy.float32\)"):
    npz.read(tmp_path / "x.npz")


def header(shape):
  stream = io.BytesIO()
  described = {"descr": "|u1", "fortran_order": False, "shape": shape}
  np.lib.format.write_array_header_1_0(stream, described)
  return stream.getvalue()


@pytest.mark.parametrize("end", ["npy", "npz"])
def test_a_header_that_announces_more_than_the_file_holds(end, tmp_path):
  """`numpy.load` allocates first: 9 TB."""
  file = tmp_path / f"x.{end}"
  content = header((10**13,)) + b"\0" * 9
  if end == "npy":
    file.write_bytes(content)
  else:
    with zipfile.ZipFile(file, "w") as archive:
      archive.writestr("z.npy", content)
  with pytest.raises(InputError, match="announces 10000000000000 uint8.* holds 9"):
    npz.read(file, only="z")


def test_more_than_the_memory_is_refused_with_both_numbers(tmp_path, monkeypatch):
  np.savez_compressed(tmp_path / "x.npz", images=np.zeros((3000, 32, 32), np.uint8))
  monkeypatch.setattr(npz, "memory", lambda: 2**20)
  with pytest.raises(InputError, match=r"holds 0\.0 GiB .* 0\.0 GiB of memory; split"):
    data.load(f"arrays:{tmp_path}/x.npz")
  monkeypatch.setattr(npz, "memory", lambda: 0)  # a system that does not say
  assert data.load(f"arrays:{tmp_path}/x.npz", image_size=8).num_examples("test") == 600


def test_files_that_numpy_wrote_are_read(tmp_path):
  arrays = {"a": np.arange(6).reshape(2, 3).T, "b": np.array(["x", "yz"])}
  arrays |= {"c": np.float64(3.5), "d": np.zeros((0, 3)), "e": np.array([b"x"])}
  for save in (np.savez, np.savez_compressed):
    save(tmp_path / "x.npz", **arrays)
    found = npz.read(tmp_path / "x.npz")
    for key, array in arrays.items():
      np.testing.assert_array_equal(found[key], array, strict=True)


def test_weights_in_bfloat16_are_read(tmp_path):
  np.savez(tmp_path / "x.npz", w=VALUES)
  np.testing.assert_array_equal(
    interop.read(tmp_path / "x.npz")["w"], VALUES.astype(np.float32)
  )
