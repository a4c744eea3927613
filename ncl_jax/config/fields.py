"""Every field with its default, the paper's CIFAR recipe, and the methods.

Fields whose default is 0 or () mean "from the data": `resolve` fills them in.
"""

from ml_collections import ConfigDict

from ncl_jax import checks, losses, models, nonneg
from ncl_jax.config import methods
from ncl_jax.errors import InputError
from ncl_jax.models import vit

METHODS = (
  "cl",
  "ncl",
  "ce",
  "nce",
  "ce_projector",
  "nce_projector",
  "supcon",
  "supcon_ncl",
  *(name + end for name in methods.NAMES for end in ("", "_ncl")),
)
# Those whose features, and class weights where there are any, pass the transform.
MAPPED = tuple(m for m in METHODS if m.startswith("nc") or m.endswith("_ncl"))
LABELLED = ("sup_con", "cross_entropy")  # losses that need labels
VITS = ("vit_tiny", "vit_small")
CHOICES = {
  "method": METHODS,
  "loss.name": ("nt_xent", *LABELLED, "clip", *methods.NAMES),
  "loss.transform": sorted(nonneg.NAMES),
  "loss.precision": losses.PRECISIONS,
  "model.backbone": ("resnet10", "resnet18", "resnet50", *VITS, "text"),
  "model.stem": models.STEMS,
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

  config.data = ConfigDict()
  config.data.source = ""  # see ncl_jax.data.load
  config.data.image_size = 0  # side in pixels as stored; 0: as they are
  config.data.train_examples = 0  # a stratified subset of this size; 0: all
  config.data.classes_file = ""  # names of the classes to keep, a line each; "": all
  config.data.on_bad_image = "stop"  # or "skip"
  config.data.pair_factors = ()  # of dsprites: in which the images of a pair differ
  config.data.on_device_mib = 1024  # training sets up to this size lie on each device

  config.augment = ConfigDict()
  config.augment.size = 0  # side of a view; 0: as stored
  config.augment.eval_crop = 1.0  # share of the shorter side that evaluation sees
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

  config.model = ConfigDict()
  config.model.backbone = "resnet18"  # "text": of `config.text`, for pairs of texts
  config.model.stem = "cifar"
  config.model.width = 64  # of a ResNet's first stage, or of each head of a ViT
  # Of ViTs alone:
  config.model.patch = 0  # side in pixels; 0: from the image's, 16 at 224, 4 at 32
  config.model.pool = "class_token"  # or "mean" over the patches
  config.model.positions = "learned"  # or "fixed"
  config.model.projector = True  # False: z is h
  config.model.projector_hidden = 2048
  config.model.projector_out = 256
  config.model.projector_layers = 2
  config.model.projector_batch_norm = False  # after each hidden layer
  config.model.predictor_hidden = 0  # of MoCo v3 and BYOL; 0: as projector_hidden
  config.model.batch_norm = "per_view"  # as if each view were its own forward pass
  config.model.remat = False  # less memory, more time, the same numbers
  config.model.dtype = "bfloat16"  # of the network's arithmetic; parameters: float32

  # Each text tower, where the loss is "clip"; its projector is as the image tower's.
  config.text = ConfigDict()
  config.text.length = 64  # bytes of a caption; the rest is cut off
  config.text.width = 128
  config.text.layers = 4
  config.text.heads = 4

  config.loss = ConfigDict()
  # Or "sup_con", "cross_entropy", which need labels; "clip", images with captions; or
  # one of `families.NAMES`.
  config.loss.name = "nt_xent"
  config.loss.transform = "rep_relu"  # "identity" is CL
  config.loss.temperature = 0.2
  config.loss.learn_temperature = False  # from `temperature` on; 0.01 at the lowest
  config.loss.l1 = 0.0  # weight of the mean of |f|_1, f of unit length
  config.loss.precision = "highest"  # of the loss's matrix products; or "bfloat16"
  config.loss.weight = 1.0  # factor of a loss of pairs, but not of its penalty
  # Of MoCo v3, BYOL and DINO: how much of the slow copy stays, at the first step.
  config.loss.ema_decay = 0.99
  config.loss.off_diagonal = 0.0051  # of Barlow Twins: the weight of other dimensions
  # Of VICReg: the weights of its three terms.
  config.loss.invariance = 25.0
  config.loss.variance = 25.0
  config.loss.covariance = 1.0
  # Of DINO:
  config.loss.prototypes = 0  # how many
  config.loss.teacher_temperature = 0.04
  config.loss.centre_momentum = 0.9
  # Of cross entropy alone:
  config.loss.logit_scale = 1.0  # factor of the logits
  config.loss.label_smoothing = 0.0  # share of the target spread over all classes
  config.loss.mixup = 0.0  # a of Beta(a, a), the share of either image; 0: no mixing

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
  # In so many chunks the batch passes the network, with the loss of the whole batch but
  # in the memory of one chunk; BatchNorm sees a chunk at a time, so results differ.
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
  config.eval.activation_rate = 0.03  # share of images at which purity is compared
  config.eval.threshold = 1e-5  # |f| below it counts as zero
  # Other data sets, FORM:PATH: one to which features are transferred, and those whose
  # images are out of distribution, with classes of the same names.
  config.eval.transfer = ""
  config.eval.ood = ()

  # {"cl": {"probe_h": 0.876}, ...}: from the paper, or from a named run of ours.
  config.expected = ConfigDict()
  return config.lock()


def set_method(config: ConfigDict, argument: str) -> None:
  """Makes `config` one of `METHODS`, the part after the colon of `--config=FILE:ARG`.

  CL and NCL differ by the transform alone, and so do `supcon` and `supcon_ncl`, `byol`
  and `byol_ncl`, and the like; CE and NCE by the transform and by CE's bias.
  Classifiers train by SGD on one view of each image, cropped and flipped as the config
  has it.

  Args:
    config: changed in place.
    argument: one of `METHODS`, those with a transform (the config's own) also as
      "ncl,TRANSFORM".

  Raises:
    InputError: for any other argument.
  """
  method, *rest = argument.split(",")
  checks.choice("method", method, METHODS)
  if len(rest) > 1 or (method not in MAPPED and rest):
    raise InputError(
      f"config argument {argument!r}: allowed are {', '.join(METHODS)}, and with a "
      f"transform "
      f"{', '.join(f'{name},TRANSFORM' for name in MAPPED)}"
    )
  config.method = method
  family = method.removesuffix("_ncl")
  if family == "supcon":
    config.loss.name = "sup_con"
  elif family in methods.NAMES:
    methods.set_up(config, family)
  elif method not in ("cl", "ncl"):
    config.loss.name = "cross_entropy"
    config.model.projector = method.endswith("_projector")
    config.data.pair_factors = ()
    config.optimizer.update(name="sgd", learning_rate=0.1, weight_decay=5e-4)
    config.augment.update(jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0)
  if config.loss.name not in methods.TEMPERATURE:
    config.loss.learn_temperature = False
  if method not in MAPPED:
    config.loss.transform = "identity"
  elif rest:
    checks.choice("transform", rest[0], sorted(nonneg.NAMES))
    config.loss.transform = rest[0]
