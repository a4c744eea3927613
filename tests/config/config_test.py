"""Settings: defaults, checks, what the data decide, JSON there and back."""

import itertools
import json
import pathlib
import types

import pytest
from configs_by_name import get

from ncl_jax import config as config_lib
from ncl_jax import methods
from ncl_jax.errors import InputError

ROOT = pathlib.Path(__file__).parents[2]
# `latent` and `embeddings` are of no training run of images.
CONFIGS = sorted(
  {path.stem for path in (ROOT / "configs").glob("*.py")} - {"latent", "embeddings"}
)


def source(examples=100, shape=(20, 24, 3)):
  """What `resolve` asks of a source."""
  return types.SimpleNamespace(
    name="fake",
    texts=False,
    image_shape=shape,
    num_examples=lambda split: examples,
    channel_statistics=lambda: ((0.4,) * shape[-1], (0.2,) * shape[-1]),
  )


@pytest.mark.parametrize(
  ("name", "argument"),
  [
    *itertools.product(CONFIGS, methods.VARIANTS),
    *(("digits", f"{name},softplus") for name in methods.WITH_TRANSFORM),
  ],
)
def test_every_config_is_valid_and_survives_json(name, argument):
  config = get(name, argument)
  if config.data.source == "folder:":  # which the user completes
    config.data.source = "folder:x"
  config_lib.validate(config)
  text = config_lib.to_json(config)
  again = config_lib.from_json(text)
  assert config_lib.to_json(again) == text
  assert not config_lib.differences(config, again)
  # A list would make the settings of the jitted functions unhashable.
  assert isinstance(again.augment.crop_scale, tuple)


def test_the_paper_recipe():
  # Section 3 of the facts: what the released configuration says.
  config = get("cifar100")
  assert (config.loss.transform, config.loss.temperature) == ("rep_relu", 0.2)
  assert (config.model.projector_hidden, config.model.projector_out) == (2048, 256)
  assert (config.optimizer.learning_rate, config.train.epochs) == (0.4, 200)
  imagenet = get("imagenet100")
  assert (imagenet.loss.transform, imagenet.optimizer.learning_rate) == ("relu", 0.3)
  assert (imagenet.model.projector_hidden, imagenet.model.projector_out) == (
    16384,
    2048,
  )


def test_the_published_recipes_of_other_methods():
  # scripts/pretrain/cifar/*.yaml of solo-learn.
  byol, barlow = get("cifar10", "byol_ncl"), get("cifar100", "barlow_twins")
  assert (byol.train.epochs, byol.optimizer.learning_rate) == (1000, 1.0)
  assert byol.model.projector_hidden == config_lib.predictor(byol).hidden == 4096
  assert (byol.model.projector_out, byol.optimizer.weight_decay) == (256, 1e-5)
  assert (barlow.model.projector_hidden, barlow.model.projector_out) == (2048, 2048)
  assert (barlow.loss.weight, barlow.optimizer.learning_rate) == (0.1, 0.3)
  large = get("imagenet100", "byol")
  assert (large.train.epochs, large.model.predictor_hidden) == (400, 8192)
  assert tuple(get("imagenet100", "vicreg_ncl").augment.crop_scale) == (0.2, 1.0)
  # The paper's own methods keep the paper's numbers.
  assert get("cifar10", "ncl").train.epochs == 200


def test_a_small_config_stays_small():
  config = get("digits", "barlow_twins_ncl")
  assert set(config_lib.widths(config).values()) == {64, 512}


def test_cl_and_ncl_differ_by_the_map_alone():
  lines = config_lib.differences(get("digits", "cl"), get("digits", "ncl"))
  assert [line.split(":")[0] for line in lines] == ["loss.transform", "method"]


