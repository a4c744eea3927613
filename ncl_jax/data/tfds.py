"""Source `tfds:NAME`: images, labels and captions of TensorFlow Datasets."""

import dataclasses
import io
import itertools
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import logging

from ncl_jax.data import decode, decoded_cache, source, tfds_builder, threads
from ncl_jax.data.source import UNLABELLED, Images, Source, Split
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError

CAPTIONS = ("caption", "captions", "text")  # features; the first that exists is used


def load(
  name: str,
  image_size: int = 0,
  need_train: bool = True,
  cache: pathlib.Path | None = None,
) -> Source:
  """Opens a set of TensorFlow Datasets, and downloads and prepares it if necessary.

  Train is the split "train". Test is "test"; if that is missing or unlabelled,
  "validation"; if that is too, a fixed stratified fifth of train. Sets that fit in
  memory are loaded completely, in file order. Larger ones must be prepared as
  array_record, the only format with random access; reading it needs no TensorFlow.
  Other class labels, such as cifar100's coarse_label, become levels of the splits. A
  caption is the first text of a feature in `CAPTIONS`, which may be a text, a list of
  texts, or "text" in a list as in coco_captions.

  Args:
    name: as in `tensorflow_datasets.load`, e.g. "cifar100" or "imagenet_resized/32x32".
      The environment variable TFDS_DATA_DIR sets the data folder.
    image_size: side in pixels; 0 = unchanged or, if sizes differ, the median shorter
      side, at most 256.
    need_train: False also accepts a set with only test images, used for both splits.
    cache: folder that keeps the labels and captions of a large set, which are spread
      over all records, see `decoded_cache.table`.

  Raises:
    InputError: if the set is unknown or unsuitable, or if it is not prepared and cannot
      be: within seconds where TensorFlow or a network is missing.
  """
  builder = tfds_builder.prepared(name)
  there = builder.info.splits
  keys, caption = _label_keys(builder), _caption_key(builder)
  names = {"train": "train"}
  if "train" not in there:
    if need_train:
      raise InputError(f"tfds:{name} has the splits {', '.join(there)}; needed: train")
    known = [split for split in ("test", "validation") if split in there]
    names["train"] = (*known, *there)[0]
  else:
    # Only the first example is read, because reading all of a large split takes long.
    for test in ("validation", "test"):
      if test in there:
        first = next(iter(_examples(builder, test)))
        hidden = "label" in keys and int(first["label"]) == UNLABELLED
        if not hidden and (not caption or _first_text(first[caption])):
          names["test"] = test

  shape = _image_shape(builder, image_size, names["train"])
  total = sum(there[split].num_examples for split in names.values())
  whole = total * math.prod(shape) <= source.IN_MEMORY_BYTES
  stored = builder.info.file_format.value
  if not whole and stored != tfds_builder.RANDOM_ACCESS:
    raise InputError(
      f"tfds:{name} is stored as {stored}, which has no random access, and its {total} "
      f"images of {shape} do not fit in {source.IN_MEMORY_BYTES >> 20} MiB. Prepare it "
      f"anew with `tfds build {name} --file_format={tfds_builder.RANDOM_ACCESS}`, use "
      "smaller images, or use folder:PATH."
    )
  splits = {}
  for ours, split in names.items():
    if whole:
      images: Images = np.empty((there[split].num_examples, *shape), np.uint8)
      columns = _columns(_examples(builder, split), split, keys, caption, images)
    else:
      jpeg = builder.info.features["image"].encoding_format == "jpeg"
      encoded = jpeg and shape[2] == 3
      records = _data_source(builder, split, encoded)
      images = _Records(records, shape, encoded, there[split].filepaths)
      columns = _columns_once(builder, split, keys, caption, images, cache)
    splits[ours] = _split(f"tfds:{name}, {split}", images, columns)
  divided = "test" not in splits and "train" in there
  if divided:
    splits = divide(splits["train"], f"tfds:{name}")
  splits.setdefault("test", splits["train"])
  classes = tuple(builder.info.features["label"].names) if "label" in keys else ()
  return Source(f"tfds:{name}", splits, classes, divided)


def _label_keys(builder: Any) -> list[str]:
  """The features that are class labels, after checking that there are images."""
  import tensorflow_datasets as tfds

  features = dict(builder.info.features.items())
  if not isinstance(features.get("image"), tfds.features.Image):
    raise InputError(
      f"tfds:{builder.name} has the features {', '.join(features)}; needed: image, and"
      " label for the class"
    )
  return [k for k, v in features.items() if isinstance(v, tfds.features.ClassLabel)]


def _caption_key(builder: Any) -> str:
  """The feature in `CAPTIONS` that holds texts or lists of texts; "" for none."""
  features = dict(builder.info.features.items())
  for key in (key for key in CAPTIONS if key in features):
    kinds, shapes = features[key].np_dtype, features[key].shape
    if isinstance(kinds, dict):
      kinds, shapes = kinds.get("text", np.int64), shapes.get("text", ())
    listed = not isinstance(kinds, dict) and len(shapes) <= 1
    if listed and np.dtype(kinds) == object:
      return key
  return ""


