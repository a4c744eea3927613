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
  """The embeddings.

  Attributes:
    file: FILE.npy, FILE.npz or `arrays:FILE.npz`.
    array: name in an .npz of the embeddings [N, E], or of positive pairs [N, 2, E].
    labels: name in an .npz of the labels [N], used if positives are "labels".
  """

  file: str
  array: str = "embeddings"
  labels: str = "labels"


@dataclasses.dataclass(frozen=True)
class Output:
  """The codes that are written.

  Attributes:
    file: FILE.npz; "" = none.
    dims: dimensions of the written codes; 0 = all.
    dense: write an array `codes` instead of a matrix for `scipy.sparse.load_npz`.
  """

  file: str = ""
  dims: int = 0
  dense: bool = False


NOTHING = Output()


def run(
  config: ConfigDict | None, source: Input, encoder: str, out: Output = NOTHING
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
  paired = x.ndim == 3 and x.shape[1] == 2
  if x.ndim != 2 and not paired:
    raise InputError(
      f"{source.array} in {source.file} has shape {x.shape}; allowed: [N, E] or pairs "
      "[N, 2, E]"
    )
  if config is None and x.shape[-1] != made.n_features_in_:
    raise InputError(
      f"{source.array} in {source.file} has {x.shape[-1]} columns: {encoder} takes "
      f"{made.n_features_in_}"
    )
  held = np.zeros(len(x), bool)
  count = min(QUERIES, len(x) // 10)
  held[np.random.default_rng(0).permutation(len(x))[:count]] = True
  if config is not None:
    try:
      _fit(made, arrays, held, source)
    except ValueError as error:
      # scikit-learn's errors, too, state the problem in the first line.
      message = str(error).splitlines()[0]
      raise InputError(f"{source.file}: {message}") from error
    made.save(encoder)
  made.set_params(sparse_output=True)
  rows = x.reshape(-1, x.shape[-1])
  held = np.repeat(held, 2) if paired else held
  found = table(made, rows, held)
  if out.file:
    _write(out, made.shorten(out.dims) if out.dims else made, rows)
  return found


def table(
  encoder: NonNegativeEncoder, rows: np.ndarray, held: np.ndarray
) -> list[dict[str, Any]]:
  """Statistics of full codes, and of their first half, quarter and eighth.

  Args:
    encoder: fitted.
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
  k = K if held.any() and len(items) >= K else 0
  if k:
    centred = np.float32(rows - encoder.scaling_.mean)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-30)
    true = nearest(centred[items], centred[held], k)
  found = []
  for dims in sorted({max(1, width // share) for share in shares}, reverse=True):
    codes = (encoder.shorten(dims) if dims < width else encoder).transform(rows)
    used = np.diff(codes.indptr)
    share = np.nan
    if k:
      share = recall(InvertedIndex(codes[items]).nearest(codes[held], k), true)
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

  cells = [list(rows[0])]
  for row in rows:
    cells.append([cell(value) for value in row.values()])
  return "\n".join("".join(f"{cell:>12}" for cell in line) for line in cells)


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
  if out.file and paths.local(out.file).exists():
    raise InputError(f"{out.file} exists already: remove it or choose another name")
  if out.dims and not out.file:
    raise InputError(f"dims = {out.dims} applies to written codes: also give --out")


def _fit(
  made: NonNegativeEncoder,
  arrays: dict[str, np.ndarray],
  held: np.ndarray,
  source: Input,
) -> None:
  """Fits an encoder to the rows that are not held out."""
  settings = {}
  x, file = arrays[source.array][~held], source.file
  paired = x.ndim == 3
  if paired != (made.positives == "pairs"):
    shape = "pairs [N, 2, E]" if paired else "embeddings [N, E]"
    raise InputError(f"positives = {made.positives!r}, and {file} holds {shape}")
  if made.positives == "labels":
    if source.labels not in arrays:
      raise InputError(
        f"positives = 'labels', and {file} has no array {source.labels!r} but "
        f"{', '.join(arrays)}"
      )
    labels = arrays[source.labels]
    if len(labels) != len(held):
      raise InputError(
        f"{file}: {len(labels)} {source.labels} for {len(held)} embeddings"
      )
    settings["y"] = labels[~held]
  if paired:
    settings["pairs"] = x[:, 1]
    x = x[:, 0]
  made.fit(x, **settings)


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
  bad = np.sum(~np.isfinite(arrays[array]))
  if bad or not arrays[array].size:
    raise InputError(
      f"{array} in {path} {arrays[array].shape} has {bad} values that are NaN or "
      "infinite; allowed: finite numbers, at least one"
    )
  return arrays


def _write(out: Output, encoder: NonNegativeEncoder, rows: np.ndarray) -> None:
  codes = encoder.transform(rows)
  if out.dense:
    interop.publish(out.file, lambda file: np.savez(file, codes=codes.toarray()))
  else:
    interop.publish(out.file, lambda file: scipy.sparse.save_npz(file, codes))
