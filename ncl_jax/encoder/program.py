"""The work of `launch.encode`: fits or loads an encoder, and reports on its codes."""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse
from ml_collections import ConfigDict

from ncl_jax import checks, interop
from ncl_jax.encoder.estimator import NonNegativeEncoder
from ncl_jax.encoder.search import InvertedIndex, nearest, recall
from ncl_jax.errors import InputError
from ncl_jax.host import npz, paths

# The settings of configs/embeddings.py; flags choose between sparse and dense codes.
FIELDS = tuple(sorted(NonNegativeEncoder().get_params().keys() - {"sparse_output"}))
K = 10
QUERIES = 1000  # largest number of rows held out as queries
ITEMS = 50_000  # largest number of rows searched
SHARES = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Input:
  """The embeddings [N, E], or positive pairs [N, 2, E].

  `file` is FILE.npy, FILE.npz or arrays:FILE.npz; `array` and `labels` are names in it.
  """

  file: str
  array: str
  labels: str


@dataclasses.dataclass(frozen=True)
class Output:
  """The codes that are written: to FILE.npz, "" = none; `dims` of them, 0 = all.

  `dense`: as an array `codes` instead of a matrix for `scipy.sparse.load_npz`.
  """

  file: str
  dims: int
  dense: bool


def run(
  config: ConfigDict | None, source: Input, encoder: str, out: Output
) -> list[dict[str, Any]]:
  """Fits an encoder, or loads one, and encodes a file's embeddings.

  Args:
    config: settings of a new encoder, see `FIELDS`; None: load an existing one.
    source: the embeddings.
    encoder: the encoder's file, NAME.safetensors.
    out: where the codes go.

  Returns:
    The rows of `table`.

  Raises:
    InputError: for invalid settings or data, before any training.
    FileNotFoundError: if a file is missing.
  """
  _check(config, encoder, out)
  if config is None:
    made = NonNegativeEncoder.load(encoder)
  else:
    made = NonNegativeEncoder(**config.to_dict())
  checks.whole("dims", out.dims, 0, made.n_components)
  arrays = _read(source.file, source.array)
  x = arrays[source.array]
  pairs = x.ndim == 3 and x.shape[1] == 2
  if x.ndim != 2 and not pairs:
    raise InputError(
      f"{source.array} in {source.file} has shape {x.shape}; allowed: [N, E] or pairs "
      "[N, 2, E]"
    )
  held = np.zeros(len(x), bool)
  count = min(QUERIES, len(x) // 10)
  held[np.random.default_rng(0).permutation(len(x))[:count]] = True
  rows, asked = (x.reshape(-1, x.shape[2]), np.repeat(held, 2)) if pairs else (x, held)
  try:
    if config is not None:
      made.fit(**_training(made, arrays, ~held, source))
      made.save(encoder)
    made.set_params(sparse_output=True)
    found = table(made, rows, asked)
  except ValueError as error:
    # scikit-learn's errors, too, state the problem in the first line.
    message = str(error).splitlines()[0]
    raise InputError(f"{source.array} in {source.file}: {message}") from error
  if out.file:
    codes = (made.shorten(out.dims) if out.dims else made).transform(rows)
    if out.dense:
      interop.publish(out.file, lambda file: np.savez(file, codes=codes.toarray()))
    else:
      interop.publish(out.file, lambda file: scipy.sparse.save_npz(file, codes))
  return found


def table(
  encoder: NonNegativeEncoder, rows: np.ndarray, held: np.ndarray
) -> list[dict[str, Any]]:
  """Statistics of full codes, and of their first half, quarter and eighth.

  Args:
    encoder: fitted, with sparse output.
    rows: [N, E] embeddings.
    held: [N] True for queries; the first `ITEMS` of the others are searched.

  Returns:
    For each length, or the full one alone if the encoder cannot be shortened: "dims";
    "active", the mean number of active dimensions in a code, and "most", the largest;
    "active_dims", how many are active in any code; "all_zero", the number of all-zero
    codes; "bytes" of a stored code (index and value take 4 each); and "recall", the
    share of the ten nearest embeddings (cosine, centred) that are among the ten nearest
    codes, NaN without ten items and a query.
  """
  width = len(encoder.params_["bias"])
  shares = SHARES if hasattr(encoder, "expected_activation_") else SHARES[:1]
  items = np.flatnonzero(~held)[:ITEMS]
  found, true = [], None
  for dims in sorted({max(1, width // share) for share in shares}, reverse=True):
    codes = (encoder.shorten(dims) if dims < width else encoder).transform(rows)
    if true is None and held.any() and len(items) >= K:
      centred = np.float32(rows - encoder.scaling_.mean)
      centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-30)
      true = nearest(centred[items], centred[held], K)
    share = np.nan
    if true is not None:
      share = recall(InvertedIndex(codes[items]).nearest(codes[held], K), true)
    used = np.diff(codes.indptr)
    found.append(
      {
        "dims": dims,
        "active": float(used.mean()),
        "most": int(used.max()),
        "active_dims": len(np.unique(codes.indices)),
        "all_zero": int(np.sum(used == 0)),
        "bytes": 8 * float(used.mean()),
        f"recall@{K}": share,
      }
    )
  return found


def text(rows: list[dict[str, Any]]) -> str:
  """The table as lines; undefined values are dashes."""

  def cell(value: Any) -> str:
    if not isinstance(value, float):
      return str(value)
    return f"{value:.3g}" if np.isfinite(value) else "-"

  lines = [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)]
  return "\n".join("".join(f"{word:>12}" for word in line) for line in lines)


def _check(config: ConfigDict | None, encoder: str, out: Output) -> None:
  """Raises an InputError for fields or names that cannot be meant."""
  if config is not None:
    unknown = sorted(set(config) ^ set(FIELDS))
    if unknown:
      raise InputError(f"the config has other fields than an encoder: {unknown}")
    if paths.local(encoder).exists():
      raise InputError(
        f"{encoder} exists already: leave --config out to use it, or choose another "
        "name to train another encoder"
      )
  endings = {encoder: ".safetensors"} | ({out.file: ".npz"} if out.file else {})
  for name, ending in endings.items():
    if not name.endswith(ending):
      raise InputError(f"{name}: the name must end in {ending}")
  if out.file:
    interop.check_free(out.file)
  elif out.dims:
    raise InputError(f"dims = {out.dims} applies to written codes: also give --out")


def _training(
  made: NonNegativeEncoder,
  arrays: dict[str, np.ndarray],
  rows: np.ndarray,
  source: Input,
) -> dict[str, np.ndarray]:
  """What the encoder is fitted to, of the rows that are not held out."""
  x = arrays[source.array][rows]
  given = {"X": x} if x.ndim == 2 else {"X": x[:, 0], "pairs": x[:, 1]}
  if made.positives == "labels":
    labels = arrays.get(source.labels)
    if labels is None or len(labels) != len(rows):
      raise InputError(
        f"positives = 'labels' needs an array {source.labels!r} of {len(rows)} labels "
        f"beside {', '.join(f'{k} {v.shape}' for k, v in arrays.items())}"
      )
    given["y"] = labels[rows]
  return given


def _read(file: str, array: str) -> dict[str, np.ndarray]:
  """The arrays of a file; that of an .npy is named `array`."""
  path = paths.local(file.removeprefix("arrays:"))
  arrays = npz.read(path, only=array)
  if array not in arrays:
    raise InputError(
      f"{path} has no array {array!r} but {', '.join(arrays)}: choose by --array"
    )
  if arrays[array].dtype.kind not in "fiu":
    raise InputError(f"{array} in {path} is {arrays[array].dtype}; allowed: numbers")
  if not arrays[array].ndim:
    raise InputError(f"{array} in {path} is a single number; allowed: rows")
  checks.finite(f"{array} in {path}", arrays[array])
  return arrays