@pytest.mark.parametrize(
  ("one", "other", "fields"),
  [
    ("ce", "ce_projector", ["method", "model.projector"]),
    ("nce", "nce_projector", ["method", "model.projector"]),
    ("ncl", "supcon_ncl", ["loss.name", "method"]),
    *(
      (*pair, ["loss.transform", "method"])
      for method in methods.METHODS
      for pair in method.variants
    ),
    (
      "moco_v3",
      "byol",
      ["loss.name", "method", "optimizer.learning_rate"]
      + ["optimizer.probe_learning_rate", "optimizer.weight_decay"],
    ),
  ],
)
def test_methods_differ_by_what_their_names_say(one, other, fields):
  lines = config_lib.differences(get("cifar10", one), get("cifar10", other))
  assert [line.split(":")[0] for line in lines] == fields


def test_classifiers_see_one_view_of_one_image():
  config = get("dsprites", "nce")
  assert config.data.pair_factors == ()
  assert (config_lib.views(config), config_lib.views(get("dsprites"))) == (1, 2)
  width = config_lib.widths(config)
  assert set(width.values()) == {width["h"]}
  assert config_lib.widths(get("digits", "ce_projector"))["f"] == 128


@pytest.mark.parametrize(
  ("argument", "says"),
  [
    ("ce,relu", "allowed are"),
    ("supcon,relu", "allowed are"),
    ("sup_con", "did you mean 'supcon'"),
    ("nlc", "did you mean 'ncl'"),
    ("cl,relu", "allowed are"),
    ("ncl,rep_rleu", "did you mean 'rep_relu'"),
    ("ncl,relu,relu", "allowed are"),
  ],
)
def test_wrong_method(argument, says):
  with pytest.raises(InputError, match=says):
    get("digits", argument)


@pytest.mark.parametrize(
  ("argument", "key", "value", "says"),
  [
    ("ce", "loss.label_smoothing", 1.0, r"allowed is \[0, 1\)"),
    ("ce", "loss.mixup", -0.1, "negative"),
    ("ce", "loss.logit_scale", 0.0, "greater than 0"),
    ("nce", "loss.learn_temperature", True, "only loss.name=nt_xent or"),
    ("ncl", "loss.logit_scale", 2.0, "only loss.name=cross_entropy"),
    ("ncl", "loss.mixup", 0.2, "only loss.name=cross_entropy"),
    ("supcon", "loss.label_smoothing", 0.1, "only loss.name=cross_entropy"),
    ("cl", "model.projector", False, "only loss.name=cross_entropy"),
    ("ncl", "loss.name", "supcon", "did you mean 'sup_con'"),
    ("ncl", "loss.ema_decay", 0.9, "only loss.name=moco_v3 or byol or dino takes"),
    ("nce", "loss.weight", 0.1, "only loss.name=nt_xent or sup_con or"),
    ("vicreg", "loss.off_diagonal", 0.1, "only loss.name=barlow_twins takes it"),
    ("barlow_twins", "loss.off_diagonal", -0.1, "negative"),
    ("byol_ncl", "loss.ema_decay", 1.0, r"allowed is \[0, 1\)"),
    ("ncl", "model.predictor_hidden", 8, "only loss.name=moco_v3 or byol takes"),
    ("dino", "loss.prototypes", 1, "2 or more"),
    ("vicreg", "loss.learn_temperature", True, "not vicreg"),
  ],
)
def test_what_a_loss_does_not_take_is_refused(argument, key, value, says):
  config = get("digits", argument)
  section, field = key.split(".")
  config[section][field] = value
  with pytest.raises(InputError, match=says) as error:
    config_lib.validate(config)
  assert key in str(error.value)


def test_a_batch_is_mixed_whole_and_labels_are_needed():
  config = get("digits", "ce")
  config.loss.mixup, config.train.grad_cache_chunks = 0.2, 2
  with pytest.raises(InputError, match="must be 1"):
    config_lib.validate(config)
  bare = types.SimpleNamespace(name="bare", num_classes=0)
  for argument in ("ce", "supcon"):
    with pytest.raises(InputError, match="bare has no labels"):
      config_lib.resolve(get("digits", argument), bare)


