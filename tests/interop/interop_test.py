"""Torch state dicts, of golden names and shapes, to variables and back."""

import golden_numbers
import jax
import numpy as np
import pytest
import recipe

from ncl_jax import interop, models
from ncl_jax.errors import InputError
from ncl_jax.models import ContrastiveModel, Projector

GOLDEN = {
  "resnet18_cifar": models.resnet18(),
  "resnet18_imagenet": models.resnet18("imagenet"),
  "resnet50_cifar": models.resnet50(),
}


def golden_state(name):
  return recipe.state(golden_numbers.tensors(name)["tensors"])


def small(stem="cifar"):
  return ContrastiveModel(models.resnet10(stem, width=4), Projector(6, 5))


def variables_of(model, channels=1):
  """Zeros of the right shapes, each plus its own number."""
  shapes = jax.eval_shape(
    model.init, jax.random.key(0), np.zeros((1, 32, 32, channels))
  )
  leaves, structure = jax.tree.flatten(shapes)
  rng = np.random.default_rng(0)
  return structure.unflatten([rng.normal(size=a.shape) for a in leaves])


@pytest.mark.parametrize("name", GOLDEN)
def test_names_and_shapes_are_those_of_the_model(name):
  state = golden_state(name)
  variables = interop.from_torch(state)
  hidden, out = (state[f"projector.{i}.weight"].shape[0] for i in (0, 2))
  model = ContrastiveModel(GOLDEN[name], Projector(hidden, out))
  probe = variables["params"].pop("probe")
  assert probe["kernel"].shape == (model.backbone.num_features, len(probe["bias"]))
  expected = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 32, 32, 3)))
  shape = lambda tree: jax.tree.map(lambda a: a.shape, tree)  # noqa: E731
  assert shape(variables) == shape(expected)


@pytest.mark.parametrize("name", GOLDEN)
def test_round_trip_of_the_released_state_is_exact(name):
  state = golden_state(name)
  back = interop.to_torch(interop.from_torch(state))
  assert list(back) == list(state)
  for key, array in state.items():
    np.testing.assert_array_equal(back[key], array)
    assert back[key].dtype == array.dtype


@pytest.mark.parametrize("stem", models.STEMS)
def test_round_trip_of_the_models_variables_is_exact(stem):
  variables = variables_of(small(stem))
  state = interop.to_torch(variables)
  back = interop.from_torch(state)
  jax.tree.map(np.testing.assert_array_equal, back, variables)
  assert state["backbone.bn1.num_batches_tracked"] == 0


def test_axes():
  variables = interop.from_torch(golden_state("resnet18_cifar"))
  name = "backbone.layer2.0.downsample.0.weight"
  weight = recipe.value(name, (128, 64, 1, 1))
  kernel = variables["params"]["backbone"]["layer2_0"]["downsample_conv"]["kernel"]
  assert kernel[0, 0, 5, 7] == weight[7, 5, 0, 0]
  conv = variables["params"]["backbone"]["conv1"]["kernel"]
  assert (
    conv[2, 1, 0, 9] == recipe.value("backbone.conv1.weight", (64, 3, 3, 3))[9, 0, 2, 1]
  )
  norm = variables["batch_stats"]["backbone"]["layer4_1"]["bn2"]["var"]
  assert norm[3] == recipe.value("backbone.layer4.1.bn2.running_var", (512,))[3]


def changed(state, drop=(), **extra):
  return {n: a for n, a in state.items() if n not in drop} | {
    n.replace("__", "."): a for n, a in extra.items()
  }


def test_missing_and_unexpected_names_are_listed():
  state = interop.to_torch(variables_of(small()))
  drop = ("backbone.layer3.0.bn1.bias", "projector.2.weight")
  with pytest.raises(InputError) as error:
    interop.from_torch(changed(state, drop, backbone__fc__weight=np.ones((2, 2))))
  message = str(error.value)
  for part in (*drop, "backbone.fc.weight", "2 are missing", "1 unexpected"):
    assert part in message
  assert "ResNet-10" in message
  with pytest.raises(InputError, match="64 are missing.* more.*1 unexpected"):
    interop.from_torch({"weight": np.ones(3)})


def test_shapes_that_do_not_fit_are_named():
  state = interop.to_torch(variables_of(small()))
  for name, shape, message in (
    (
      "backbone.conv1.weight",
      (4, 1, 5, 5),
      r"\[4, 1, 5, 5\] instead of \[4, 1, 3, 3\]",
    ),
    ("backbone.layer1.0.bn1.bias", (5,), r"\[5\] instead of \[4\]"),
    ("projector.0.weight", (6, 33), r"\[6, 33\] instead of \[6, 32\]"),
    ("projector.2.weight", (), r"\[\] instead of \[1, 6\]"),
  ):
    with pytest.raises(InputError, match=f"{name} {message}"):
      interop.from_torch(state | {name: np.zeros(shape)})


def test_variables_of_another_model_are_refused():
  variables = variables_of(small())
  del variables["params"]["backbone"]["layer2_0"]["conv1"]
  with pytest.raises(InputError, match="params/backbone/layer2_0/conv1/kernel"):
    interop.to_torch(variables)


@pytest.mark.parametrize("prefix", ["module.", "module.module."])
def test_prefixes_of_wrappers_and_of_older_names(prefix):
  state = interop.to_torch(variables_of(small()))
  wrapped = {
    prefix + name.replace("backbone.", "encoder."): array
    for name, array in state.items()
  }
  teacher = {
    f"{prefix}momentum_{name}": 2 * array
    for name, array in state.items()
    if not name.startswith("classifier.")
  }
  expected = interop.from_torch(state)
  jax.tree.map(
    np.testing.assert_array_equal, interop.from_torch(teacher | wrapped), expected
  )
  with pytest.raises(InputError, match="missing"):
    interop.from_torch(teacher)


def test_a_backbone_alone_is_told_what_it_lacks():
  state = interop.to_torch(variables_of(small()))
  alone = {n: a for n, a in state.items() if n.startswith("backbone.")}
  with pytest.raises(
    InputError, match="4 are missing .*projector.0.*no projector. Eval"
  ):
    interop.from_torch(alone)
  bare = {n.removeprefix("backbone."): a for n, a in alone.items()}
  with pytest.raises(InputError, match="no projector. Eval"):
    interop.from_torch(bare | {"fc.weight": np.ones((10, 32))})


@pytest.mark.parametrize(
  ("name", "backbone", "stem"),
  [
    ("resnet18_cifar", "resnet18", "cifar"),
    ("resnet18_imagenet", "resnet18", "imagenet"),
    ("resnet50_cifar", "resnet50", "cifar"),
    ("train_trace", "resnet10", "cifar"),
  ],
)
def test_settings_are_those_of_the_network(name, backbone, stem):
  state = golden_state(name)
  assert interop.settings(interop.from_torch(state)) == {
    "backbone": backbone,
    "stem": stem,
    "width": 64,
    "projector_hidden": state["projector.0.weight"].shape[0],
    "projector_out": state["projector.2.weight"].shape[0],
  }
