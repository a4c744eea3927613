"""The settings of a run: defaults, checks, JSON, and what they build.

Every field exists here with its default, the paper's CIFAR recipe; a file in `configs/`
changes some of them. Fields whose default is 0 or () mean "from the data": `resolve`
fills them in, and what it filled in is what `config.json` records.
"""

import difflib
import json
import math
import pathlib
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import augment, checks, families, losses, models, nonneg, optimizers, vit
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError

METHODS = (
  "cl",
  "ncl",
  "ce",
  "nce",
  "ce_projector",
  "nce_projector",
  "supcon",
  "supcon_ncl",
  *(name + end for name in families.NAMES for end in ("", "_ncl")),
)
# Those whose features, and class weights where there are any, pass the map.
MAPPED = tuple(m for m in METHODS if m.startswith("nc") or m.endswith("_ncl"))
LABELLED = ("sup_con", "cross_entropy")  # losses that need labels
VITS = ("vit_tiny", "vit_small")
CHOICES = {
  "method": METHODS,
  "loss.name": ("nt_xent", *LABELLED, *families.NAMES),
  "loss.map": sorted(nonneg.NAMES),
  "loss.precision": losses.PRECISIONS,
  "model.backbone": ("resnet10", "resnet18", "resnet50", *VITS),
  "model.stem": models.STEMS,
  "model.pool": vit.POOLS,
  "model.positions": vit.POSITIONS,
  "model.batch_norm": ("per_view", "joint"),
  "model.dtype": ("float32", "bfloat16", "float64"),  # the last needs JAX_ENABLE_X64
  "optimizer.name": ("lars", "sgd", "adamw"),
  "data.on_bad_image": ("stop", "skip"),
}

