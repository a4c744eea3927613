"""Source `tfds:NAME`: images, labels and captions of TensorFlow Datasets."""

import dataclasses
import functools
import io
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import logging

from ncl_jax.data import decode, decoded_cache, source, texts, tfds_builder, threads
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
  if not need_train and "train" not in builder.info.splits:
    return _test_alone(builder, name, image_size, cache)
  labelled, caption = _has_labels(builder), _caption_key(builder)
  names = {"train": "train"}
  # Only the first example is read, because reading all of a large split takes long.
  for test in ("validation", "test"):
    if test in builder.info.splits:
      first = next(iter(_examples(builder, test, 1)))
      known = not labelled or int(first["label"]) != UNLABELLED
      if known and (not caption or _first_text(first[caption])):
        names["test"] = test

  shape = _image_shape(builder, image_size, "train")
  read = _reader(builder, name, names.values(), shape, cache)
  keys = _label_keys(builder)
  splits = {ours: read(builder, names[ours], keys, caption, shape) for ours in names}
  divided = "test" not in splits
  if divided:
    splits = divide(splits["train"], f"tfds:{name}")
  return Source(f"tfds:{name}", splits, _class_names(builder, labelled), divided)


def _test_alone(
  builder: Any, name: str, image_size: int, cache: pathlib.Path | None
) -> Source:
  """A set with only test images, such as the corrupted ones."""
  known = [s for s in ("test", "validation") if s in builder.info.splits]
  split = known[0] if known else next(iter(builder.info.splits))
  labelled = _has_labels(builder, split)
  shape = _image_shape(builder, image_size, split)
  keys = _label_keys(builder)
  read = _reader(builder, name, [split], shape, cache)
  images = read(builder, split, keys, _caption_key(builder), shape)
  splits = {"train": images, "test": images}
  return Source(f"tfds:{name}", splits, _class_names(builder, labelled))


def _class_names(builder: Any, labelled: bool) -> tuple[str, ...]:
  return tuple(builder.info.features["label"].names) if labelled else ()


def _reader(
  builder: Any,
  name: str,
  splits: Iterable[str],
  shape: tuple[int, int, int],
  cache: pathlib.Path | None,
) -> Callable[..., Split]:
  """The function that reads the images: all at once, or each on demand."""
  total = sum(builder.info.splits[split].num_examples for split in splits)
  whole = total * math.prod(shape) <= source.IN_MEMORY_BYTES
  if not whole and builder.info.file_format.value != tfds_builder.RANDOM_ACCESS:
    raise InputError(
      f"tfds:{name} is stored as {builder.info.file_format.value}, which has no random"
      f" access, and its {total} images of {shape} do not fit in"
      f" {source.IN_MEMORY_BYTES >> 20} MiB. Prepare it anew with `tfds build {name}"
      f" --file_format={tfds_builder.RANDOM_ACCESS}`, use smaller images, or use"
      " folder:PATH."
    )
  return _read_whole if whole else functools.partial(_open, cache=cache)


def _has_labels(builder: Any, split: str = "train") -> bool:
  """Checks that the split has images; returns whether they have a class label."""
  import tensorflow_datasets as tfds

  features, splits = dict(builder.info.features.items()), builder.info.splits
  if split not in splits:
    raise InputError(
      f"tfds:{builder.name} has the splits {', '.join(splits)}; needed: {split}"
    )
  if not isinstance(features.get("image"), tfds.features.Image):
    raise InputError(
      f"tfds:{builder.name} has the features {', '.join(features)}; needed: image, and"
      " label for the class"
    )
  return isinstance(features.get("label"), tfds.features.ClassLabel)


def _label_keys(builder: Any) -> list[str]:
  """The features that are class labels."""
  import tensorflow_datasets as tfds

  features = dict(builder.info.features.items())
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


def _split(
  builder: Any,
  split: str,
  images: Images,
  columns: dict[str, np.ndarray],
  captions: list[str],
) -> Split:
  """A split with a level per label feature; "coarse_label" is the level "coarse"."""
  unknown = np.full(len(images), UNLABELLED, np.int32)
  labels = columns.pop("label", unknown)
  levels = {key.removesuffix("_label"): column for key, column in columns.items()}
  found = None
  empty = [i for i, text in enumerate(captions) if not text.strip()]
  if empty:
    # Users of captions are told that there are none; others are not affected.
    logging.warning(
      "tfds:%s, %s: %d of %d captions are empty, the first at %d: taken as images "
      "without captions",
      *(builder.name, split, len(empty), len(captions), empty[0]),
    )
  elif captions:
    what = f"captions of the split {split} of tfds:{builder.name}"
    found = texts.checked(np.array(captions), what)
  return Split(images, labels, levels, captions=found)


