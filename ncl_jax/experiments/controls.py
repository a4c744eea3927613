"""Controls: what no training, a rotation or pixels give under the same evaluation.

Each is a `FeatureSource`, so that an evaluator takes it as it takes a run. What is
linear in z becomes a last layer of the network; the others are
`baseline_features.Codes`.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import augment, checks, features, methods
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators.run import FeatureSource, Run
from ncl_jax.experiments import baseline_features, rivals, rotations
from ncl_jax.models import byte_tokenizer
from ncl_jax.runtime import sharding as sharding_lib

CALIBRATION_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Control:
  """One control.

  Attributes:
    label: what a reader sees.
    note: one sentence: what it is.
    both_towers: whether two towers can have it; the others change or replace the first
      tower alone.
    own_backbone: whether its backbone differs from CL's, so that training it is useful.
  """

  label: str
  note: str
  both_towers: bool = False
  own_backbone: bool = False


def _table() -> dict[str, Control]:
  found = {
    "untrained": Control(
      "untrained + transform",
      "the network before training, with NCL's transform on it",
      both_towers=True,
      own_backbone=True,
    ),
    "untrained_calibrated": Control(
      "untrained, calibrated + transform",
      "the same with BatchNorm's running statistics taken from the training images",
      both_towers=True,
      own_backbone=True,
    ),
    "cl_transform": Control(
      "CL + transform", "CL with NCL's transform put on it after training", True
    ),
    "cl_varimax": Control(
      "CL + varimax",
      "CL rotated to the sparsest axes, which leaves distances as they are",
      True,
    ),
    "cl_varimax_transform": Control(
      "CL + varimax + transform",
      "the rotated CL with NCL's transform after it, axes pointing where their tail is "
      "long",
      True,
    ),
  }
  for key, rival in rivals.RIVALS.items():
    found[key] = Control(f"CL: {rival.label}", f"of CL's f: {rival.note}")
  for base, whose in (("pixels", "the pixels"), ("h", "CL's h")):
    for kind in baseline_features.FITS:
      found[f"{base}_{kind}"] = Control(
        f"{base}: {baseline_features.LABELS[kind]}",
        f"f is {baseline_features.NOTES[kind]} of {whose}",
      )
  return found


CONTROLS = _table()
# Each answers a separate question; the others are variations, selected by name.
DEFAULT = (
  "untrained",
  "cl_matched_rates",
  "cl_varimax",
  "cl_varimax_95",
  "cl_kmeans",
  "pixels_kmeans",
  "h_kmeans",
)


def chosen(names: Sequence[str]) -> tuple[str, ...]:
  """The controls that are asked for, the untrained network always first.

  Args:
    names: of `CONTROLS`; "default" stands for `DEFAULT`, "all" for all of them.

  >>> chosen(["h_pca"])
  ('untrained', 'h_pca')
  """
  words = {"default": DEFAULT, "all": tuple(CONTROLS)}
  for name in names:
    checks.choice("control", name, (*words, *CONTROLS))
  wanted = {key for name in names for key in words.get(name, (name,))} | {"untrained"}
  return tuple(key for key in CONTROLS if key in wanted)


def make(key: str, cl: Run, ncl: Run) -> FeatureSource | None:
  """A control of a pair of runs of one seed.

  Args:
    key: of `CONTROLS`.
    cl: the run without a transform.
    ncl: the run with one.

  Returns:
    None where the control does not exist: calibration needs BatchNorm, pixels need
    images, NMF needs values of at least 0, and only two towers are rotated whole.
  """
  transform = ncl.config.loss.transform
  if key in rivals.RIVALS:
    return rivals.rival(key, cl, ncl)
  if key == "untrained":
    return ncl.untrained()
  if key == "untrained_calibrated":
    fresh = ncl.untrained()
    return calibrate(fresh) if jax.tree.leaves(fresh.variables["batch_stats"]) else None
  if key == "cl_transform":
    return last_layer(cl, np.eye(config_lib.widths(cl.config)["z"]), 0.0, transform)
  if key.startswith("cl_varimax"):
    if not methods.of(cl.config).captions:
      return None
    name = transform if key.endswith("_transform") else "identity"
    return last_layer(cl, _varimax(cl), 0.0, name)
  base, _, kind = key.partition("_")
  if base == "pixels" and cl.source.texts:
    return None
  pixels = baseline_features.Pixels(cl.config, cl.source, cl.mesh)
  return baseline_features.fitted(pixels if base == "pixels" else cl, kind)


def last_layer(
  run: Run, matrix: np.ndarray, shift: np.ndarray | float, transform: str
) -> Run:
  """A network whose output is `transform(z matrix + shift)`, in each tower it has.

  Args:
    run: the network that gives z; not changed.
    matrix: [D, M].
    shift: [M], or a number for all.

  Raises:
    InputError: if the network has no projector.
  """
  if not run.config.model.projector:
    raise InputError(
      "the network has no projector (model.projector is False), whose last layer this "
      "control changes: allowed are runs with one"
    )
  params = dict(run.variables["params"])
  name = f"linear{run.config.model.projector_layers}"
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
  return dataclasses.replace(
    run,
    config=baseline_features.widened(run.config, matrix.shape[1], transform),
    variables={"params": params, "batch_stats": run.variables["batch_stats"]},
  )


def calibrate(run: Run) -> Run:
  """BatchNorm's running statistics from training images, without any training.

  Returns:
    The network after `CALIBRATION_BATCHES` forward passes in training mode, enough that
    nothing is left of the statistics before.
  """
  config, source, mesh, variables = run.config, run.source, run.mesh, run.variables
  model = config_lib.model(config)
  view = config_lib.augmentation(config)
  params = features.without_probe(variables)["params"]

  @functools.partial(jax.jit, out_shardings=sharding_lib.replicated(mesh))
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
    if methods.of(config).captions:
      captions = source.split("train").captions
      assert captions is not None  # as `config.resolve` has seen
      tokens = byte_tokenizer.encode(captions[batch["id"]], config.text.length)
      texts = {"tokens": sharding_lib.to_global(mesh, tokens)}
    # Waited for: many programs at once on simulated devices can lock each other.
    batch_stats = jax.block_until_ready(forward(params, batch_stats, images, texts))
  batches.close()
  calibrated = {"params": variables["params"], "batch_stats": batch_stats}
  return dataclasses.replace(run, variables=calibrated)


def _varimax(cl: Run) -> np.ndarray:
  """The rotation of CL's z to sparse axes, [D, D], long tails upwards."""
  z = baseline_features.some_rows(cl.extract("train").z, cl.config.seed)
  rotation = rotations.varimax(np.asarray(features.embed(z, "identity")))
  return rotations.orient(z @ rotation, rotation)
