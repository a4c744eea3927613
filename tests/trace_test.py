"""Five updates from the released code's state, in float64, tensor by tensor."""

import functools

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipe

from ncl_jax import config as config_lib
from ncl_jax import interop, optimizers
from ncl_jax import step as step_lib

TRACE = "train_trace"


@functools.cache
def trace():
  return golden_numbers.load(TRACE)


def trace_config(map_name):
  config = config_lib.defaults()
  config.model.backbone = "resnet10"
  config.model.projector_hidden = 32
  config.model.projector_out = 16
  config.model.dtype = "float64"
  config.loss.map = map_name
  return config


def trace_start():
  state = recipe.state(golden_numbers.tensors(TRACE)["tensors"])
  variables = interop.from_torch(state)
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), variables)


def trace_optimizer(regime):
  """LARS with the trace's learning rates, set by hand for each step."""

  def at(name):
    rates = jnp.asarray(trace()[f"{regime}__lr_{name}"])
    return lambda step: rates[step]

  def make(name, decay):
    return optimizers.lars(
      at(name), weight_decay=decay, trust_coefficient=0.02, clip=True
    )

  return optimizers.partition(make("main", 1e-4), make("classifier", 0.0)), at("main")


@pytest.mark.parametrize(
  ("regime", "map_name"),
  [
    ("small", "rep_relu"),
    *(
      pytest.param(regime, map_name, marks=pytest.mark.slow)
      for regime, map_name in [
        ("small", "identity"),
        ("small", "relu"),
        ("recipe", "identity"),
        ("recipe", "relu"),
        ("recipe", "rep_relu"),
      ]
    ),
  ],
)
def test_the_released_codes_five_steps(x64, regime, map_name):
  golden, start = trace(), trace_start()
  prefix = f"{regime}__{map_name}__"
  optimizer, learning_rate = trace_optimizer(regime)
  update = jax.jit(
    step_lib.make_update(trace_config(map_name), 10, optimizer, learning_rate)
  )
  state = step_lib.TrainState(
    step=jnp.zeros((), jnp.int32),
    params=start["params"],
    batch_stats=start["batch_stats"],
    opt_state=optimizer.init(start["params"]),
  )
  views = np.stack([golden["x_view1"], golden["x_view2"]], axis=1)
  views = views.transpose(0, 1, 3, 4, 2).astype(np.float64)
  initial = interop.to_torch(start)
  for step in range(5):
    state, values, _ = update(state, views, jnp.asarray(golden["targets"]))
    for ours, theirs in {"loss": "loss_nce", "probe_loss": "loss_class"}.items():
      expected = golden[f"{prefix}{theirs}_f64"][step]
      np.testing.assert_allclose(values[ours], expected, atol=1e-9, rtol=0)
    tensors = interop.to_torch(
      {"params": state.params, "batch_stats": state.batch_stats}
    )
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
def test_joint_statistics_are_another_recipe(x64):
  golden, start = trace(), trace_start()
  config = trace_config("identity")
  config.model.batch_norm = "joint"
  optimizer, learning_rate = trace_optimizer("small")
  update = jax.jit(step_lib.make_update(config, 10, optimizer, learning_rate))
  state = step_lib.TrainState(
    step=jnp.zeros((), jnp.int32), opt_state=optimizer.init(start["params"]), **start
  )
  views = np.stack([golden["x_view1"], golden["x_view2"]], axis=1)
  views = views.transpose(0, 1, 3, 4, 2).astype(np.float64)
  _, values, _ = update(state, views, jnp.asarray(golden["targets"]))
  expected = golden["small__identity__step0_loss_nce_if_views_shared_one_forward_f64"]
  np.testing.assert_allclose(values["loss"], expected, atol=1e-9, rtol=0)
