"""A data set and a config small enough to train in a test."""

import jax
import numpy as np
from PIL import Image

from ncl_jax import config as config_lib
from ncl_jax import models
from ncl_jax.config import fields
from ncl_jax.data.source import Source, Split
from ncl_jax.runtime import checkpoint
from ncl_jax.training import state, workdir

CLASSES = 2
# Of `launch.train` and others: a run of seconds on the digits.
FLAGS = (
  "--config.data.train_examples=64",
  "--config.model.width=2",
  "--config.model.projector_hidden=16",
  "--config.model.projector_out=8",
  "--config.train.batch_size=32",
  "--config.train.epochs=1",
  "--config.optimizer.warmup_epochs=0.5",
)


def backbone(stem, width, dtype):
  """One block for a ResNet-10's four, soon compiled."""
  return models.ResNet((1,), models.BasicBlock, stem, 2 * width, dtype)


def two_blocks(stem, width, dtype):
  """The second with a stride: every kind of layer of a ResNet."""
  return models.ResNet((1, 1), models.BasicBlock, stem, width, dtype)


# As docs/extending.md registers a backbone, for the tests and the programs they start.
models.resnet_tiny, models.resnet_two_blocks = backbone, two_blocks
fields.CHOICES["model.backbone"] += ("resnet_tiny", "resnet_two_blocks")


def images(seed, n, size=8, channels=1):
  """Dark images with a bright upper (class 0) or lower (class 1) half, and noise."""
  rng = np.random.default_rng(seed)
  labels = (np.arange(n) % CLASSES).astype(np.int32)
  x = rng.integers(0, 60, (n, size, size, channels))
  for image, label in zip(x, labels, strict=True):
    half = slice(0, size // 2) if label == 0 else slice(size // 2, size)
    image[half] += 150
  return x.astype(np.uint8), labels


def source(train=48, test=21, labelled=True, channels=1):
  """A `Source` of such images."""
  splits = {}
  for seed, (name, n) in enumerate({"train": train, "test": test}.items()):
    x, y = images(seed, n, channels=channels)
    splits[name] = Split(x, y if labelled else np.full(n, -1, np.int32))
  return Source("tiny", splits, ("upper", "lower") if labelled else ())


def npz(path, **kwargs):
  """The same as a file for `arrays:`."""
  made = source(**kwargs)
  arrays = {}
  for name in ("train", "test"):
    arrays[f"{name}_images"] = made.split(name).images
    arrays[f"{name}_labels"] = made.split(name).labels
  np.savez(path, **arrays)
  return path


def photograph(seed, size):
  """Soft blobs, as a photograph has them, in JPEG."""
  small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
  return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def photographs(root):
  """A folder of three classes, photographs of many sizes, one file damaged."""
  for i in range(48):
    path = root / ("train" if i < 36 else "val") / "abc"[i % 3] / f"{i}.JPEG"
    path.parent.mkdir(parents=True, exist_ok=True)
    photograph(i, (40 + i, 90 - i)).save(path)
  bad = root / "train" / "b" / "99.JPEG"
  bad.write_bytes(path.read_bytes()[:300])
  return root


def get_config(method="ncl"):
  """For `--config=tests/tiny.py:METHOD`."""
  return config(method)


def config(method="ncl", backbone="resnet_tiny"):
  """Three steps an epoch, four epochs, a network of two channels."""
  c = config_lib.defaults()
  c.name = "tiny"
  c.data.source = "arrays:tiny.npz"
  c.augment.crop_scale = (0.8, 1.0)
  c.augment.flip = 0.5
  c.augment.blur_radius = (0.1, 0.5)
  c.model.backbone = backbone
  c.model.width = 2
  c.model.projector_hidden = 16
  c.model.projector_out = 8
  c.model.dtype = "float32"
  c.train.batch_size = 16
  c.train.epochs = 4
  c.train.log_every_steps = 2
  c.train.checkpoint_every_epochs = 2
  c.optimizer.warmup_epochs = 1.0
  c.eval.batch_size = 16
  c.eval.knn_k = 5
  config_lib.set_method(c, method)
  return c


def drawn(shapes):
  """Arrays of a network or a state, above 0 as variances are; soon made."""
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.uniform(0.1, 1, x.shape).astype(x.dtype), shapes)


def as_trained(config, path, source):
  """A directory as a finished run leaves it, its weights drawn at random."""
  config, path, _ = workdir.prepare(config, path, source)
  model = drawn(state.shapes(config, source))
  with workdir.hold(path, config, source), checkpoint.Checkpoints(path) as checkpoints:
    if checkpoints.latest_step() is None:
      checkpoints.save(12, model=model, train={"step": np.int32(12)})
  return path