# May differ when a run goes on: they change what is written or where, not what.
FREE_ON_RESUME = (
  "expected",
  "train.log_every_steps",
  "train.checkpoint_every_epochs",
  "train.keep_checkpoints",
  "train.cpu_devices",
  "train.steps_per_call",
  "data.on_device_mib",
  "eval.transfer",
  "eval.ood",
)


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
  config.model.backbone = "resnet18"
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

  config.loss = ConfigDict()
  # Or "sup_con", "cross_entropy", which need labels, or one of `families.NAMES`.
  config.loss.name = "nt_xent"
  config.loss.map = "rep_relu"  # "identity" is CL
  config.loss.map_dims = 0  # how many of the first dimensions pass it; 0: all
  config.loss.map_anneal_epochs = 0.0  # in which it comes in, from none of it to all
  config.loss.temperature = 0.2
  config.loss.learn_temperature = False  # from `temperature` on; 0.01 at the lowest
  config.loss.l1 = 0.0  # weight of the mean of |f|_1, f of unit length
  config.loss.precision = "highest"  # of the loss's matrix products; or "bfloat16"
  config.loss.weight = 1.0  # factor of a loss of pairs, but not of its penalty
  # Of MoCo v3, BYOL and DINO: how much of the slow copy stays, at the first step.
  config.loss.momentum = 0.99
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
  config.loss.scale = 1.0  # factor of the logits
  config.loss.label_smoothing = 0.0  # share of the target spread over all classes
  config.loss.mixup = 0.0  # a of Beta(a, a), the share of either image; 0: no mixing

  config.optimizer = ConfigDict()
  config.optimizer.name = "lars"
  config.optimizer.learning_rate = 0.4  # times batch_size / 256
  config.optimizer.probe_learning_rate = 0.1  # online linear probe; times the same
  config.optimizer.momentum = 0.9
  config.optimizer.weight_decay = 1e-4
  config.optimizer.trust_coefficient = 0.02  # LARS only
  config.optimizer.clip = True  # LARS only
  config.optimizer.warmup_epochs = 10.0
  config.optimizer.warmup_start = 3e-5  # the learning rate of the first step

  config.train = ConfigDict()
  config.train.batch_size = 256  # images; 0: from the data
  # In so many chunks the batch passes the network, with the loss of the whole batch but
  # in the memory of one chunk; BatchNorm sees a chunk at a time, so results differ.
  config.train.accumulate = 1
  config.train.epochs = 200  # 0: from the data
  config.train.init_from = ""  # a run's directory: its weights, a fresh optimiser
  config.train.steps_per_call = 0  # of the compiled program; 0: from the device
  config.train.log_every_steps = 50
  config.train.checkpoint_every_epochs = 10
  config.train.keep_checkpoints = 2
  config.train.cpu_devices = 0  # simulated, on CPU only; 0: from the machine

  config.eval = ConfigDict()
  config.eval.batch_size = 256
  config.eval.test_every_epochs = 1  # of a classifier while it trains; 0: never
  config.eval.knn_k = 20
  config.eval.knn_temperature = 0.07
  config.eval.retrieval_k = 10
  config.eval.activity = 0.03  # share of images at which purity is compared
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

  CL and NCL differ by the map alone, and so do `supcon` and `supcon_ncl`, `byol` and
  `byol_ncl`, and the like; CE and NCE by the map and by CE's bias. Classifiers train by
  SGD on one view of each image, cropped and flipped as the config has it.

  Args:
    config: changed in place.
    argument: one of `METHODS`, those with a map (the config's own) also as "ncl,MAP".

  Raises:
    InputError: for any other argument.
  """
  method, *rest = argument.split(",")
  checks.choice("method", method, METHODS)
  if len(rest) > 1 or (method not in MAPPED and rest):
    raise InputError(
      f"config argument {argument!r}: allowed are {', '.join(METHODS)}, and with a map "
      f"{', '.join(f'{name},MAP' for name in MAPPED)}"
    )
  config.method = method
  family = method.removesuffix("_ncl")
  if family == "supcon":
    config.loss.name = "sup_con"
  elif family in families.NAMES:
    families.set_up(config, family)
  elif method not in ("cl", "ncl"):
    config.loss.name = "cross_entropy"
    config.model.projector = method.endswith("_projector")
    config.data.pair_factors = ()
    config.optimizer.update(name="sgd", learning_rate=0.1, weight_decay=5e-4)
    config.augment.update(jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0)
  if method not in MAPPED:
    config.loss.map = "identity"
  elif rest:
    checks.choice("map", rest[0], sorted(nonneg.NAMES))
    config.loss.map = rest[0]


def validate(config: ConfigDict) -> None:
  """Checks every value that can be checked without the data.

  Raises:
    InputError: naming the field, its value and what is allowed.
  """
  for key, allowed in CHOICES.items():
    checks.choice(key, get(config, key), allowed)
  if not config.data.source:
    raise InputError("data.source is empty: set --config.data.source=FORM:PATH")
  for key in (
    "loss.temperature",
    "loss.scale",
    "loss.weight",
    "loss.teacher_temperature",
    "model.width",
    "model.projector_hidden",
    "model.projector_out",
    "model.projector_layers",
    "optimizer.learning_rate",
    "optimizer.probe_learning_rate",
    "optimizer.trust_coefficient",
    "train.accumulate",
    "train.log_every_steps",
    "train.checkpoint_every_epochs",
    "train.keep_checkpoints",
    "eval.batch_size",
    "eval.knn_k",
    "eval.knn_temperature",
    "eval.retrieval_k",
  ):
    if not (math.isfinite(get(config, key)) and get(config, key) > 0):
      raise InputError(f"{key} is {get(config, key)}: it must be greater than 0")
  for key in (
    "seed",
    "data.image_size",
    "data.train_examples",
    "augment.size",
    "loss.mixup",
    "optimizer.momentum",
    "optimizer.weight_decay",
    "optimizer.warmup_epochs",
    "optimizer.warmup_start",
    "train.batch_size",
    "train.epochs",
    "train.cpu_devices",
    "train.steps_per_call",
    "data.on_device_mib",
    "loss.l1",
    "loss.map_dims",
    "loss.map_anneal_epochs",
    "loss.off_diagonal",
    "loss.invariance",
    "loss.variance",
    "loss.covariance",
    "loss.prototypes",
    "model.predictor_hidden",
    "model.patch",
    "eval.test_every_epochs",
    "eval.threshold",
  ):
    if not (math.isfinite(get(config, key)) and get(config, key) >= 0):
      raise InputError(f"{key} is {get(config, key)}: it must not be negative")
  if config.loss.learn_temperature:
    lowest = 1 / optimizers.LARGEST_SCALE
    if config.loss.temperature < lowest:
      raise InputError(
        f"loss.temperature is {config.loss.temperature}: where it is learnt it must be "
        f"at least {lowest}"
      )
  _check_classifier(config)
  families.check(config, defaults())
  if config.train.batch_size == 1:
    raise InputError("train.batch_size is 1: without other images nothing is negative")
  if not 0 < config.eval.activity <= 1:
    raise InputError(f"eval.activity is {config.eval.activity}: allowed is (0, 1]")
  _check_augment(config)


def resolve(config: ConfigDict, source: Source) -> ConfigDict:
  """Fills in what the data decide: view size, image statistics, batch and epochs.

  Args:
    config: as given; not changed.
    source: its data.

  Returns:
    A copy in which no field means "from the data" any more.

  Raises:
    InputError: if the batch is larger than the training set.
  """
  config = config.copy_and_resolve_references()
  if config.loss.name in LABELLED and not source.num_classes:
    raise InputError(
      f"loss.name is {config.loss.name} and {source.name} has no labels: without them "
      f"only {', '.join(n for n in CHOICES['loss.name'] if n not in LABELLED)} work"
    )
  examples = source.num_examples("train")
  height, width, channels = source.image_shape
  if not config.augment.size:
    config.augment.size = round(min(height, width) * config.augment.eval_crop)
  if not config.augment.mean:
    mean, std = source.channel_statistics()
    config.augment.mean, config.augment.std = mean, std
  for key in ("mean", "std"):
    if len(config.augment[key]) != channels:
      raise InputError(
        f"augment.{key} has {len(config.augment[key])} values: the images of "
        f"{source.name} have {channels} channels"
      )
  if config.train.init_from:
    run = pathlib.Path(config.train.init_from).expanduser().resolve()
    config.train.init_from = str(run)
  if not config.train.batch_size:
    # The largest power of two that leaves eight steps an epoch, within [8, 256].
    config.train.batch_size = 2 ** int(
      min(8, max(3, math.floor(math.log2(max(examples, 1) / 8))))
    )
  if not config.train.epochs:
    # About 20,000 steps, as 100 epochs of 50,000 images at 256; within [20, 800].
    steps = max(1, examples // config.train.batch_size)
    config.train.epochs = int(min(800, max(20, 20_000 // steps)))
  if config.train.batch_size > examples:
    raise InputError(
      f"train.batch_size is {config.train.batch_size}: the training set of "
      f"{source.name} has only {examples} images"
    )
  if config.optimizer.warmup_epochs > config.train.epochs:
    raise InputError(
      f"optimizer.warmup_epochs is {config.optimizer.warmup_epochs}: the warm-up "
      f"cannot be longer than the training, train.epochs = {config.train.epochs}"
    )
  _check_augment(config)
  model(config)  # refuses a ViT whose patches do not fit the images
  _check_map(config)
  return config.lock()


def model(config: ConfigDict) -> models.ContrastiveModel:
  """The network that the settings describe."""
  settings = config.model
  backbone = _backbone(config).clone(remat=settings.remat)
  if not settings.projector:
    return models.ContrastiveModel(backbone, models.NoProjector())
  projector = models.Projector(
    settings.projector_hidden,
    settings.projector_out,
    jnp.dtype(settings.dtype),
    settings.projector_layers,
    settings.projector_batch_norm,
  )
  return models.ContrastiveModel(backbone, projector)


def _backbone(config: ConfigDict) -> models.ResNet | vit.ViT:
  settings = config.model
  given = {"width": settings.width, "dtype": jnp.dtype(settings.dtype)}
  if settings.backbone not in VITS:
    return getattr(models, settings.backbone)(stem=settings.stem, **given)
  given |= {name: settings[name] for name in ("patch", "pool", "positions")}
  return getattr(vit, settings.backbone)(config.augment.size, **given)


def predictor(config: ConfigDict) -> models.Projector | None:
  """The network after the projector that foresees the other view's features, if any."""
  settings = config.model
  if config.loss.name not in families.PREDICTOR:
    return None
  return models.Projector(
    settings.predictor_hidden or settings.projector_hidden,
    settings.projector_out,
    jnp.dtype(settings.dtype),
    batch_norm=True,
  )


def widths(config: ConfigDict) -> dict[str, int]:
  """The widths of the layers h, hidden, z and f."""
  settings = config.model
  width = model(config).backbone.num_features
  if not settings.projector:
    return dict.fromkeys(("h", "hidden", "z", "f"), width)
  hidden, out = settings.projector_hidden, settings.projector_out
  return {"h": width, "hidden": hidden, "z": out, "f": out}


def views(config: ConfigDict) -> int:
  """V, views of each image in training: a classifier sees one, pairs need two."""
  return 1 if config.loss.name == "cross_entropy" else 2


def augmentation(config: ConfigDict) -> augment.AugmentConfig:
  """The view settings of a resolved config, in the form that jitted functions take."""
  return augment.AugmentConfig(**config.augment)


def to_json(config: ConfigDict) -> str:
  """Canonical JSON: sorted keys, tuples as lists."""
  return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> ConfigDict:
  """The inverse of `to_json`.

  Raises:
    InputError: if it is not JSON, or a field is unknown here or of another type.
  """
  try:
    values = json.loads(text)
  except json.JSONDecodeError as error:
    raise InputError(f"config.json is not JSON: {error}") from error
  config = defaults()
  _update(config, values, prefix="")
  return config


def overrides(recipe: ConfigDict, given: ConfigDict) -> dict[str, Any]:
  """The fields in which a config is not its recipe: dotted name -> its value."""
  usual = _flat(recipe)
  return {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in _flat(given).items()
    if key not in usual or usual[key] != value
  }


def put(config: ConfigDict, key: str, value: Any) -> None:
  """Sets a field by its dotted name.

  Raises:
    InputError: for an unknown field, or a value of another type.
  """
  *sections, field = key.split(".")
  place = config
  for section in sections:
    place = place[section] if section in place else ConfigDict()
  if field not in place:
    near = nearest_key(key)
    hint = f": did you mean {near}?" if near else ""
    raise InputError(f"unknown config field {key!r}{hint}")
  try:
    place[field] = value
  except TypeError as error:
    raise InputError(f"{key} = {value!r}: {error}") from error


def differences(stored: ConfigDict, given: ConfigDict) -> list[str]:
  """The fields in which two configs differ in a way that changes results.

  Args:
    stored: of the work directory.
    given: of this call.

  Returns:
    Lines "KEY: STORED there, GIVEN here"; empty if the run may go on.
  """
  a, b = _flat(stored), _flat(given)
  return [
    f"{key}: {a.get(key)!r} there, {b.get(key)!r} here"
    for key in sorted(a.keys() | b.keys())
    if a.get(key) != b.get(key)
    and not any(key == free or key.startswith(free + ".") for free in FREE_ON_RESUME)
  ]


def known_keys() -> list[str]:
  """Every field, dotted ("loss.temperature")."""
  return list(_flat(defaults()))


def nearest_key(key: str) -> str | None:
  """The known field that looks most like `key` ("loss.temprature"), if any does."""
  known = known_keys()
  near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
  if near:
    return near[0]
  # The last part may be right and the section wrong or missing.
  leaf = key.rsplit(".", 1)[-1]
  by_leaf = {name.rsplit(".", 1)[-1]: name for name in known}
  near = difflib.get_close_matches(leaf, list(by_leaf), n=1, cutoff=0.6)
  return by_leaf[near[0]] if near else None


def _check_classifier(config: ConfigDict) -> None:
  """What cross entropy takes; its settings without it are a mistake too."""
  settings = config.loss
  if not 0 <= settings.label_smoothing < 1:
    raise InputError(
      f"loss.label_smoothing is {settings.label_smoothing}: allowed is [0, 1)"
    )
  if settings.name == "cross_entropy":
    if settings.learn_temperature:
      raise InputError("loss.learn_temperature: cross entropy has no temperature")
    if settings.mixup and config.train.accumulate > 1:
      raise InputError("loss.mixup mixes a whole batch: train.accumulate must be 1")
    if settings.l1:
      raise InputError(f"loss.l1 is {settings.l1}: cross entropy has no such penalty")
    return
  for key, neutral in (("scale", 1.0), ("label_smoothing", 0.0), ("mixup", 0.0)):
    if settings[key] != neutral:
      raise InputError(
        f"loss.{key} is {settings[key]}: only loss.name=cross_entropy takes it"
      )
  if not config.model.projector:
    raise InputError("model.projector is False: only loss.name=cross_entropy takes it")


def _check_map(config: ConfigDict) -> None:
  """Where and when the map is applied."""
  settings = config.loss
  for key in ("map_dims", "map_anneal_epochs"):
    if settings[key] and settings.map == "identity":
      raise InputError(
        f"loss.{key} is {settings[key]}: the map is identity, there is none"
      )
  width = widths(config)["z"]
  if settings.map_dims > width:
    raise InputError(
      f"loss.map_dims is {settings.map_dims}: there are {width} dimensions"
    )
  if settings.map_anneal_epochs and settings.name == "cross_entropy":
    raise InputError(
      f"loss.map_anneal_epochs is {settings.map_anneal_epochs}: cross entropy has its "
      "map from the first step on"
    )
  if settings.map_anneal_epochs > config.train.epochs:
    raise InputError(
      f"loss.map_anneal_epochs is {settings.map_anneal_epochs}: the map must be whole "
      f"before the training ends, train.epochs = {config.train.epochs}"
    )


def _check_augment(config: ConfigDict) -> None:
  """Runs the checks of `AugmentConfig`; what the data decide is stood in for."""
  fields = dict(config.augment)
  fields["size"] = fields["size"] or 1
  fields["mean"] = fields["mean"] or (0.5,)
  fields["std"] = fields["std"] or (0.5,)
  augment.AugmentConfig(**fields)


def get(config: ConfigDict, key: str) -> Any:
  """A field by its dotted name."""
  for part in key.split("."):
    config = config[part]
  return config


def _flat(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
  """Dotted keys to values as JSON would give them back."""
  flat: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, ConfigDict):
      flat.update(_flat(value, f"{prefix}{key}."))
    else:
      flat[prefix + key] = list(value) if isinstance(value, tuple) else value
  return flat


def _update(config: ConfigDict, values: dict[str, Any], prefix: str) -> None:
  for key, value in values.items():
    if prefix == "" and key == "expected":
      config.expected = ConfigDict(value)
    elif key not in config:
      raise InputError(f"config.json has the unknown field {prefix}{key}")
    elif isinstance(config[key], ConfigDict):
      _update(config[key], value, f"{prefix}{key}.")
    else:
      value = tuple(value) if isinstance(value, list) else value
      try:
        config[key] = value
      except TypeError as error:
        raise InputError(f"config.json, field {prefix}{key}: {error}") from error
