"""Trains an encoder chunk by chunk, without shuffling and without a known end."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils import gen_batches

from ncl_jax import numerics
from ncl_jax.checks import divergence
from ncl_jax.encoder import given, training
from ncl_jax.encoder.coding import Params
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
  """What training needs to continue, besides the parameters; on the host.

  Attributes:
    moments: the optimizer's state, as the leaves of its tree.
    silent: [D] updates since a unit was last in a code.
    done: [] number of updates.
    seed: [] of the views.
  """

  moments: tuple[np.ndarray, ...]
  silent: np.ndarray
  done: np.ndarray
  seed: np.ndarray

  def tensors(self) -> dict[str, np.ndarray]:
    """The content, by the names that it has in a file."""
    # As floats, exactly: a file may hold whole numbers only without axes.
    named = vars(self) | {"silent": np.float64(self.silent)}
    leaves = {str(n): np.asarray(leaf) for n, leaf in enumerate(named.pop("moments"))}
    named |= {f"moments.{n}": leaf for n, leaf in leaves.items()}
    return {f"progress.{name}": tensor for name, tensor in named.items()}

  @classmethod
  def of(cls, found: dict[str, Any]) -> Self:
    """From a file's part "progress", in which "moments" is a dictionary."""
    leaves = found["moments"]
    moments = tuple(leaves[str(n)] for n in range(len(leaves)))
    silent = found["silent"].astype(np.int32)
    return cls(moments, silent, found["done"], found["seed"])


def begin(
  seed: int, live: np.ndarray, recipe: training.Recipe
) -> tuple[Params, Progress]:
  """Initial parameters and progress; `live` [E]: whether columns are not constant."""
  key = jax.random.split(numerics.key(seed))[0]
  state = training.start(key, jnp.asarray(live), recipe)
  params, moments, silent = jax.device_get(state)
  leaves = tuple(jax.tree.leaves(moments))
  return params, Progress(leaves, silent, np.asarray(0), np.asarray(seed))


def advance(
  params: Params,
  progress: Progress,
  data: training.Data,
  recipe: training.Recipe,
  batch_size: int,
) -> tuple[Params, Progress, float]:
  """One pass over the rows in their order; changes none of its arguments.

  Rows after the last full batch are a smaller batch, and a single one joins the batch
  before.

  Returns:
    (parameters, progress, mean loss of the batches).

  Raises:
    FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
      names the step.
  """
  tree = jax.tree.structure(jax.eval_shape(recipe.optimizer.init, params))
  moments = jax.tree.unflatten(tree, progress.moments)
  # Copies, because `updates` overwrites its state.
  state = jax.tree.map(jnp.array, (params, moments, progress.silent))
  key = jax.random.split(numerics.key(int(progress.seed)))[1]
  seen, done = [], int(progress.done)
  rows = np.arange(len(data.parts[0]))
  # One batch a call: no chunk of another length needs another program.
  for part in gen_batches(len(rows), batch_size, min_batch_size=2):
    batch = data.batches(rows[None, part], recipe.views)
    state, value, faults = training.updates(state, key, jnp.int32(done), batch, recipe)
    done += 1
    divergence.check(np.asarray(faults), done)
    seen.append(float(value[0]))
  params, moments, silent = jax.device_get(state)
  leaves = tuple(jax.tree.leaves(moments))
  after = dataclasses.replace(
    progress, moments=leaves, silent=silent, done=np.asarray(done)
  )
  return params, after, float(np.mean(seen))


class Incremental:
  """The method of `NonNegativeEncoder` that trains on one chunk of rows."""

  # Given by the estimator.
  _data: Any
  _recipe: Any
  _seed: Any
  _set: Any
  _progress: Progress
  params_: Params
  scaling_: Scaling
  loss_curve_: np.ndarray
  n_components: int
  batch_size: int
  tied: bool

  def partial_fit(self, X: Any, y: Any = None, *, pairs: Any = None) -> Self:
    """Trains on the rows once, in their order, and continues where training was.

    Parameters, optimizer state and counts of dead dimensions continue, so chunks of
    full batches give the same encoder as their rows in one call. The learning rate is
    constant, as the end is unknown; lower it between calls by `set_params`. Rows are
    not shuffled: give them in random order, in chunks of a multiple of `batch_size`.

    The first call draws the weights and fixes the centre, scale and constant columns
    by its rows, so make it large. After `fit`, or on an encoder from another package,
    it continues from those weights with a new optimizer. Columns keep their places.

    Args:
      X: [N, E] embeddings, N at least 2.
      y: [N] labels if positives are "labels"; else ignored.
      pairs: [N, E] the partner of each row if positives are "pairs".

    Raises:
      ValueError: an invalid setting, shape or number, another width than before, or
        nothing to learn from.
      FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
        names the step. The encoder is then as before the call.
    """
    first = not hasattr(self, "scaling_")
    data = self._data(X, y, pairs, None if first else self.scaling_)
    if first:
      given.warn_of_outliers(data.scaling)
    else:
      self._check_network()
    recipe = self._recipe(None)
    if hasattr(self, "_progress"):
      params, progress = self.params_, self._progress
    else:
      params, progress = begin(self._seed(), data.scaling.deviation > 0, recipe)
      params = params if first else self.params_
    found = advance(params, progress, data, recipe, int(self.batch_size))
    params, progress, value = found
    self._set(params, data)
    self._progress = progress
    earlier = [] if first else getattr(self, "loss_curve_", [])
    self.loss_curve_ = np.append(earlier, value)
    self.scaling_ = data.scaling
    vars(self).pop("names_", None)  # were of other weights
    return self

  def _check_network(self) -> None:
    """Raises an InputError if settings no longer describe the parameters."""
    asked = int(self.n_components), bool(self.tied)
    trained = len(self.params_["bias"]), "decoder" not in self.params_
    if asked != trained:
      raise InputError(
        f"n_components = {asked[0]} and tied = {asked[1]}, but the encoder was fitted "
        f"with {trained[0]} and {trained[1]}: partial_fit continues it. Call fit to "
        "start again"
      )
