"""Controls: what no training, a rotation or pixels give under the same evaluation.

Each is a `FeatureSource`, so that an evaluator takes it as it takes a run. What is
linear in z becomes a last layer of the network; the others are
`baseline_features.Codes`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import checks, features, methods
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators.run import FeatureSource, Run
from ncl_jax.experiments import baseline_features, rivals


@dataclasses.dataclass(frozen=True)
class Control:
  """One control.

  Attributes:
    label: what a reader sees.
    note: one sentence: what it is.
    make: from CL's and NCL's runs of one seed; None where the control does not exist:
      pixels need images, NMF values of at least 0, and only two towers are rotated
      whole.
    both_towers: whether two towers can have it; the others change or replace the first
      tower alone.
  """

  label: str
  note: str
  make: Callable[[Run, Run], FeatureSource | None]
  both_towers: bool = False


def _table() -> dict[str, Control]:
  found = {
    "untrained": Control(
      "untrained + transform",
      "the network before training, with NCL's transform on it",
      lambda cl, ncl: ncl.untrained(),
      both_towers=True,
    ),
    "cl_transform": Control(
      "CL + transform",
      "CL with NCL's transform put on it after training",
      lambda cl, ncl: last_layer(
        cl, np.eye(config_lib.widths(cl.config)["z"]), ncl.config.loss.transform
      ),
      both_towers=True,
    ),
    "cl_varimax": Control(
      "CL + varimax",
      "CL rotated to the sparsest axes, which leaves distances as they are",
      lambda cl, ncl: _varimax(cl, "identity"),
      both_towers=True,
    ),
    "cl_varimax_transform": Control(
      "CL + varimax + transform",
      "the rotated CL with NCL's transform after it, axes pointing where their tail is "
      "long",
      lambda cl, ncl: _varimax(cl, ncl.config.loss.transform),
      both_towers=True,
    ),
  }
  for key, (label, note, fit) in rivals.RIVALS.items():
    found[key] = Control(
      f"CL: {label}",
      f"of CL's f: {note}",
      functools.partial(rivals.rival, fit),
    )
  for base, whose in (("pixels", "the pixels"), ("h", "CL's h")):
    for kind, (label, note) in baseline_features.KINDS.items():
      found[f"{base}_{kind}"] = Control(
        f"{base}: {label}",
        f"f is {note} of {whose}",
        functools.partial(_codes, base, kind),
      )
  return found


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


def last_layer(run: Run, matrix: np.ndarray, transform: str) -> Run:
  """A network whose output is `transform(z matrix)`, in each tower it has.

  Args:
    run: the network that gives z; not changed.
    matrix: [D, M].

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
        "bias": jnp.asarray(last["bias"] @ matrix, jnp.float32),
      }
    }
  return dataclasses.replace(
    run,
    config=baseline_features.widened(run.config, matrix.shape[1], transform),
    variables={"params": params, "batch_stats": run.variables["batch_stats"]},
  )


def _varimax(cl: Run, transform: str) -> Run | None:
  """CL's z rotated to sparse axes, long tails upwards."""
  if not methods.of(cl.config).captions:
    return None
  z = baseline_features.some_rows(cl.extract("train").z, cl.config.seed)
  rotation = rivals.sparse_axes(np.asarray(features.embed(z, "identity")))
  return last_layer(cl, rotation, transform)


def _codes(base: str, kind: str, cl: Run, _: Run) -> FeatureSource | None:
  if base == "h":
    return baseline_features.fitted(cl, kind)
  if cl.source.texts:
    return None
  pixels = baseline_features.Pixels(cl.config, cl.source, cl.mesh)
  return baseline_features.fitted(pixels, kind)


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
# Controls that are trained: CL made sparse by a penalty, CL with as few dimensions.
TRAINED = {"cl_l1": "CL + L1 penalty", "cl_narrow": "CL, NCL's active width"}
LABELS = {"cl": "CL", "ncl": "NCL", **TRAINED}
LABELS |= {key: control.label for key, control in CONTROLS.items()}
