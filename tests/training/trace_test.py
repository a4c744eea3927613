"""Five updates from the released code's state, tensor by tensor, in both precisions."""

import functools

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipe

from ncl_jax import config as config_lib
from ncl_jax import interop, optimizers
from ncl_jax.training import state as state_lib
from ncl_jax.training import update as update_lib

TRACE = "train_trace"


@functools.cache
def trace():
  return golden_numbers.load(TRACE)


def trace_config(transform, dtype="float64"):
  config = config_lib.defaults()
  config.model.backbone = "resnet10"
  config.model.projector_hidden = 32
  config.model.projector_out = 16
  config.model.dtype = dtype
  config.loss.transform = transform
  return config


def trace_start(dtype="float64"):
  state = recipe.state(golden_numbers.tensors(TRACE)["tensors"])
  variables = interop.from_torch(state)
  return jax.tree.map(lambda x: jnp.asarray(x, dtype), variables)


def trace_optimizer(rates):
  """LARS with the trace's learning rates, set by hand for each step."""

  def at(name):
    return lambda step: rates[name][step]

  def make(name, decay):
    return optimizers.lars(
      at(name), weight_decay=decay, trust_coefficient=0.02, clip=True
    )

  return optimizers.partition(make("main", 1e-4), make("classifier", 0.0))


def rates_of(regime):
  return {
    name: jnp.asarray(trace()[f"{regime}__lr_{name}"])
    for name in ("main", "classifier")
  }


@functools.cache
def jitted(transform, dtype):
  """One program for both regimes: their learning rates are an argument."""

  def update(rates, *operands):
    optimizer = trace_optimizer(rates)
    config = trace_config(transform, dtype)
    return update_lib.make_update(config, 10, optimizer)(*operands)

  return jax.jit(update)


def operands(regime, dtype):
  """The released code's first state, both views and the labels."""
  golden, start = trace(), trace_start(dtype)
  state = state_lib.TrainState(
    step=jnp.zeros((), jnp.int32),
    params=start["params"],
    batch_stats=start["batch_stats"],
    opt_state=jax.jit(trace_optimizer(rates_of(regime)).init)(start["params"]),
  )
  views = np.stack([golden["x_view1"], golden["x_view2"]], axis=1)
  views = views.transpose(0, 1, 3, 4, 2).astype(dtype)
  return state, views, jnp.asarray(golden["targets"])


def updates(regime, transform, dtype, steps):
  """The released order of things: yields (metrics, torch's tensors) of each step."""
  update = functools.partial(jitted(transform, dtype), rates_of(regime))
  state, views, labels = operands(regime, dtype)
  for _ in range(steps):
    state, values, _ = update(state, views, labels)
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    yield values, interop.to_torch(variables)


LOSSES = {"loss": "loss_nce", "probe_loss": "loss_class"}


@pytest.mark.parametrize(
  "transform",
  ["rep_relu", pytest.param("identity", marks=pytest.mark.slow)],
)
def test_the_first_losses_in_float32(transform):
  # Losses are continuous. Their gradients jump where rounding decides a ReLU, and the
  # updates with them: float64 compares those, below.
  golden = trace()
  optimizer = trace_optimizer(rates_of("small"))
  update = update_lib.make_update(trace_config(transform, "float32"), 10, optimizer)
  values = jax.jit(lambda *given: update(*given)[1])(*operands("small", "float32"))
  for ours, theirs in LOSSES.items():
    expected = golden[f"small__{transform}__{theirs}_f64"][0]
    np.testing.assert_allclose(values[ours], expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
  ("regime", "transform", "steps"),
  # Those of one program side by side: in one process, compiled once.
  [
    pytest.param("recipe", "rep_relu", 5, marks=pytest.mark.slow),
    pytest.param("small", "rep_relu", 5, marks=pytest.mark.slow),
    ("small", "rep_relu", 3),
    *(
      pytest.param(regime, transform, 5, marks=pytest.mark.slow)
      for transform in ("identity", "relu")
      for regime in ("recipe", "small")
    ),
  ],
)
def test_the_released_codes_five_steps(optimized, x64, regime, transform, steps):
  golden, prefix = trace(), f"{regime}__{transform}__"
  initial = interop.to_torch(trace_start())
  seen = updates(regime, transform, "float64", steps)
  for step, (values, tensors) in enumerate(seen):
    for ours, theirs in LOSSES.items():
      expected = golden[f"{prefix}{theirs}_f64"][step]
      np.testing.assert_allclose(values[ours], expected, atol=1e-9, rtol=0)
    for i, name in enumerate(golden["tensor_names"]):
      tensor = np.asarray(tensors[str(name)])
      change = tensor - initial[str(name)]

      def at(key, step=step, i=i):
        return golden[f"{prefix}{key}_f64"][step, i]

      np.testing.assert_allclose((tensor**2).sum(), at("sumsq"), rtol=1e-9)
      np.testing.assert_allclose((change**2).sum(), at("delta_sumsq"), rtol=1e-9)
      np.testing.assert_allclose(
        recipe.probe(str(name), tensor),
        at("probe"),
        rtol=0,
        atol=1e-9 * np.sqrt(at("sumsq") / 3),
      )
      np.testing.assert_allclose(
        recipe.probe(str(name), change),
        at("delta_probe"),
        rtol=0,
        atol=1e-9 * np.sqrt(at("delta_sumsq") / 3),
      )


@pytest.mark.slow
def test_joint_statistics_are_another_recipe(optimized, x64):
  golden, start = trace(), trace_start()
  config = trace_config("identity")
  config.model.batch_norm = "joint"
  optimizer = trace_optimizer(rates_of("small"))
  update = jax.jit(update_lib.make_update(config, 10, optimizer))
  state = state_lib.TrainState(
    step=jnp.zeros((), jnp.int32), opt_state=optimizer.init(start["params"]), **start
  )
  views = np.stack([golden["x_view1"], golden["x_view2"]], axis=1)
  views = views.transpose(0, 1, 3, 4, 2).astype(np.float64)
  _, values, _ = update(state, views, jnp.asarray(golden["targets"]))
  expected = golden["small__identity__step0_loss_nce_if_views_shared_one_forward_f64"]
  np.testing.assert_allclose(values["loss"], expected, atol=1e-9, rtol=0)