def _first_text(value: Any) -> str:
  """The first text of a caption feature's value; "" for an empty list."""
  found = np.atleast_1d(value["text"] if isinstance(value, dict) else value)
  first = found[0] if len(found) else ""
  return first.decode("utf-8") if isinstance(first, bytes) else str(first)


def _split(what: str, images: Images, columns: dict[str, np.ndarray]) -> Split:
  """A split with a level per label feature; "coarse_label" is the level "coarse"."""
  captions = columns.pop("", None)
  labels = columns.pop("label", np.full(len(images), UNLABELLED, np.int32))
  levels = {key.removesuffix("_label"): column for key, column in columns.items()}
  if captions is not None:
    empty = np.flatnonzero(np.char.strip(captions) == "")
    if len(empty):
      # Users of captions are told that there are none; others are not affected.
      logging.warning(
        "%s: %d of %d captions are empty, the first at %d: taken as images without "
        "captions",
        *(what, len(empty), len(captions), empty[0]),
      )
      captions = None
  return Split(images, labels, levels, captions=captions)


def _examples(builder: Any, split: str) -> Iterable[dict]:
  """The examples as dicts of numpy arrays, in file order."""
  import tensorflow_datasets as tfds

  if builder.info.file_format.value == tfds_builder.RANDOM_ACCESS:
    return _in_order(_data_source(builder, split))
  return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))


def _data_source(builder: Any, split: str, encoded: bool = False) -> Sequence[dict]:
  """The examples of array_record files, by position; `encoded` leaves images so."""
  import tensorflow_datasets as tfds

  decoders = {"image": tfds.decode.SkipDecoding()} if encoded else None
  return builder.as_data_source(split, decoders=decoders)


def _in_order(records: Sequence[dict]) -> Iterator[dict]:
  return (records[i] for i in range(len(records)))


def _image_shape(builder: Any, image_size: int, split: str) -> tuple[int, int, int]:
  height, width, channels = builder.info.features["image"].shape
  if channels not in (1, 3):
    raise InputError(f"tfds:{builder.name}: {channels} channels; allowed: 1 or 3")
  if image_size:
    return image_size, image_size, channels
  if height is None or width is None:
    sample = itertools.islice(_examples(builder, split), 64)
    height = width = decode.typical_side([min(x["image"].shape[:2]) for x in sample])
  return height, width, channels


def _fit(image: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  if image.dtype != np.uint8:
    raise InputError(f"images of dtype {image.dtype}; allowed: uint8")
  return image if image.shape == shape else decode.square(image[None], shape[0])[0]


def _columns(
  examples: Iterable[dict], title: str, keys: list[str], caption: str, images: Images
) -> dict[str, np.ndarray]:
  """The labels of each key, int32, and the captions as ""; fills `images` if array."""
  columns = {key: np.empty(len(images), np.int32) for key in keys}
  captions = []
  for i, x in enumerate(tqdm.tqdm(examples, title, len(images), disable=None)):
    if isinstance(images, np.ndarray):
      images[i] = _fit(x["image"], images.shape[1:])
    for key in keys:
      columns[key][i] = x[key]
    if caption:
      captions.append(_first_text(x[caption]))
  return columns | ({"": np.array(captions, np.str_)} if caption else {})


def _columns_once(
  builder: Any,
  split: str,
  keys: list[str],
  caption: str,
  images: "_Records",
  cache: pathlib.Path | None,
) -> dict[str, np.ndarray]:
  """The columns of a large split, whose every record is read, or from the cache."""

  def make() -> dict[str, np.ndarray]:
    examples = _in_order(_data_source(builder, split, encoded=True))
    return _columns(examples, f"{split} labels", keys, caption, images)

  if not keys and not caption:
    return {}
  name = f"{builder.name}-{split}-labels"
  return decoded_cache.table(cache, name, images.identity(), make)


@dataclasses.dataclass(frozen=True, eq=False)
class _Records(Images):
  """Images in array_record files that several threads decode on demand."""

  records: Any
  image_shape: tuple[int, int, int]
  encoded: bool  # JPEGs, decoded here to the size needed
  files: Sequence[Any]

  @property
  def shape(self) -> tuple[int, ...]:
    return (len(self.records), *self.image_shape)

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    def one(row: int) -> np.ndarray:
      image = self.records[row]["image"]
      if self.encoded:
        return decode.read(io.BytesIO(image), self.image_shape[0])
      return _fit(image, self.image_shape)

    return threads.read(one, rows, self.image_shape)

  def identity(self) -> Iterator[bytes]:
    """As `decoded_cache.Stored`: each file's name, size and time of change."""
    import tensorflow_datasets as tfds

    # Which decodes what is not decoded here.
    yield f"encoded {self.encoded}, tensorflow-datasets {tfds.__version__}".encode()
    for file in self.files:
      state = file.stat()
      yield f"{file.name}\0{state.length} {state.mtime}".encode()
