"""Time to make two random views, compared with torchvision on PIL images.

  python -m benchmarks.augment --sizes 32 224

torchvision's column needs torchvision; it restates the released code's chain of
transforms. CPU seconds are compared, because ours may use several threads and theirs
uses one.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from benchmarks import measure
from ncl_jax import augment


def main() -> None:
  """Prints a line for each size."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--sizes", type=int, nargs="+", default=[32, 224])
  parser.add_argument(
    "--views", type=int, default=256, help="at 32 pixels; fewer above"
  )
  flags = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", 1)
  rows = [row(size, flags) for size in flags.sizes]
  measure.finish(
    "Two views an image, the recipe's full chain",
    rows,
    flags.json,
    "ms: median CPU milliseconds per view. ratio: torchvision's time divided by ours. "
    "The other columns describe the program for accelerators: MFLOP per view as XLA "
    "counts them, and the numbers of pixel gathers and convolutions.",
  )


def row(size, flags):
  """Times one size; images for 224 pixels are stored larger."""
  images_count = max(8, flags.views * 32**2 // size**2) // 2
  side = size if size < 64 else size * 8 // 7
  shape = (images_count, side, side, 3)
  images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
  mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
  config = augment.AugmentConfig(size=size, mean=mean, std=std)
  key = jax.random.key(0)
  make = jax.jit(augment.two_views, static_argnames="config")
  compiled = make.lower(key, images, config=config).compile()
  contestants = {"ours": lambda: jax.block_until_ready(compiled(key, images))}
  chain = torchvision_chain(size, mean, std)
  if chain:
    from PIL import Image

    pictures = [Image.fromarray(image) for image in images]
    contestants["torchvision"] = lambda: [[chain(p), chain(p)] for p in pictures]
  times = measure.interleaved(contestants, flags.repeats)
  views = 2 * images_count
  ours = times["ours"]["cpu"] / views * 1e3
  theirs = times["torchvision"]["cpu"] / views * 1e3 if chain else None
  # On CPU crops are made in a loop, which XLA would count once.
  traced = make.trace(key, images, config=config)
  lowered = traced.lower(lowering_platforms=("tpu",))
  text = lowered.as_text()
  return {
    "pixels": size,
    "ours ms": ours,
    "torchvision ms": theirs,
    "ratio": theirs / ours if chain else None,
    "MFLOP": lowered.cost_analysis()["flops"] / views / 1e6,
    "gathers": text.count("stablehlo.gather"),
    "convolutions": text.count("stablehlo.convolution"),
  }


def torchvision_chain(size, mean, std):
  """The released code's transforms, or None where torchvision is not installed."""
  try:
    import random

    import torch
    import torchvision
    from PIL import ImageFilter
    from torchvision import transforms
  except ImportError:
    return None

  def blur(image):
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))

  print(f"torchvision {torchvision.__version__}")
  # As in DataLoader workers; more threads would burn CPU time waiting for each other.
  torch.set_num_threads(1)
  return transforms.Compose(
    [
      transforms.RandomResizedCrop(
        size, (0.08, 1.0), interpolation=transforms.InterpolationMode.BICUBIC
      ),
      transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
      transforms.RandomGrayscale(0.2),
      transforms.RandomApply([blur], 0.5),
      transforms.RandomHorizontalFlip(0.5),
      transforms.ToTensor(),
      transforms.Normalize(mean, std),
    ]
  )


if __name__ == "__main__":
  main()