@pytest.mark.parametrize(
  ("key", "value", "says"),
  [
    ("loss.transform", "rleu", "did you mean 'relu'"),
    ("loss.precision", "low", "one of highest, bfloat16"),
    ("loss.temperature", 0.0, "greater than 0"),
    ("loss.temperature", -1.0, "greater than 0"),
    ("loss.temperature", float("nan"), "greater than 0"),
    ("optimizer.name", "lasr", "did you mean 'lars'"),
    ("optimizer.learning_rate", 0.0, "greater than 0"),
    ("optimizer.weight_decay", -0.1, "negative"),
    ("model.backbone", "resnet8", "resnet18"),
    ("model.width", 0, "greater than 0"),
    ("train.batch_size", 1, "nothing is negative"),
    ("eval.activation_rate", 1.5, "allowed is"),
    ("augment.flip", 2.0, "flip"),
    ("augment.crop_scale", (0.5, 0.1), "crop_scale"),
    ("data.source", "", "empty"),
  ],
)
def test_wrong_values_name_the_field(key, value, says):
  config = get("digits")
  section, field = key.split(".")
  config[section][field] = value
  with pytest.raises(InputError, match=says) as error:
    config_lib.validate(config)
  assert field in str(error.value)


def test_resolve_fills_in_what_the_data_decide():
  config = get("folder")
  resolved = config_lib.resolve(config, source(examples=1000))
  assert resolved.augment.size == 20  # the shorter side
  assert tuple(resolved.augment.mean) == (0.4, 0.4, 0.4)
  assert resolved.train.batch_size == 64  # 2 ** 6 <= 1000 / 8
  assert resolved.train.epochs == 800
  assert config.augment.size == 0 and config.train.batch_size == 0
  # Resolved once more it stays as it is: a resumed run finds the same settings.
  again = config_lib.resolve(resolved, source(examples=1000))
  assert not config_lib.differences(resolved, again)


@pytest.mark.parametrize(("examples", "batch"), [(16, 8), (100, 8), (10**6, 256)])
def test_batch_from_the_data(examples, batch):
  resolved = config_lib.resolve(get("folder"), source(examples=examples))
  assert resolved.train.batch_size == batch


def test_resolve_refuses_what_cannot_fit():
  config = get("digits")
  with pytest.raises(InputError, match="128.*only 100 images"):
    config_lib.resolve(config, source(examples=100, shape=(16, 16, 1)))
  config.train.epochs = 3
  with pytest.raises(InputError, match="warmup_epochs is 4.*epochs = 3"):
    config_lib.resolve(config, source(examples=1000, shape=(16, 16, 1)))
  config = get("cifar10")
  with pytest.raises(InputError, match="3 values.*1 channels"):
    config_lib.resolve(config, source(examples=1000, shape=(16, 16, 1)))


def test_intervals_may_differ_on_resume_and_results_may_not():
  a, b = get("digits"), get("digits")
  b.train.log_every_steps = 3
  b.expected = {"cl": {"probe_h": 0.5}}
  assert not config_lib.differences(a, b)
  b.loss.temperature = 0.5
  assert config_lib.differences(a, b) == ["loss.temperature: 0.2 there, 0.5 here"]


@pytest.mark.parametrize(
  ("key", "near"),
  [
    ("loss.temprature", "loss.temperature"),
    ("temperature", "loss.temperature"),
    ("train.batchsize", "train.batch_size"),
    # Renamed, and another known field would look more like it.
    ("loss.map", "loss.transform"),
    ("loss.scale", "loss.logit_scale"),
    ("eval.activity", "eval.activation_rate"),
    ("qqqq", None),
  ],
)
def test_nearest_key(key, near):
  assert config_lib.nearest_key(key) == near


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("{", "not JSON"),
    ("[1]", "not an object"),
    (json.dumps({"seed": {"a": 1}}), "unknown config field .seed.a."),
    (json.dumps({"loss": 1}), "loss = 1"),
    (
      json.dumps({"loss": {"temp": 1}}),
      "unknown config field .loss.temp.: did you mean",
    ),
    (json.dumps({"loss": {"map": "relu"}}), "loss.map.: did you mean loss.transform"),
    (json.dumps({"loss": {"temperature": "warm"}}), "loss.temperature"),
  ],
)
def test_a_foreign_config_json_is_refused(text, says):
  with pytest.raises(InputError, match=says):
    config_lib.from_json(text)
