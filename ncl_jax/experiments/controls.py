"""Controls: what no training, a rotation or pixels give under the same evaluation.

Each is a config and variables, so that every program of `evaluators` takes it as it
takes a run. What is linear in z becomes a last layer of the network; what is not is a
function from a split to features.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import augment, features
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators import program
from ncl_jax.experiments import baseline_features, rivals, rotations
from ncl_jax.models import byte_tokenizer
from ncl_jax.runtime import sharding as sharding_lib

CALIBRATION_BATCHES = 64
# Those that two towers can have: the others change or replace the first tower alone.
BOTH_TOWERS = (
  "untrained",
  "untrained_calibrated",
  "cl_map",
  "cl_varimax",
  "cl_varimax_map",
)


@dataclasses.dataclass(frozen=True)
class Control:
  """One control.

  Attributes:
    key: short name.
    label: what a reader sees.
    note: one sentence: what it is.
    config: as of a run, with its own transform and width.
    variables: {"params", "batch_stats"}, or a function that `program.extract` calls.
  """

  key: str
  label: str
  note: str
  config: ConfigDict
  variables: Any


def untrained(ncl: program.Run) -> Control:
  """The one that needs nothing: the network as it was before training.

  Args:
    ncl: the run with a transform.
  """
  return Control(
    "untrained",
    "untrained + transform",
    "the network before training, with NCL's transform on it",
    ncl.config,
    program.untrained(ncl),
  )


def controls(cl: program.Run, ncl: program.Run) -> list[Control]:
  """The controls of a pair of runs of one seed.

  Args:
    cl: the run without a transform.
    ncl: the run with one.

  Returns:
    Untrained ones, CL with something done to it afterwards (`rivals.rivals` too), and
    classical ones on pixels and on CL's h. Of networks without BatchNorm none is
    calibrated, of texts there are no pixels, of values below 0 no NMF. Two towers are
    rotated whole, so that their pairs can be evaluated.
  """
  first = untrained(ncl)
  fresh = first.variables
  transform = ncl.config.loss.transform
  identity = np.eye(config_lib.widths(cl.config)["z"])

  def after(key, label, note, matrix, shift, name):
    changed = last_layer(cl.config, cl.variables, matrix, shift, name)
    return Control(key, label, note, *changed)

  found = [first]
  if jax.tree.leaves(fresh["batch_stats"]):
    found.append(
      Control(
        "untrained_calibrated",
        "untrained, calibrated + transform",
        "the same with BatchNorm's running statistics taken from the training images",
        ncl.config,
        calibrate(ncl.config, fresh, ncl.source, ncl.mesh),
      )
    )
  found += [
    after(
      "cl_map",
      "CL + transform",
      f"CL with {transform} put on it after training",
      identity,
      0.0,
      transform,
    ),
  ]
  if cl.config.loss.name == "clip":
    turned = _varimax(cl)
    found += [
      after(
        "cl_varimax",
        "CL + varimax",
        "CL rotated to the sparsest axes, which leaves distances as they are",
        turned,
        0.0,
        "identity",
      ),
      after(
        "cl_varimax_map",
        "CL + varimax + transform",
        "the rotated CL with NCL's transform after it, axes pointing where their tail "
        "is long",
        turned,
        0.0,
        transform,
      ),
    ]
  for key, label, note, rival in rivals.rivals(cl, ncl):
    config = _changed(cl.config, rival.width, "identity")
    found.append(Control(key, label, note, config, rival))
  inputs = {
    "pixels": baseline_features.remembered(cl, baseline_features.pixels),
    "h": baseline_features.remembered(cl, baseline_features.hidden_of(cl)),
  }
  whose = {"pixels": "the pixels", "h": "CL's h"}
  if cl.source.texts:
    del inputs["pixels"]
  for name, extract in inputs.items():
    for kind in baseline_features.FITS:
      coded = baseline_features.fitted(extract, kind, cl)
      if coded is None:
        continue
      config = _changed(cl.config, coded.width, "identity")
      found.append(
        Control(
          f"{name}_{kind}",
          f"{name}: {baseline_features.LABELS[kind]}",
          f"f is {baseline_features.NOTES[kind]} of {whose[name]}",
          config,
          coded,
        )
      )
  return found


def last_layer(
  config: ConfigDict,
  variables: Any,
  matrix: np.ndarray,
  shift: np.ndarray | float,
  transform: str,
) -> tuple[ConfigDict, Any]:
  """A network whose output is `map(z matrix + shift)`, in each tower that it has.

  Args:
    config: of the network that gives z.
    variables: likewise; not changed.
    matrix: [D, M].
    shift: [M], or a number for all.
    transform: see `nonneg.NAMES`.

  Returns:
    (config, variables) of the new network.

  Raises:
    InputError: if the network has no projector.
  """
  if not config.model.projector:
    raise InputError(
      "the network has no projector (model.projector is False), whose last layer this "
      "control changes: allowed are runs with one"
    )
  params = dict(variables["params"])
  name = f"linear{config.model.projector_layers}"
  for tower in ("projector", "text_projector"):
    if tower not in params:
      continue
    last = jax.tree.map(lambda x: np.asarray(x, np.float64), params[tower][name])
    params[tower] = dict(params[tower]) | {
      name: {
        "kernel": jnp.asarray(last["kernel"] @ matrix, jnp.float32),
        "bias": jnp.asarray(last["bias"] @ matrix + shift, jnp.float32),
      }
    }
  changed = _changed(config, matrix.shape[1], transform)
  return changed, {"params": params, "batch_stats": variables["batch_stats"]}


def calibrate(config: ConfigDict, variables: Any, source: Source, mesh: Mesh) -> Any:
  """BatchNorm's running statistics from training images, without any training.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}; not changed.
    source: the data.
    mesh: batches are split over its devices.

  Returns:
    {"params", "batch_stats"} after `CALIBRATION_BATCHES` forward passes in training
    mode, enough that nothing is left of the statistics before.
  """
  model = config_lib.model(config)
  view = config_lib.augmentation(config)
  params = {k: v for k, v in variables["params"].items() if k != "probe"}

  @jax.jit(out_shardings=sharding_lib.replicated(mesh))
  def forward(params, batch_stats, images, texts):
    _, mutated = model.apply(
      {"params": params, "batch_stats": batch_stats},
      augment.eval_view(images, view),
      train=True,
      mutable=["batch_stats"],
      **texts,
    )
    return mutated.get("batch_stats", {})

  batch_stats = variables["batch_stats"]
  size = config.train.batch_size
  own = sharding_lib.process_rows(mesh, size)
  batches = source.train_batches(config.seed, 0, size, own)
  for _ in range(CALIBRATION_BATCHES):
    batch = next(batches)
    images = sharding_lib.to_global(mesh, batch["image"])
    texts = {}
    if config.loss.name == "clip":
      captions = source.split("train").captions
      assert captions is not None  # as `config.resolve` has seen
      tokens = byte_tokenizer.encode(captions[batch["id"]], config.text.length)
      texts = {"tokens": sharding_lib.to_global(mesh, tokens)}
    # Waited for: many programs at once on simulated devices can lock each other.
    batch_stats = jax.block_until_ready(forward(params, batch_stats, images, texts))
  batches.close()
  return {"params": variables["params"], "batch_stats": batch_stats}


def _varimax(cl: program.Run) -> np.ndarray:
  """The rotation of CL's z to sparse axes, [D, D], long tails upwards."""
  z = program.extract(cl.config, cl.variables, cl.source, "train", cl.mesh).z
  z = baseline_features.some_rows(z, cl.config.seed)
  rotation = rotations.varimax(np.asarray(features.embed(z, "identity")))
  return rotations.orient(z @ rotation, rotation)


def _changed(config: ConfigDict, width: int, transform: str) -> ConfigDict:
  config = config.copy_and_resolve_references()
  config.model.projector = True  # what gives z its own width
  config.model.projector_out = width
  config.loss.transform = transform
  return config