def _examples(builder: Any, split: str, most: int | None = None) -> Iterable[dict]:
  """The first examples, or all, as dicts of numpy arrays in file order."""
  import tensorflow_datasets as tfds

  if builder.info.file_format.value == tfds_builder.RANDOM_ACCESS:
    records = builder.as_data_source(split)
    count = len(records) if most is None else min(most, len(records))
    return (records[i] for i in range(count))
  dataset = builder.as_dataset(split=split, shuffle_files=False)
  return tfds.as_numpy(dataset if most is None else dataset.take(most))


def _image_shape(builder: Any, image_size: int, split: str) -> tuple[int, int, int]:
  height, width, channels = builder.info.features["image"].shape
  if channels not in (1, 3):
    raise InputError(f"tfds:{builder.name}: {channels} channels; allowed: 1 or 3")
  if image_size:
    return image_size, image_size, channels
  if height is None or width is None:
    sample = _examples(builder, split, 64)
    height = width = decode.typical_side([min(x["image"].shape[:2]) for x in sample])
  return height, width, channels


def _fit(image: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
  if image.dtype != np.uint8:
    raise InputError(f"images of dtype {image.dtype}; allowed: uint8")
  return image if image.shape == shape else decode.square(image[None], shape[0])[0]


def _read_whole(
  builder: Any, split: str, keys: list[str], caption: str, shape: tuple[int, int, int]
) -> Split:
  count = builder.info.splits[split].num_examples
  images = np.empty((count, *shape), np.uint8)
  columns = {key: np.empty(count, np.int32) for key in keys}
  captions = []
  examples = _examples(builder, split)
  for i, x in enumerate(tqdm.tqdm(examples, split, count, disable=None)):
    images[i] = _fit(x["image"], shape)
    for key in keys:
      columns[key][i] = x[key]
    if caption:
      captions.append(_first_text(x[caption]))
  return _split(builder, split, images, columns, captions)


def _open(
  builder: Any,
  split: str,
  keys: list[str],
  caption: str,
  shape: tuple[int, int, int],
  cache: pathlib.Path | None,
) -> Split:
  import tensorflow_datasets as tfds

  feature = builder.info.features["image"]
  jpeg = feature.encoding_format == "jpeg" and shape[2] == 3
  decoders = {"image": tfds.decode.SkipDecoding()} if jpeg else None
  files = builder.info.splits[split].filepaths
  images = _Records(
    builder.as_data_source(split, decoders=decoders), shape, jpeg, files
  )
  if not keys and not caption:
    return _split(builder, split, images, {}, [])
  make = functools.partial(_columns, builder, split, keys, caption)
  if cache is None:
    columns = make()
  else:
    name = f"{builder.name}-{split}-labels"
    columns = decoded_cache.table(cache, name, images.identity(), make)
  captions = columns.pop("", np.array([], np.str_)).tolist()
  return _split(builder, split, images, columns, captions)


def _columns(
  builder: Any, split: str, keys: list[str], caption: str
) -> dict[str, np.ndarray]:
  """The labels of each key, int32, and the captions as ""; reads every record."""
  import tensorflow_datasets as tfds

  # Images stay encoded.
  skip = {"image": tfds.decode.SkipDecoding()}
  records = builder.as_data_source(split, decoders=skip)
  columns = {key: np.empty(len(records), np.int32) for key in keys}
  captions = []
  for i in tqdm.trange(len(records), desc=f"{split} labels", disable=None):
    record = records[i]
    for key in keys:
      columns[key][i] = record[key]
    if caption:
      captions.append(_first_text(record[caption]))
  return columns | ({"": np.array(captions, np.str_)} if caption else {})


@dataclasses.dataclass(frozen=True, eq=False)
class _Records:
  """Images in array_record files that several threads decode on demand."""

  records: Any
  image_shape: tuple[int, int, int]
  encoded: bool  # JPEGs, decoded here to the size needed
  files: Sequence[Any]

  @property
  def shape(self) -> tuple[int, ...]:
    return (len(self.records), *self.image_shape)

  def __len__(self) -> int:
    return len(self.records)

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
