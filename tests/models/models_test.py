"""Networks against the released code's numbers."""

import functools

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipe

from ncl_jax import interop, models
from ncl_jax.errors import InputError
from ncl_jax.models import ContrastiveModel, Projector

NETWORKS = {
  "resnet18_cifar": models.resnet18(),
  "resnet18_imagenet": models.resnet18("imagenet"),
  "resnet50_cifar": models.resnet50(),
}
# Float32 training features: ResNet-50 passes rounding through more layers.
TRAIN_TOLERANCE = {"resnet50_cifar": 3e-4}
# For programs that run longer than they compile.
OPTIMIZED = {"xla_backend_optimization_level": 1}


@functools.cache
def golden(name):
  """Golden arrays and the recipe's variables; images to NHWC."""
  arrays = golden_numbers.load(name)
  state = recipe.state(golden_numbers.tensors(name)["tensors"])
  return arrays, interop.from_torch(state)


def cast(tree, dtype):
  return jax.tree.map(lambda a: np.asarray(a, dtype), tree)


def backbone_only(variables):
  return {collection: tree["backbone"] for collection, tree in variables.items()}


def close(value, expected, tolerance):
  np.testing.assert_allclose(
    value, expected, rtol=0, atol=tolerance * np.abs(expected).max()
  )


def close_stats(arrays, suffix, stats, tolerance):
  """Running statistics of the first and the last layer after one training pass."""
  _, layer, block, norm = str(arrays["last_bn_name"]).split(".")
  for key, moved in (
    ("first", stats["bn1"]),
    ("last", stats[f"{layer}_{block}"][norm]),
  ):
    for leaf in ("mean", "var"):
      close(moved[leaf], arrays[f"bn_{key}_running_{leaf}{suffix}"], tolerance)


