"""Orbax checkpoints of a work directory: save, resume, load only the model.

A checkpoint has two items. Evaluation reads only `model` (params, batch_stats). `train`
holds step, opt_state, epoch and, for some methods, the momentum encoder; see
`TrainState.items`.

Orbax is imported only when a checkpoint is written or read, as importing it takes time.
"""

import contextlib
import errno
import functools
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Sharding

from ncl_jax.checks import divergence
from ncl_jax.errors import Failed, InputError, SaveError
from ncl_jax.host import bucket, paths
from ncl_jax.runtime import lock, tensors

FOLDER = "checkpoints"
LOCK = ".checkpoints.lock"


class Checkpoints:
  """The checkpoints of one run; an open resource, to be used in a `with` block.

  Checkpoints from an interrupted copy are renamed. Partial checkpoints from a killed
  run, and in a bucket from a copy, are deleted at the first save or restore.
  Therefore only one process at a time may hold this resource.

  Args:
    workdir: of the run; the checkpoints are in its folder `checkpoints`.
    keep: number of newest checkpoints to keep.

  Raises:
    InputError: if another process holds the lock.
  """

  def __init__(self, workdir: str | pathlib.Path, keep: int = 2):
    self._folder, self._keep = _folder(workdir), keep
    self._saving: int | None = None
    self._told: tuple[type[Exception], ...] = ()  # set once a save has failed
    self._check_lock: Callable[[], None] = lambda: None
    with contextlib.ExitStack() as held:
      if jax.process_index() == 0:
        paths.make(self._folder)
        place = self._folder.with_name(LOCK)
        self._check_lock = held.enter_context(lock.hold(place, "writing checkpoints"))
        _put_aside_incomplete(self._folder)
      self._held = held.pop_all()

  @functools.cached_property
  def _manager(self) -> Any:
    import orbax.checkpoint as ocp

    return _manager(
      self._folder,
      max_to_keep=self._keep,
      create=True,
      cleanup_tmp_directories=True,
      # Without write permission, Orbax then fails at once instead of after six minutes.
      async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *unused: object) -> None:
    with self._held:
      self.wait()
      if "_manager" in vars(self):
        # Orbax raises what stopped a save once more, without the step.
        with contextlib.suppress(*self._told):
          self._manager.close()

  def latest_step(self) -> int | None:
    """The newest complete checkpoint's step, or None."""
    return max(steps(self._folder.parent), default=None)

  def save(self, step: int, *, model: Any, train: Any) -> None:
    """Starts saving; returns when the arrays are copied, before they are on disk.

    Args:
      model: tree for evaluation, {"params", "batch_stats"}.
      train: tree that only training needs.

    Raises:
      FloatingPointError: if a tensor holds NaN or infinity; names it. Nothing is saved,
        and earlier checkpoints are kept.
      SaveError: if this or the previous save failed, or another process has taken the
        lock; earlier checkpoints are kept.
    """
    import orbax.checkpoint as ocp

    # The statistics of an epoch start with infinities.
    rest = {name: tree for name, tree in train.items() if name != "epoch"}
    divergence.check_tree(
      {"model": model, "train": rest},
      f"the checkpoint of step {step} is not written to {self._folder}",
    )
    self.wait()
    self._check_lock()
    self.check_space(f"the checkpoint of step {step}", model, train)
    self._saving = step
    model, train = _copied(model), _copied(train)
    with self._failures():
      started = self._manager.save(
        step,
        args=ocp.args.Composite(
          model=ocp.args.StandardSave(model), train=ocp.args.StandardSave(train)
        ),
      )
      if not started:
        raise FileExistsError(f"there is one of step {self.latest_step()} already")

  def check_space(self, what: str, *trees: Any) -> None:
    """Refuses to write what does not fit on the disk, where that can be told before.

    Args:
      what: is to be written, for the message.

    Raises:
      SaveError: if there is less free space than the arrays take.
    """
    if paths.in_bucket(self._folder):
      return
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(trees))
    free = shutil.disk_usage(self._folder).free
    if free < needed:
      raise SaveError(
        f"{what} needs {needed / 2**20:,.1f} MiB, and {self._folder} has "
        f"{free / 2**20:,.1f} MiB of free space. Earlier checkpoints are kept: free "
        "some space and run the same command again to go on"
      )

  def check(self) -> None:
    """Raises SaveError if the background save has failed; never waits."""
    if self._saving is not None:
      with self._failures():
        self._manager.check_for_errors()
      if not self._manager.is_saving_in_progress():
        self.wait()

  def wait(self) -> None:
    """Returns once the last save is on disk.

    Raises:
      SaveError: if it could not be written; earlier checkpoints are kept.
    """
    if self._saving is not None:
      with self._failures():
        self._manager.wait_until_finished()
      self._saving = None

  @contextlib.contextmanager
  def _failures(self) -> Iterator[None]:
    """Turns any error while saving into a SaveError with step, folder and cause."""
    try:
      yield
    except Exception as error:
      step, self._saving, self._told = self._saving, None, (Exception,)
      full, reason = os.strerror(errno.ENOSPC), str(error)
      if paths.in_bucket(self._folder):
        reason = bucket.failure(error) or reason
      raise SaveError(
        f"the checkpoint of step {step} could not be written to {self._folder}: "
        f"{full if full in reason else reason}. Earlier checkpoints are intact. "
        "Check free space and write permission, then run the same command to resume"
      ) from error

  def restore(self, step: int, *, model: Any, train: Any) -> tuple[Any, Any]:
    """Loads (model, train) with the structure, dtypes and shardings of two trees.

    Args:
      model: tree of arrays or `jax.ShapeDtypeStruct` with shardings.

    Raises:
      InputError: if a tensor is missing or has another shape or dtype (names it), or
        the files are damaged.
    """
    restored = _read(self._manager, step, self._folder, model=model, train=train)
    return restored["model"], restored["train"]


