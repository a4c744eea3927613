"""The training state and its values before the first step."""

from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import features, numerics
from ncl_jax.data.source import Source
from ncl_jax.runtime import compiler
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import classifier, collapse, ema
from ncl_jax.training import loss as loss_lib


@flax.struct.dataclass
class TrainState:
  """The training state: parameters, statistics, optimizer state and step.

  Attributes:
    step: int32, updates done. Randomness is `fold_in(key(seed), step)`: never stored.
    params: {"backbone", "projector", "probe", "loss", "classifier"}; the probe is the
      online linear classifier on detached `h`, absent without labels; "loss" is the
      learnt temperature, if any. With a text tower also {"text",
      "text_projector"}. Of supervised training {"backbone", "projector",
      "classifier"}.
    epoch: feature statistics of this epoch so far, see `collapse`.
    momentum: the momentum encoder, see `ema`; None for methods without one.
  """

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: Any
  epoch: Any = None
  momentum: Any = None

  def items(self) -> dict[str, Any]:
    """The two items of a checkpoint: what evaluation reads, and the rest."""
    train = {"step": self.step, "opt_state": self.opt_state, "epoch": self.epoch}
    if self.momentum is not None:
      train["momentum"] = self.momentum
    return {
      "model": {"params": self.params, "batch_stats": self.batch_stats},
      "train": train,
    }


def init_variables(config: ConfigDict, source: Source) -> Any:
  """The untrained network, the same for CL and NCL; run it with `build`.

  Returns:
    {"params": {"backbone", "projector", "probe" or "classifier"}, "batch_stats"}, with
    "predictor", "prototypes" and "loss" among the parameters where the loss has them.
  """
  model = config_lib.model(config)
  size, channels = config.augment.size, source.image_shape[-1]
  # The forward pass that fixes the shapes is dead code, dropped before compilation.
  variables = model.init(
    numerics.key(config.seed), jnp.zeros((2, size, size, channels)), train=False
  )
  params = dict(variables["params"]) | loss_lib.init(config)
  params |= classifier.init(config, source)
  batch_stats = variables.get("batch_stats", {})
  predictor = config_lib.predictor(config)
  if predictor is not None:
    # A key of its own: the network's are drawn from the seed's key itself.
    key = jax.random.fold_in(numerics.key(config.seed), 2)
    drawn = predictor.init(key, jnp.zeros((2, config.model.projector_out)))
    params["predictor"] = drawn["params"]
    batch_stats = {**batch_stats, "predictor": drawn["batch_stats"]}
  if source.num_classes and "classifier" not in params:
    params["probe"] = {
      "kernel": jnp.zeros((model.backbone.num_features, source.num_classes)),
      "bias": jnp.zeros(source.num_classes),
    }
  return {"params": params, "batch_stats": batch_stats}


def untrained(config: ConfigDict, source: Source, mesh: Mesh) -> Any:
  """`init_variables` on every device, by one program for all seeds."""

  def init(seed: jax.Array) -> Any:
    return init_variables(_with_seed(config, seed), source)

  return _compiled(init, mesh)(seed_of(config))


def shapes(config: ConfigDict, source: Source) -> Any:
  """The shapes and dtypes of `init_variables`; nothing is computed."""
  return jax.eval_shape(lambda: init_variables(config, source))


def network(config: ConfigDict, mesh: Mesh) -> features.Network:
  """The network of a run and its views, for the functions of `features`."""
  return features.Network(
    config_lib.model(config),
    config_lib.augmentation(config),
    mesh,
    config.eval.batch_size,
  )


def init_state(
  config: ConfigDict, source: Source, optimizer: optax.GradientTransformation
) -> TrainState:
  """The state before the first step; run it with `build`."""
  variables = init_variables(config, source)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=variables["params"],
    batch_stats=variables["batch_stats"],
    opt_state=optimizer.init(variables["params"]),
    epoch=collapse.start(config_lib.widths(config)["z"]),
    momentum=ema.init(config, variables),
  )


def build(function: Callable[[], Any], mesh: Mesh) -> Any:
  """Runs an initialisation once, as one program, with its results on every device."""
  return _compiled(function, mesh)()


def _compiled(init: Callable[..., Any], mesh: Mesh) -> Any:
  # It runs once, so the time to compile it is what counts: on CPU, for a ResNet-10, 4.5
  # instead of 21 CPU seconds.
  whole, options = sharding_lib.replicated(mesh), compiler.cpu_effort(0, mesh)
  return jax.jit(init, out_shardings=whole, compiler_options=options)


def seed_of(config: ConfigDict) -> np.ndarray:
  """The seed as an argument of compiled programs: what `jax.random.key` uses of it.

  Returns:
    uint32 [], or uint64 under x64.
  """
  dtype = jax.dtypes.canonicalize_dtype(np.uint64)
  return np.array(config.seed % 2 ** (8 * dtype.itemsize), dtype)


def make_init(
  config: ConfigDict,
  source: Source,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
) -> Any:
  """The program that makes the state before the first step, one for all seeds.

  Returns:
    Jitted `init(seed) -> state`, what `build` makes of `init_state` with that seed,
    given by `seed_of`; the config's own does not count.
  """

  def init(seed: jax.Array) -> TrainState:
    return init_state(_with_seed(config, seed), source, optimizer)

  return _compiled(init, mesh)


def _with_seed(config: ConfigDict, seed: jax.Array) -> ConfigDict:
  """The settings with the seed as an argument of a compiled program."""
  drawn = config.copy_and_resolve_references()
  with drawn.ignore_type():
    drawn.seed = seed
  return drawn
