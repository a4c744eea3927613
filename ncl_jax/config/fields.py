"""Every field with its default, the paper's CIFAR recipe.

Fields whose default is 0 or () mean "from the data": `resolve` fills them in. Fields
that only some methods take are declared with those methods, in `ncl_jax/methods`.
"""

from ml_collections import ConfigDict

from ncl_jax import checks, losses, methods, models, nonneg
from ncl_jax.errors import InputError
from ncl_jax.models import vit

CHOICES = {
  "method": methods.VARIANTS,
  "loss.name": tuple(methods.BY_NAME),
  "loss.transform": sorted(nonneg.NAMES),
  "loss.precision": losses.PRECISIONS,
  "model.backbone": (*models.BACKBONES, "text"),
  "model.stem": models.STEMS,
  "model.keep": models.KEEPS,
  "model.pool": vit.POOLS,
  "model.positions": vit.POSITIONS,
  "model.batch_norm": ("per_view", "joint"),
  "model.dtype": ("float32", "bfloat16", "float64"),  # the last needs JAX_ENABLE_X64
  "optimizer.name": ("lars", "sgd", "adamw"),
  "data.on_bad_image": ("stop", "skip"),
}


def defaults() -> ConfigDict:
  """All settings at the paper's CIFAR recipe (Wang et al. 2024; released code)."""
  config = ConfigDict()
  config.name = ""  # of the data set, for titles
  config.method = "ncl"
  config.seed = 0

  _add_data(config)
  _add_model_and_loss(config)
  _add_run(config)
  config.update_from_flattened_dict({s.key: s.default for s in methods.settings()})

  # {"cl": {"probe_h": 0.876}, ...}: from the paper, or from a named run of ours.
  config.expected = ConfigDict()
  return config.lock()


def _add_data(config: ConfigDict) -> None:
  config.data = ConfigDict()
  config.data.source = ""  # see ncl_jax.data.load
  config.data.image_size = 0  # side in pixels as stored; 0: as they are
  config.data.train_examples = 0  # a stratified subset of this size; 0: all
  config.data.classes_file = ""  # names of the classes to keep, a line each; "": all
  config.data.on_bad_image = "stop"  # or "skip"
  # Folder where image files are kept decoded, for all runs; "": decoded when used.
  config.data.decoded_cache = ""
  config.data.pair_factors = ()  # of dsprites: in which the images of a pair differ
  config.data.on_device_mib = 1024  # sets up to this size are kept on each device

  config.augment = ConfigDict()
  config.augment.size = 0  # side of a view; 0: as stored
  config.augment.eval_crop = 1.0  # fraction of the shorter side that evaluation sees
  config.augment.crop_scale = (0.08, 1.0)
  config.augment.crop_ratio = (3 / 4, 4 / 3)
  config.augment.flip = 0.5
  config.augment.jitter = 0.8
  config.augment.brightness = 0.8
  config.augment.contrast = 0.8
  config.augment.saturation = 0.8
  config.augment.hue = 0.2
  config.augment.grayscale = 0.2
  config.augment.blur = 0.5
  config.augment.blur_radius = (0.1, 2.0)
  config.augment.solarize = 0.0
  config.augment.mean = ()  # per channel, of images in [0, 1]; (): from the data
  config.augment.std = ()


