"""Checks of the settings that need no data."""

from ml_collections import ConfigDict

from ncl_jax import augment, checks, data, methods, optimizers
from ncl_jax.config.fields import CHOICES
from ncl_jax.config.keys import flat, get
from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.methods import record

# Numbers that must be greater than 0; no other may be negative.
POSITIVE = (
  "loss.temperature",
  "model.width",
  "model.projector_hidden",
  "model.projector_out",
  "model.projector_layers",
  "text.length",
  "text.width",
  "text.layers",
  "text.heads",
  "optimizer.learning_rate",
  "optimizer.probe_learning_rate",
  "optimizer.trust_coefficient",
  "train.grad_cache_chunks",
  "train.log_every_steps",
  "train.checkpoint_every_epochs",
  "train.keep_checkpoints",
  "eval.batch_size",
  "eval.knn_k",
  "eval.knn_temperature",
  "eval.retrieval_k",
)


def validate(config: ConfigDict) -> None:
  """Checks every value that can be checked without the data.

  Raises:
    InputError: naming the field, its value and what is allowed.
  """
  for key, allowed in CHOICES.items():
    checks.choice(key, get(config, key), allowed)
  if not config.data.source:
    raise InputError("data.source is empty: set --config.data.source=FORM:PATH")
  for spec in (config.data.source, config.eval.transfer, *config.eval.ood):
    if spec:
      data.check(spec)
  paths.local(config.data.classes_file)
  paths.absolute(config.train.init_from)
  data.cache_folder(config.data.decoded_cache, config.data.source)
  for key, value in flat(config).items():
    if isinstance(value, int | float) and not key.startswith("expected."):
      allowed = record.POSITIVE if key in POSITIVE else record.NOT_NEGATIVE
      methods.Setting(key, value, allowed).check(value)
  if config.seed >= 2**63:
    raise InputError(f"seed is {config.seed}: it must be less than 2^63")
  if config.loss.learn_temperature:
    lowest = 1 / optimizers.LARGEST_SCALE
    if config.loss.temperature < lowest:
      raise InputError(
        f"loss.temperature is {config.loss.temperature}: where it is learnt it must be "
        f"at least {lowest}"
      )
  methods.check(config)
  if config.loss.mixup and config.train.grad_cache_chunks > 1:
    raise InputError(
      "loss.mixup mixes a whole batch: train.grad_cache_chunks must be 1"
    )
  if config.text.width % config.text.heads:
    raise InputError(
      f"text.width is {config.text.width}: it must be a multiple of text.heads, "
      f"{config.text.heads}"
    )
  if config.train.batch_size == 1:
    raise InputError("train.batch_size is 1: without other images nothing is negative")
  if not 0 < config.eval.activation_rate <= 1:
    raise InputError(
      f"eval.activation_rate is {config.eval.activation_rate}: allowed is (0, 1]"
    )
  check_augment(config)


def check_augment(config: ConfigDict) -> None:
  """Runs the checks of `AugmentConfig`; what the data decide gets dummy values."""
  fields = dict(config.augment)
  fields["size"] = fields["size"] or 1
  fields["mean"] = fields["mean"] or (0.5,)
  fields["std"] = fields["std"] or (0.5,)
  augment.AugmentConfig(**fields)
