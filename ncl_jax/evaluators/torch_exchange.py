"""Work directories from PyTorch files, and files for other programs from them."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import traverse_util
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import checks, interop, methods, models
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.host import paths
from ncl_jax.runtime import checkpoint
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import loss as loss_lib
from ncl_jax.training import restore
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib

NAMES = ("torch", "ours")


def import_torch(
  config: ConfigDict,
  file: str | pathlib.Path,
  workdir: str | pathlib.Path,
  *,
  classifier: bool = True,
  source: Source | None = None,
) -> pathlib.Path:
  """Makes a work directory that evaluation takes for that of a finished run.

  The checkpoint is of the config's last step, and of the network alone: training has
  nothing left to do there. Another run starts from it by `train.init_from`. A file
  without an online classifier gets one of zeros, which nothing but training reads.

  Args:
    config: settings; the network must be the file's.
    file: see `interop.read` and `interop.from_torch`.
    workdir: new, or of the same config and without a checkpoint.
    classifier: whether the file's online classifier is taken.

  Raises:
    InputError: if the file, the config and the data do not fit; nothing is written.
  """
  config_lib.validate(config)
  if not methods.of(config).released:
    raise InputError(
      f"config.method is {config.method}: files are of pretraining runs. Import it as "
      "ncl or cl, and start another method from that by train.init_from"
    )
  state = interop.read(file)
  try:
    variables = interop.from_torch(state)
  except InputError as error:
    raise InputError(f"{file}: {error}") from error
  source = source or workdir_lib.load_source(config)
  config, path, mesh = workdir_lib.prepare(config, workdir, source)
  if not classifier:
    variables["params"].pop("probe", None)
  restore.check_fit(variables, config, source, str(file))
  shapes = state_lib.shapes(config, source)
  if source.num_classes and "probe" not in variables["params"]:
    logging.info("no online classifier in the new directory: its probe is all zeros")
    variables["params"]["probe"] = jax.tree.map(
      lambda s: np.zeros(s.shape, s.dtype), shapes["params"]["probe"]
    )
  variables["params"] |= loss_lib.init(config)
  variables = jax.tree.map(lambda s, a: jnp.asarray(a, s.dtype), shapes, variables)
  variables = jax.device_put(variables, sharding_lib.replicated(mesh))
  last = source.steps_per_epoch(config.train.batch_size) * config.train.epochs
  with (
    workdir_lib.hold(path, config, source),
    checkpoint.Checkpoints(path, config.train.keep_checkpoints) as checkpoints,
  ):
    if checkpoints.latest_step() is not None:
      raise InputError(f"{path} has a checkpoint already: choose another --workdir")
    checkpoints.save(last, model=variables, train={"step": jnp.int32(last)})
  leaves = jax.tree.leaves(variables)
  logging.info(
    "%d tensors, %d numbers, of %s are now step %d in %s",
    *(len(leaves), sum(x.size for x in leaves), file, last, path),
  )
  return path


def export_variables(
  workdir: str | pathlib.Path,
  out: str | pathlib.Path,
  *,
  names: str = "torch",
  step: int | None = None,
  source: Source | None = None,
) -> None:
  """Writes a checkpoint's tensors as .safetensors.

  Args:
    names: "torch" (names, layout and counters of the released code) or "ours"
      (`params/backbone/conv1/kernel`).

  Raises:
    InputError: for other names, if the file is there already, or for torch's names
      of a network that the released code does not have.
  """
  checks.choice("names", names, NAMES)
  _check_out(out, ".safetensors")
  run = open_run(workdir, step, source)
  variables = jax.device_get(run.variables)
  if names == "torch":
    _check_released(run)
    # The released code knows no such parameters: its classifier is our probe.
    for name in ("loss", "classifier"):
      variables["params"].pop(name, None)
    arrays = interop.to_torch(variables)
  else:
    arrays = traverse_util.flatten_dict(variables, sep="/")
  metadata = {"ncl_jax": ncl_jax.__version__, "step": str(run.step)}
  _write(out, lambda f: f.write(interop.tensors_to_bytes(arrays, metadata)))


def export_features(
  workdir: str | pathlib.Path,
  out: str | pathlib.Path,
  *,
  split: str = "test",
  step: int | None = None,
  source: Source | None = None,
) -> None:
  """Writes a split's features as .npz, for `numpy.load` and nothing else.

  Arrays: `h` [N, F], `z` [N, D], `f` [N, D] float32; `labels` [N] int32, -1 where
  unknown; `ids` [N] int64, positions in the split; `class_names` [K] str; and where the
  images are files `names` [N] str, their paths below the data's folder.

  Args:
    split: "train" or "test".

  Raises:
    InputError: for another split, or if the file is there already.
  """
  _check_out(out, ".npz")
  run = open_run(workdir, step, source)
  found = run.extract(split)
  arrays: dict[str, Any] = {
    name: found.layer(name, run.config.loss.transform) for name in ("h", "z", "f")
  }
  arrays |= {"labels": found.labels, "ids": found.ids.astype(np.int64)}
  arrays["class_names"] = np.array(run.source.class_names, "U")
  if files := run.source.split(split).files:
    arrays["names"] = np.array(files.take(found.ids).names(), "U")
  _write(out, lambda f: np.savez(f, **arrays))


def _check_released(run: Run) -> None:
  """Raises unless the network is one that the released code has."""
  model = run.config.model
  for differs, what in (
    (not model.projector, "no projector"),
    (model.backbone in models.VITS, f"a {model.backbone}"),
    (
      model.projector_batch_norm or model.projector_layers != 2,
      "another projector than two linear layers",
    ),
    (methods.of(run.config).captions, "two towers"),
  ):
    if differs:
      raise InputError(
        f"{run.path} has {what}, which the released code does not have: --names=ours "
        "writes it"
      )


def _check_out(out: str | pathlib.Path, suffix: str) -> None:
  """Asked first, so that no work is lost to it."""
  path = paths.local(out)
  if path.suffix != suffix:
    raise InputError(f"{out}: the name must end in {suffix}")
  if path.exists():
    raise InputError(f"{out} exists already: remove it or choose another name")


def _write(out: str | pathlib.Path, write: Any) -> None:
  if jax.process_index() == 0:
    interop.publish(out, write)
    logging.info("written to %s", out)