def outputs_of_stages(name, captured):
  """Stem (after pooling) and the last block of each stage, [B, H, W, C]."""
  found = {"stem": np.maximum(captured["bn1"]["__call__"][0], 0)}
  if "imagenet" in name:
    # 3x3 windows, stride 2, one pixel of -inf around.
    x = np.pad(found["stem"], ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    shifts = [x[:, i:][:, :, j:] for i in range(3) for j in range(3)]
    height, width = (n // 2 for n in found["stem"].shape[1:3])
    found["stem"] = np.max(
      [s[:, : 2 * height : 2, : 2 * width : 2] for s in shifts], axis=0
    )
  for stage, depth in enumerate(NETWORKS[name].stages, 1):
    found[f"layer{stage}"] = captured[f"layer{stage}_{depth - 1}"]["__call__"][0]
  return found


@pytest.mark.parametrize(
  ("name", "dtype"),
  [(name, np.float64) for name in NETWORKS]
  + [
    ("resnet18_cifar", np.float32),
    pytest.param("resnet18_imagenet", np.float32, marks=pytest.mark.slow),
    pytest.param("resnet50_cifar", np.float32, marks=pytest.mark.slow),
  ],
)
def test_features_stages_and_running_statistics(name, dtype, x64):
  arrays, variables = golden(name)
  network, variables = NETWORKS[name], cast(backbone_only(variables), dtype)
  x = arrays["x"].transpose(0, 2, 3, 1).astype(dtype)

  options = OPTIMIZED if "imagenet" in name else None  # its pooling

  @functools.partial(jax.jit, compiler_options=options)
  def run(variables, x):
    train = network.apply(variables, x, True, mutable=["batch_stats"])
    return network.apply(variables, x, capture_intermediates=True), train

  (h, captured), (h_train, moved) = run(variables, x)
  assert h.dtype == h_train.dtype == dtype
  suffix, tolerances = "", (1e-5, TRAIN_TOLERANCE.get(name, 1e-4), 2e-5)
  if dtype == np.float64:
    suffix, tolerances = "_f64", (1e-9, 1e-9, 1e-9)
  close(h, arrays[f"feats_eval{suffix}"], tolerances[0])
  close(h_train, arrays[f"feats_train{suffix}"], tolerances[1])
  close_stats(arrays, suffix, moved["batch_stats"], tolerances[2])

  captured = captured["intermediates"]
  conv1 = captured["conv1"]["__call__"][0][0, :, :, :8].transpose(2, 0, 1)
  # Only recorded in float32, as are the spatial means.
  close(conv1, arrays["conv1_eval_img0_ch0_8"], 1e-5)
  for stage, y in outputs_of_stages(name, captured).items():
    assert y.transpose(0, 3, 1, 2).shape == tuple(arrays[f"shape_{stage}"])
    close(y.mean((1, 2)), arrays[f"gap_{stage}_eval"], 1e-5)


def gradients(name, train):
  """Of sum(w h) with respect to parameters and images, and the new statistics."""
  arrays, variables = golden(name)
  variables = cast(backbone_only(variables), np.float64)

  @functools.partial(jax.jit, compiler_options=OPTIMIZED)
  @functools.partial(jax.grad, argnums=(0, 1))
  def run(params, x):
    h, _ = NETWORKS[name].apply(
      {**variables, "params": params}, x, train, mutable=["batch_stats"]
    )
    return jnp.sum(h * arrays["w"])

  x = arrays["x"].transpose(0, 2, 3, 1).astype(np.float64)
  params, images = run(variables["params"], x)
  images = np.asarray(images).transpose(0, 3, 1, 2)
  expected = arrays[f"grad_x_{'train' if train else 'eval'}_f64"]
  assert np.linalg.norm(images - expected) <= 1e-6 * np.linalg.norm(expected)
  return params


@pytest.mark.parametrize(
  "name",
  [
    "resnet18_cifar",
    "resnet18_imagenet",
    pytest.param("resnet50_cifar", marks=pytest.mark.slow),
  ],
)
def test_training_gradients(name, x64):
  arrays, variables = golden(name)
  params = {**variables["params"], "backbone": gradients(name, train=True)}
  state = interop.to_torch({**variables, "params": params})
  for name, sumsq, probe in zip(
    arrays["param_names"],
    arrays["grad_param_sumsq_train_f64"],
    arrays["grad_param_probe_train_f64"],
    strict=True,
  ):
    gradient = state[str(name)]
    np.testing.assert_allclose(np.sum(gradient**2), sumsq, rtol=1e-7)
    seen = recipe.probe(str(name), gradient) / np.sqrt(sumsq)
    np.testing.assert_allclose(seen, probe / np.sqrt(sumsq), rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_gradients(name, x64):
  gradients(name, train=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_projector(dtype, x64):
  arrays = golden_numbers.load("projector")
  layers = {}
  for torch, ours in (("projector.0", "linear1"), ("projector.2", "linear2")):
    shapes = {
      t["name"]: tuple(t["shape"])
      for t in golden_numbers.tensors("projector")["tensors"]
    }
    weight, bias = (
      recipe.value(n, shapes[n]) for n in (f"{torch}.weight", f"{torch}.bias")
    )
    layers[ours] = {"kernel": weight.T.astype(dtype), "bias": bias.astype(dtype)}
  projector = Projector(64, 32)

  def loss(params, h):
    z = projector.apply({"params": params}, h)
    return jnp.sum(z * arrays["w"].astype(dtype)), z

  h = arrays["x"].astype(dtype)
  (params, h), z = jax.grad(loss, (0, 1), has_aux=True)(layers, h)
  suffix, tolerance = ("_f64", 1e-10) if dtype == np.float64 else ("", 1e-5)
  for value, key in (
    (z, "z"),
    (h, "grad_x"),
    (params["linear1"]["bias"], "grad_projector.0.bias"),
    (params["linear2"]["kernel"].T, "grad_projector.2.weight"),
    (params["linear2"]["bias"], "grad_projector.2.bias"),
  ):
    assert value.dtype == dtype
    close(value, arrays[key + suffix], tolerance)


def small(dtype=None):
  return ContrastiveModel(
    models.resnet10(width=4, dtype=dtype), Projector(16, 6, dtype=dtype)
  )


def random_variables(model, x):
  """Without the seconds that compiling an initialisation takes."""
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(model.init, jax.random.key(0), x)
  return jax.tree.map(lambda a: np.float32(rng.uniform(0.1, 0.3, a.shape)), shapes)


def test_embed_returns_the_layers_of_the_evaluation_pass():
  model = small()
  x = np.random.default_rng(1).normal(size=(3, 12, 12, 1)).astype(np.float32)
  variables = random_variables(model, x)
  h, hidden, z = jax.jit(functools.partial(model.apply, method="embed"))(variables, x)
  assert h.shape == (3, model.backbone.num_features) == (3, 32)
  assert hidden.shape == (3, 16) and z.shape == (3, 6)
  for a, b in zip(jax.jit(model.apply)(variables, x), (h, z), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
  last = variables["params"]["projector"]["linear2"]
  np.testing.assert_allclose(
    z, np.maximum(hidden, 0) @ last["kernel"] + last["bias"][None], rtol=1e-4, atol=1e-5
  )


def test_bfloat16_computes_inside_only():
  model = small(jnp.bfloat16)
  x = np.random.default_rng(1).normal(size=(4, 12, 12, 1)).astype(np.float32)
  variables = random_variables(model, x)
  # Parameters are made in float32 whatever the computation's type.
  shapes = jax.eval_shape(model.init, jax.random.key(0), x)
  assert {a.dtype for a in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}

  @functools.partial(jax.jit, static_argnums=0)
  def train(model, variables, x):
    return model.apply(variables, x, True, views=2, mutable=["batch_stats"])

  (h, z), moved = train(model, variables, x)
  assert {a.dtype for a in jax.tree.leaves((moved, h, z))} == {jnp.dtype("float32")}
  exact = train(small(), variables, x)[0][0]
  # Two to three digits in bfloat16, nine layers deep.
  assert 0 < np.abs(h - exact).max() < 0.1 * np.abs(exact).max()


def test_static_argument_is_compared_by_value():
  traces = []

  @functools.partial(jax.jit, static_argnums=0)
  def run(model, x):
    traces.append(model)
    return x

  for model in (small(), small(), small(jnp.bfloat16), small(jnp.bfloat16)):
    run(model, np.zeros(1))
  assert len(traces) == 2


def test_number_of_parameters_of_the_paper():
  # He et al. count 11.7 and 25.6 million with the 1000-class layer; without it:
  for network, millions in (
    (models.resnet18("imagenet"), 11.689512 - 0.513),
    (models.resnet50("imagenet"), 25.557032 - 2.049),
  ):
    shapes = jax.eval_shape(network.init, jax.random.key(0), np.zeros((1, 64, 64, 3)))
    count = sum(a.size for a in jax.tree.leaves(shapes["params"]))
    assert count == round(millions * 1e6)


@pytest.mark.parametrize("make", [models.resnet10, models.resnet18, models.resnet50])
def test_unknown_stem_and_width_are_refused(make):
  with pytest.raises(InputError, match="'cifar10'.*cifar, imagenet"):
    make(stem="cifar10")
  with pytest.raises(InputError, match="width = 0"):
    make(width=0)
