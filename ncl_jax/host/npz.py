"""Reads .npy and .npz files, but no Python objects and no more than the memory."""

import io
import math
import os
import pathlib
import zipfile
import zlib
from typing import IO

import ml_dtypes
import numpy as np
from absl import logging

from ncl_jax.errors import InputError
from ncl_jax.host import paths

_BFLOAT16 = np.dtype("V2")  # how numpy stores it


def read(path: str | os.PathLike, only: str = "") -> dict[str, np.ndarray]:
  """The arrays of a file, by name.

  numpy stores bfloat16 as "|V2", two bytes without a type; such arrays are returned as
  float32.

  Args:
    path: FILE.npz, or FILE.npy with one array.
    only: name for the array of a .npy file.

  Raises:
    InputError: if the file is missing, of another kind or damaged, holds Python
      objects, or declares more than the memory.
  """
  file = paths.local(path)
  if file.is_dir():
    raise InputError(f"{file} is a folder; allowed: an .npz file")
  if not file.is_file():
    raise InputError(f"no file {file}")
  try:
    if zipfile.is_zipfile(file):
      _check_archive(file)
      with np.load(file, allow_pickle=False) as opened:
        arrays = {name: opened[name] for name in opened.files}
    elif only:
      with file.open("rb") as stream:
        _check_header(stream, file.stat().st_size, f"{file}")
      arrays = {only: np.load(file, allow_pickle=False)}
    else:
      raise InputError(f"{file} is not an .npz file, as numpy.savez makes them")
  except InputError:
    raise
  except (
    OSError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
  ) as error:
    what = "is no .npy or .npz file of numbers" if only else "cannot be read"
    raise InputError(f"{file} {what}: {_reason(error)}") from error
  return {name: _known(array, name, file) for name, array in arrays.items()}


def memory() -> int:
  """Bytes of main memory; 0 if the system does not report it."""
  try:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  except (AttributeError, OSError, ValueError):
    return 0


def _check_archive(file: pathlib.Path) -> None:
  """Compares the sizes in the headers with the file and with the memory."""
  with zipfile.ZipFile(file) as archive:
    members = [m for m in archive.infolist() if m.filename.endswith(".npy")]
    _check_memory(sum(member.file_size for member in members), f"{file}")
    for member in members:
      with archive.open(member) as stream:
        _check_header(stream, member.file_size, f"{file}, {member.filename[:-4]}")


def _check_header(stream: IO[bytes], size: int, what: str) -> None:
  head = io.BytesIO(stream.read(1 << 16))
  version = np.lib.format.read_magic(head)
  read_header = (
    np.lib.format.read_array_header_1_0
    if version == (1, 0)
    else np.lib.format.read_array_header_2_0
  )
  shape, _, dtype = read_header(head)
  announced = math.prod(shape) * dtype.itemsize
  if dtype.hasobject:
    return  # `numpy.load` refuses it
  if announced != size - head.tell():
    raise InputError(
      f"{what}: announces {' x '.join(map(str, shape))} {dtype}, {announced} bytes, but"
      f" holds {size - head.tell()}: the file is damaged"
    )
  _check_memory(announced, what)


def _check_memory(announced: int, what: str) -> None:
  if announced > (memory() or announced):
    raise InputError(
      f"{what} holds {announced / 2**30:,.1f} GiB of arrays, and this machine has "
      f"{memory() / 2**30:,.1f} GiB of memory; split it, or use image files and "
      "folder:PATH, which are read batch by batch"
    )


def _known(array: np.ndarray, name: str, file: pathlib.Path) -> np.ndarray:
  if array.dtype.kind != "V" or array.dtype.names:
    return array
  if array.dtype != _BFLOAT16:
    raise InputError(
      f"{name} in {file} is {array.dtype}, a type that numpy does not know; save it as "
      "array.astype(numpy.float32)"
    )
  logging.info("%s: %s is |V2, read as bfloat16", file, name)
  return array.view(ml_dtypes.bfloat16).astype(np.float32)


def _reason(error: Exception) -> str:
  if "allow_pickle" in str(error) or "Object arrays" in str(error):
    return (
      "it holds Python objects, which are never read, as that would run what is in "
      'the file; save numbers, or names as numpy.array(names, dtype="U")'
    )
  return str(error) or type(error).__name__