def load_model(
  workdir: str | pathlib.Path, model: Any, sharding: Sharding, step: int | None = None
) -> tuple[Any, int]:
  """Loads only the model, on any devices.

  Args:
    model: tree of arrays or `jax.ShapeDtypeStruct` with the expected structure, shapes
      and dtypes; None accepts any.
    step: of the checkpoint; None for the newest.

  Returns:
    (model tree, its step).

  Raises:
    FileNotFoundError: if there is no such checkpoint; names the directory.
    InputError: if a tensor is missing or has another shape or dtype (names it), or the
      files are damaged.
  """
  folder = _folder(workdir)
  if not folder.is_dir():
    raise FileNotFoundError(f"no checkpoints in {folder}: train there first")
  there = steps(workdir)
  chosen = max(there, default=None) if step is None else step
  if chosen is None or chosen not in there:
    raise FileNotFoundError(
      f"no checkpoint of step {chosen} in {folder}: there are "
      f"{', '.join(map(str, there)) or 'none'}"
    )
  with _manager(folder) as manager:
    if model is None:
      model = manager.item_metadata(chosen).model.tree
    target = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), model
    )
    return _read(manager, chosen, folder, model=target)["model"], chosen


def steps(workdir: str | pathlib.Path) -> list[int]:
  """The steps of a run's complete checkpoints in ascending order, read from disk."""
  found = [e for e in paths.entries(_folder(workdir)) if e.name.isdigit()]
  return sorted(int(entry.name) for entry in found if _is_complete(entry))


def _copied(tree: Any) -> Any:
  """The arrays in host memory if this is the only process.

  Otherwise Orbax would compile a program per tensor to split the writing among its
  devices: four seconds instead of half a second.
  """
  if jax.process_count() > 1:
    return tree
  return jax.tree.map(np.array, jax.device_get(tree))


def _folder(workdir: str | pathlib.Path) -> pathlib.Path:
  """The checkpoint folder, absolute because Orbax fails late on relative paths."""
  return paths.absolute(workdir) / FOLDER


def _manager(folder: pathlib.Path, **options: Any) -> Any:
  import orbax.checkpoint as ocp

  class Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
      # JAX's service agrees on a number above the highest that any process has sent.
      # `distributed.StopRequests` sends a count of its queries. A training step would
      # be a number that no process reaches, and the request would be lost.
      return False

  return Manager(
    folder,
    options=ocp.CheckpointManagerOptions(**options),
    # Named here so that an item's shapes can be read before it is restored.
    item_handlers={
      "model": ocp.StandardCheckpointHandler(),
      "train": ocp.StandardCheckpointHandler(),
    },
  )


def _is_complete(checkpoint: pathlib.Path) -> bool:
  """Whether a checkpoint is complete, which an interrupted copy or save is not."""
  if paths.in_bucket(checkpoint):
    import orbax.checkpoint as ocp

    return ocp.utils.is_checkpoint_finalized(checkpoint)
  return all((checkpoint / name).exists() for name in ("_CHECKPOINT_METADATA", "model"))


def _put_aside_incomplete(folder: pathlib.Path) -> None:
  """Renames incomplete checkpoints, or Orbax would refuse to save earlier steps."""
  for entry in paths.entries(folder):
    if not entry.name.isdigit() or _is_complete(entry):
      continue
    if paths.in_bucket(folder):
      # By Orbax, which saves there without renaming.
      logging.warning("the checkpoint %s is not complete: it is deleted", entry)
      continue
    renamed = entry.with_name(f"incomplete-{entry.name}-{time.time_ns()}")
    logging.warning("the checkpoint %s is not complete: now %s", entry, renamed.name)
    entry.rename(renamed)


def _read(manager: Any, step: int, folder: pathlib.Path, **items: Any) -> Any:
  """The items of a checkpoint, with the structure and shardings of the given trees."""
  import orbax.checkpoint as ocp

  what = f"the checkpoint of step {step} in {folder}"
  args = {name: ocp.args.StandardRestore(tree) for name, tree in items.items()}
  try:
    stored = manager.item_metadata(step)
    for item, expected in items.items():
      if (found := getattr(stored, item, None)) is None:
        raise InputError(f"{what} has no item {item}")
      # Orbax does not name a tensor that is wrong, and casts other dtypes silently.
      tensors.check_fit(found.tree, expected, what)
    return manager.restore(step, args=ocp.args.Composite(**args))
  except InputError:
    raise
  except Exception as error:
    if paths.in_bucket(folder) and (failure := bucket.failure(error)):
      raise Failed(f"{folder / str(step)} could not be read: {failure}") from error
    raise InputError(
      f"{what} is damaged; remove {folder / str(step)} to use the one before. "
      f"({str(error)[:300]})"
    ) from error
