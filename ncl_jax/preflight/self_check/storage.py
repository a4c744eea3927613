"""A train state through a checkpoint and back."""

import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ncl_jax.host import paths
from ncl_jax.preflight.self_check import training
from ncl_jax.preflight.self_check.result import Result
from ncl_jax.runtime import checkpoint
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib


def save_and_restore(workdir: str | os.PathLike | None = None) -> Result:
  """A train state through a checkpoint, bit for bit; nothing is left behind."""
  if jax.process_count() > 1 and workdir is None:
    return Result(
      "checkpoint", None, "left out: name a folder of all processes by --workdir"
    )
  config, source = training.prepared(training.speed_config())
  mesh = sharding_lib.make_mesh()
  optimizer, _ = optimizer_lib.make_optimizer(config, 1)
  shapes = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  rng = np.random.default_rng(0)
  saved = jax.tree.map(lambda shape: _random(rng, shape), shapes)
  items = training.put(saved, mesh).items()
  targets = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), items
  )
  with _folder(workdir) as folder:
    start = time.perf_counter()
    with checkpoint.Checkpoints(folder) as checkpoints:
      checkpoints.save(1, **items)
    with checkpoint.Checkpoints(folder) as checkpoints:
      model, train = checkpoints.restore(1, **targets)
    seconds = time.perf_counter() - start
    free = shutil.disk_usage(folder).free / 2**30
  again = {"model": model, "train": train}
  pairs = list(zip(jax.tree.leaves(saved.items()), jax.tree.leaves(again), strict=True))
  wrong = sum(
    a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != np.asarray(b).tobytes()
    for a, b in pairs
  )
  size = sum(a.nbytes for a, _ in pairs) / 2**20
  state = f"{len(pairs)} tensors, {size:.1f} MiB, in {seconds:.1f} s"
  detail = f"{wrong} changed of {state}" if wrong else f"{state}, the same bit for bit"
  return Result("checkpoint", not wrong, f"{detail}; {free:.1f} GiB free there")


def _random(rng: np.random.Generator, shape: jax.ShapeDtypeStruct) -> np.ndarray:
  if jnp.issubdtype(shape.dtype, jnp.floating):
    return np.asarray(rng.normal(size=shape.shape), shape.dtype)
  return np.asarray(rng.integers(0, 100, shape.shape), shape.dtype)


@contextmanager
def _folder(workdir: str | os.PathLike | None) -> Iterator[pathlib.Path]:
  """A new folder for all processes, gone afterwards with what was made on the way."""
  number = multihost_utils.broadcast_one_to_all(np.int32(os.getpid()))
  parent = paths.local(workdir or tempfile.gettempdir()).resolve()
  folder = parent / f"self_check-{number}"
  missing = [path for path in (parent, *parent.parents) if not path.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  try:
    yield folder
    multihost_utils.sync_global_devices("self_check")  # all have read
  finally:
    if jax.process_index() == 0:
      shutil.rmtree(folder, ignore_errors=True)
      for path in missing:
        with suppress(OSError):
          path.rmdir()
