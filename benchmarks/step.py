"""One update of the paper's network: NCL against CL, plain XLA and PyTorch.

  python -m benchmarks.step --images=64

The step has ResNet-18 with the CIFAR stem, the 2048-256 projector, both views of each
image, NT-Xent, and SGD with momentum in float32. It starts from finished views, so both
libraries do the same work. "plain" is ours with autodiff's convolution gradients on one
simulated device. Compiling takes minutes. PyTorch's rows need torch; they restate the
same network.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.models import convolution, layers
from ncl_jax.runtime import compiler, sharding, timing
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import update as update_lib

RATE, MOMENTUM, TEMPERATURE = 0.03, 0.9, 0.2


def main() -> None:
  """Prints a line for each contestant."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--images", type=int, default=64)
  parser.add_argument("--backbone", default="resnet18")
  parser.add_argument("--width", type=int, default=64)
  parser.add_argument("--size", type=int, default=32)
  flags = parser.parse_args()
  sharding.set_cpu_devices(flags.images)
  shape = (flags.images, 2, flags.size, flags.size, 3)
  views = np.random.default_rng(0).normal(size=shape).astype(np.float32)

  rows, contestants = {}, {}
  for name, transform, keep in (
    ("NCL", "rep_relu", "all"),
    ("CL", "identity", "all"),
    ("NCL, rematerialised", "rep_relu", "blocks"),
  ):
    contestants[name], rows[name] = ours(flags, views, transform, keep)
  contestants["NCL, plain XLA"], rows["NCL, plain XLA"] = plain(flags, views)
  for name, layout in (("torch, NCHW", False), ("torch, NHWC", True)):
    step = torch_step(flags, views, channels_last=layout)
    if step:
      contestants[name], rows[name] = step, {}
  times = measure.interleaved(contestants, flags.repeats)
  best = min(
    (times[name]["wall"] for name in times if name.startswith("torch")), default=None
  )
  table = [
    {
      "": name,
      "s/step": times[name]["wall"],
      "CPU s": times[name]["cpu"],
      "relative to CL": times[name]["wall"] / times["CL"]["wall"],
      "relative to best torch": times[name]["wall"] / best if best else None,
      **rows[name],
    }
    for name in times
  ]
  measure.finish(
    f"One step of {flags.images} images, {flags.backbone}, width {flags.width}, "
    f"{flags.size} pixels, {jax.device_count()} simulated device(s)",
    table,
    flags.json,
    "s: median wall seconds. FLOPs: XLA's count for the compiled step, divided by "
    "three times the convolutions and matrix products of a forward pass. temp: "
    "temporary memory per view, summed over devices.",
  )


def make_config(flags, transform, keep):
  """The paper's recipe with the sizes from the flags."""
  config = config_lib.defaults()
  config.data.source = "noise"
  config.model.backbone, config.model.width = flags.backbone, flags.width
  config.model.dtype, config.model.keep = "float32", keep
  config.loss.transform, config.loss.temperature = transform, TEMPERATURE
  config.train.batch_size = flags.images
  config.optimizer.name = "sgd"
  config.optimizer.warmup_epochs = 0.0
  config.optimizer.momentum = MOMENTUM
  return config


def ours(flags, views, transform, keep="all", devices=None):
  """(the step, statistics of the compiled program)."""
  config = make_config(flags, transform, keep)
  images = np.zeros((flags.images, flags.size, flags.size, 3), np.uint8)
  split = Split(images, np.full(flags.images, -1, np.int32))
  source = Source("noise", {"train": split})
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh(devices)
  optimizer, rate = optimizer_lib.make_optimizer(config, 1)
  whole, split_over = sharding.replicated(mesh), sharding.batch_sharded(mesh)
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  views = jax.device_put(views, split_over)
  labels = jax.device_put(split.labels, split_over)
  compiled = (
    jax.jit(
      update_lib.make_update(config, 0, optimizer, mesh=mesh),
      in_shardings=(whole, split_over, split_over),
      out_shardings=(whole, whole, split_over),
      donate_argnums=0,
      compiler_options=compiler.cpu_effort(1),
    )
    .lower(state, views, labels)
    .compile()
  )
  box = [state]

  def step():
    box[0], *_ = jax.block_until_ready(compiled(box[0], views, labels))

  count = mesh.size
  shapes = jax.eval_shape(lambda: state_lib.init_variables(config, source))
  one = jax.ShapeDtypeStruct((2, flags.size, flags.size, 3), jnp.float32)
  formula = 3 * timing.flops(config_lib.model(config).apply, shapes, one)
  return step, {
    "FLOPs": compiled.cost_analysis()["flops"] * count / (formula * flags.images),
    "temp MiB/view": compiled.memory_analysis().temp_size_in_bytes
    * count
    / (2 * flags.images)
    / 2**20,
  }


def plain(flags, views):
  """The same with autodiff's convolution gradients, on one device."""
  try:
    layers.conv2d = convolution._convolve
    return ours(flags, views, "rep_relu", devices=jax.devices()[:1])
  finally:
    layers.conv2d = convolution.conv2d


def torch_step(flags, views, channels_last):
  """The step in eager PyTorch; None if it is not installed."""
  try:
    import torch
    from torch import nn
  except ImportError:
    return None
  if flags.backbone != "resnet18":
    return None
  torch.manual_seed(0)

  class Block(nn.Module):
    def __init__(self, before, width, stride):
      super().__init__()
      self.main = nn.Sequential(
        nn.Conv2d(before, width, 3, stride, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
      )
      self.short = nn.Sequential()
      if stride > 1 or before != width:
        self.short = nn.Sequential(
          nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
        )

    def forward(self, x):
      return torch.relu(self.main(x) + self.short(x))

  width = flags.width
  stem = nn.Conv2d(3, width, 3, 1, 2, bias=False)
  parts = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
  before = width
  for stage in range(4):
    for index in range(2):
      after = width * 2**stage
      parts.append(Block(before, after, 2 if stage and not index else 1))
      before = after
  parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
  parts += [nn.Linear(before, 2048), nn.ReLU(inplace=True), nn.Linear(2048, 256)]
  model = nn.Sequential(*parts).train()
  x = torch.from_numpy(views).permute(1, 0, 4, 2, 3)
  layout = torch.channels_last if channels_last else torch.contiguous_format
  model = model.to(memory_format=layout)
  pair = [x[v].contiguous(memory_format=layout) for v in range(2)]
  optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=1e-4)
  n = flags.images
  positive = torch.arange(2 * n).roll(n)

  def step():
    optimizer.zero_grad(set_to_none=True)
    # Each view separately, with its own batch statistics, as in the released code.
    z = torch.cat([model(v) for v in pair])
    # rep_relu: the values of relu, the gradient of gelu.
    smooth = nn.functional.gelu(z)
    z = smooth + (torch.relu(z) - smooth).detach()
    f = nn.functional.normalize(z, dim=1)
    s = (f @ f.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    nn.functional.cross_entropy(s, positive).backward()
    optimizer.step()

  return step


if __name__ == "__main__":
  main()