def _add_model_and_loss(config: ConfigDict) -> None:
  config.model = ConfigDict()
  config.model.backbone = "resnet18"  # "text": of `config.text`, for pairs of texts
  config.model.stem = "cifar"
  config.model.width = 64  # of a ResNet's first stage, or of each head of a ViT
  # Of ViTs alone:
  config.model.patch = 0  # side in pixels; 0: from the image's, 16 at 224, 4 at 32
  config.model.pool = "class_token"  # or "mean" over the patches
  config.model.positions = "learned"  # or "fixed"
  config.model.projector_hidden = 2048
  config.model.projector_out = 256
  config.model.projector_layers = 2
  config.model.projector_batch_norm = False  # after each hidden layer
  config.model.batch_norm = "per_view"  # as if each view were its own forward pass
  # Saved for backward: "all", "convolutions" or "blocks", from fast to small; the same
  # numbers. On CPU XLA rematerialises cheap parts of "all" by itself.
  config.model.keep = "all"
  config.model.dtype = "bfloat16"  # of the network's arithmetic; parameters: float32

  # Each text tower, where the loss is "clip"; its projector is as the image tower's.
  config.text = ConfigDict()
  config.text.length = 64  # bytes of a caption; the rest is cut off
  config.text.width = 128
  config.text.layers = 4
  config.text.heads = 4

  config.loss = ConfigDict()
  config.loss.name = "nt_xent"  # or another of `methods.BY_NAME`
  config.loss.transform = "rep_relu"  # "identity" is CL
  config.loss.temperature = 0.2
  config.loss.precision = "highest"  # of the loss's matrix products; or "bfloat16"


def _add_run(config: ConfigDict) -> None:
  config.optimizer = ConfigDict()
  config.optimizer.name = "lars"
  config.optimizer.learning_rate = 0.4  # times batch_size / 256
  config.optimizer.probe_learning_rate = 0.1  # online linear probe; times the same
  config.optimizer.momentum = 0.9
  config.optimizer.weight_decay = 1e-4
  config.optimizer.trust_coefficient = 0.02  # LARS only
  config.optimizer.trust_clip = True  # LARS only
  config.optimizer.warmup_epochs = 10.0
  config.optimizer.warmup_start = 3e-5  # the learning rate of the first step

  config.train = ConfigDict()
  config.train.batch_size = 256  # images; 0: from the data
  # The batch passes the network in this many chunks: the loss of the whole batch in the
  # memory of one chunk. BatchNorm sees a chunk at a time, so results differ.
  config.train.grad_cache_chunks = 1
  config.train.epochs = 200  # 0: from the data
  config.train.init_from = ""  # a run's directory: its weights, a fresh optimiser
  config.train.steps_per_call = 0  # of the compiled program; 0: from the device
  config.train.log_every_steps = 50
  config.train.checkpoint_every_epochs = 10
  config.train.checkpoint_every_minutes = 30.0  # as well; 0: never by the clock
  config.train.keep_checkpoints = 2
  config.train.cpu_devices = 0  # simulated, on CPU only; 0: from the machine

  config.eval = ConfigDict()
  config.eval.batch_size = 256
  config.eval.test_every_epochs = 1  # of a classifier while it trains; 0: never
  config.eval.knn_k = 20
  config.eval.knn_temperature = 0.07
  config.eval.retrieval_k = 10
  config.eval.activation_rate = 0.03  # fraction of images at which purity is compared
  config.eval.threshold = 1e-5  # |f| below it counts as zero
  # Other data sets, FORM:PATH: one to which features are transferred, and those whose
  # images are out of distribution, with classes of the same names.
  config.eval.transfer = ""
  config.eval.ood = ()


def set_method(config: ConfigDict, argument: str) -> None:
  """Makes `config` a method's: the part after the colon of `--config=FILE:ARGUMENT`.

  CL and NCL differ by the transform alone, and so does every other pair of variants; CE
  and NCE also by CE's bias.

  Args:
    config: changed in place.
    argument: one of `methods.VARIANTS`, those with a transform (the config's own) also
      as "ncl,TRANSFORM".

  Raises:
    InputError: for any other argument.
  """
  variant, *rest = argument.split(",")
  checks.choice("method", variant, methods.VARIANTS)
  transformed = variant in methods.WITH_TRANSFORM
  if len(rest) > 1 or (rest and not transformed):
    raise InputError(
      f"config argument {argument!r}: allowed are {', '.join(methods.VARIANTS)}, and "
      "with a transform "
      f"{', '.join(f'{name},TRANSFORM' for name in methods.WITH_TRANSFORM)}"
    )
  methods.set_up(config, variant)
  if not transformed:
    config.loss.transform = "identity"
  elif rest:
    checks.choice("transform", rest[0], sorted(nonneg.NAMES))
    config.loss.transform = rest[0]
