"""Orbax checkpoints of a work directory: save, resume, load the model alone.

A checkpoint has two items: `model` (params, batch_stats), which is all that evaluation
reads, and `train` (step, opt_state, epoch, and the slow copy of methods that have one);
see `TrainState.items`.

Orbax is imported where a checkpoint is first written or read: it takes a fifth of a
second, and the first step of a new run need not wait for it.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Sharding

from ncl_jax.checks import divergence
from ncl_jax.errors import InputError, SaveError, naming
from ncl_jax.host import paths

FOLDER = "checkpoints"
LOCK = ".checkpoints.lock"

# What flock raises on file systems that have none, such as Lustre without its option.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def lock(file: pathlib.Path, use: str) -> Iterator[None]:
  """Keeps other processes out of a directory.

  The lock is the kernel's: it ends with its process, however that ends. Where the file
  system has no locks, a warning says so and the caller goes on.

  Args:
    file: made if need be; holds a line about the holder, for people.
    use: what the directory is used for, for the message.

  Raises:
    InputError: if a living process holds it, naming that.
  """
  with file.open("a+", encoding="utf-8") as opened:
    # Not around the yield: an error of what is done under the lock has another file.
    with naming(file):
      try:
        import fcntl  # not on Windows

        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        opened.seek(0)
        raise InputError(
          f"{file.parent} is in use: {opened.read().strip() or 'another process'} is "
          f"{use} there. Wait for it, stop it, or choose another --workdir"
        ) from None
      except (OSError, ImportError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
          raise
        logging.warning(
          "%s cannot be locked: its file system has no locks (%s). Start no other "
          "program that writes to %s",
          *(file, error, file.parent),
        )
      opened.truncate(0)
      opened.write(f"process {os.getpid()} on {socket.gethostname()}\n")
      opened.flush()
    yield


class Checkpoints:
  """The checkpoints of one run; an open resource, to be used in a `with` block.

  What a copy left half-copied is put aside, and what a kill left half-written removed
  at the first save or restore, so one process at a time may hold them.

  Args:
    workdir: of the run; the checkpoints lie in its folder `checkpoints`.
    keep: how many of the newest to keep.

  Raises:
    InputError: if another process holds them.
  """

  def __init__(self, workdir: str | pathlib.Path, keep: int = 2):
    self._folder, self._keep = _folder(workdir), keep
    self._saving: int | None = None
    self._held = contextlib.ExitStack()
    if jax.process_index() == 0:
      self._folder.mkdir(parents=True, exist_ok=True)
      place = self._folder.with_name(LOCK)
      self._held.enter_context(lock(place, "writing checkpoints"))
      _put_aside_incomplete(self._folder)

  @functools.cached_property
  def _manager(self) -> Any:
    import orbax.checkpoint as ocp

    return _manager(
      self._folder,
      max_to_keep=self._keep,
      create=True,
      cleanup_tmp_directories=True,
      # Where it may not write, Orbax then says so at once and not after six minutes.
      async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *unused: object) -> None:
    with self._held:
      self.wait()
      if "_manager" in vars(self):
        self._manager.close()

  def latest_step(self) -> int | None:
    """The newest complete checkpoint's step, or None."""
    return max(_steps(self._folder), default=None)

  def save(self, step: int, *, model: Any, train: Any) -> None:
    """Starts saving; returns when the arrays are copied, before they are on disk.

    Args:
      step: steps done.
      model: tree for evaluation, {"params", "batch_stats"}.
      train: tree that only training needs.

    Raises:
      FloatingPointError: if a tensor holds NaN or infinity, naming it; nothing is
        saved, earlier ones are kept.
      SaveError: if it cannot, or the save before could not; earlier ones are kept.
    """
    import orbax.checkpoint as ocp

    # The record of an epoch begins with infinities.
    rest = {name: tree for name, tree in train.items() if name != "epoch"}
    divergence.check_tree(
      {"model": model, "train": rest},
      f"the checkpoint of step {step} is not written to {self._folder}",
    )
    self.wait()
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

  def check(self) -> None:
    """Raises SaveError if the save in the background has failed; never waits."""
    if self._saving is not None:
      with self._failures():
        self._manager.check_for_errors()
      if not self._manager.is_saving_in_progress():
        self.wait()

  def wait(self) -> None:
    """Returns once the last save is on disk.

    Raises:
      SaveError: if it could not be written; earlier ones are kept.
    """
    if self._saving is not None:
      with self._failures():
        self._manager.wait_until_finished()
      self._saving = None

  @contextlib.contextmanager
  def _failures(self) -> Iterator[None]:
    """Tells of whatever goes wrong while saving: the step, the place, the cause."""
    try:
      yield
    except Exception as error:
      step, self._saving = self._saving, None
      raise SaveError(
        f"the checkpoint of step {step} could not be written to {self._folder}: "
        f"{error}. The earlier ones are kept: mend the cause (space left? may you "
        "write there?) and run the same command again to go on"
      ) from error

  def restore(self, step: int, *, model: Any, train: Any) -> tuple[Any, Any]:
    """Loads a checkpoint into the places of a tree.

    Args:
      step: of the checkpoint.
      model: tree of arrays or `jax.ShapeDtypeStruct` with shardings.
      train: likewise.

    Returns:
      (model, train), of the same structure, types and shardings.

    Raises:
      InputError: if a tensor is missing or has another shape or dtype, naming it, or
        the files are damaged.
    """
    restored = _read(self._manager, step, self._folder, model=model, train=train)
    return restored["model"], restored["train"]


def load_model(
  workdir: str | pathlib.Path,
  model: Any,
  sharding: Sharding,
  step: int | None = None,
) -> tuple[Any, int]:
  """Loads what evaluation needs, on whatever devices there are now.

  Args:
    workdir: of the run.
    model: tree of arrays or `jax.ShapeDtypeStruct`: the expected structure, shapes and
      dtypes; None takes what is there.
    sharding: where the arrays go.
    step: which checkpoint; None for the newest.

  Returns:
    (model tree, its step).

  Raises:
    FileNotFoundError: if there is no such checkpoint, naming the directory.
    InputError: if a tensor is missing or has another shape or dtype, naming it, or
      the files are damaged.
  """
  folder = _folder(workdir)
  if not folder.is_dir():
    raise FileNotFoundError(f"no checkpoints in {folder}: train there first")
  with _manager(folder) as manager:
    steps = sorted(s for s in manager.all_steps() if _is_complete(folder / str(s)))
    chosen = max(steps, default=None) if step is None else step
    if chosen is None or chosen not in steps:
      raise FileNotFoundError(
        f"no checkpoint of step {chosen} in {folder}: there are "
        f"{', '.join(map(str, steps)) or 'none'}"
      )
    if model is None:
      model = manager.item_metadata(chosen).model.tree
    target = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), model
    )
    return _read(manager, chosen, folder, model=target)["model"], chosen


def steps(workdir: str | pathlib.Path) -> list[int]:
  """The steps of the complete checkpoints of a run, ascending; read from the disk."""
  return _steps(_folder(workdir))


def _steps(folder: pathlib.Path) -> list[int]:
  try:
    entries = [entry for entry in folder.iterdir() if entry.name.isdigit()]
  except FileNotFoundError:
    return []
  return sorted(int(entry.name) for entry in entries if _is_complete(entry))


def digest(tree: Any) -> str:
  """SHA-256 over the names, types, shapes and bytes of a tree's arrays.

  Args:
    tree: of arrays that this process can read whole.

  Returns:
    64 hexadecimal digits; equal for equal trees alone.
  """
  state = hashlib.sha256()
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  for path, leaf in leaves:
    array = np.asarray(leaf)
    name = "/".join(_name(key) for key in path)
    state.update(f"{name} {array.dtype}{list(array.shape)}\n".encode())
    state.update(np.ascontiguousarray(array).tobytes())
  return state.hexdigest()


def _copied(tree: Any) -> Any:
  """The arrays in host memory where this process has them all.

  Orbax shares the writing of an array among the devices that have it, for which it
  compiles a program a tensor: half a second of work became four.
  """
  if jax.process_count() > 1:
    return tree
  return jax.tree.map(np.array, jax.device_get(tree))


def _folder(workdir: str | pathlib.Path) -> pathlib.Path:
  """Orbax fails late, in a background thread, if the path is not absolute."""
  return paths.local(workdir).resolve() / FOLDER


def _manager(folder: pathlib.Path, **options: Any) -> Any:
  import orbax.checkpoint as ocp

  class Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
      # JAX's service agrees on a number after the highest that any process asked with.
      # `distributed.StopRequests` counts its questions; a training step among them
      # would be a number that no process reaches, and the request would be lost.
      return False

  return Manager(
    folder,
    options=ocp.CheckpointManagerOptions(**options),
    # Named here, so that an item's shapes can be read before anything is restored.
    item_handlers={
      "model": ocp.StandardCheckpointHandler(),
      "train": ocp.StandardCheckpointHandler(),
    },
  )


def _is_complete(checkpoint: pathlib.Path) -> bool:
  """Orbax renames a folder when all is in it; a copy that was cut off did not."""
  return all((checkpoint / name).exists() for name in ("_CHECKPOINT_METADATA", "model"))


def _put_aside_incomplete(folder: pathlib.Path) -> None:
  """Orbax would take such a folder for the newest and save none before it."""
  for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
    if entry.name.isdigit() and not _is_complete(entry):
      aside = _free(entry.with_name(f"incomplete-{entry.name}"))
      logging.warning("the checkpoint %s is not complete: now %s", entry, aside.name)
      entry.rename(aside)


def _free(path: pathlib.Path) -> pathlib.Path:
  """The path, or with the first number after it that nothing has yet."""
  numbered = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
  return next(p for p in itertools.chain([path], numbered) if not p.exists())


def _read(manager: Any, step: int, folder: pathlib.Path, **items: Any) -> Any:
  """The items of a checkpoint, in the places that the given trees say."""
  import orbax.checkpoint as ocp

  args = {name: ocp.args.StandardRestore(tree) for name, tree in items.items()}
  try:
    _check_tensors(manager, step, folder, **items)
    return manager.restore(step, args=ocp.args.Composite(**args))
  except InputError:
    raise
  except Exception as error:
    raise InputError(
      f"the checkpoint of step {step} in {folder} is damaged; remove "
      f"{folder / str(step)} to use the one before. ({str(error)[:300]})"
    ) from error


def _check_tensors(manager: Any, step: int, folder: pathlib.Path, **items: Any) -> None:
  """Orbax's own errors name no tensor, and another dtype is cast in silence."""
  stored_items = manager.item_metadata(step)
  for item, expected_tree in items.items():
    stored_tree = getattr(stored_items, item, None)
    if stored_tree is None:
      raise InputError(f"the checkpoint of step {step} in {folder} has no item {item}")
    check_fit(
      stored_tree.tree, expected_tree, f"the checkpoint of step {step} in {folder}"
    )


def check_fit(stored: Any, expected: Any, what: str) -> None:
  """Compares two trees by their tensors' names, shapes and dtypes.

  Args:
    stored: tree of arrays or of what has their shapes.
    expected: likewise.
    what: the first one, in the message.

  Raises:
    InputError: if they differ, naming the tensors.
  """
  there, here = _shapes(stored), _shapes(expected)
  faults = [
    f"{name}: {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
    for name in sorted(there.keys() | here.keys())
    if there.get(name) != here.get(name)
  ]
  if faults:
    shown = "; ".join(faults[:5]) + ("; ..." if len(faults) > 5 else "")
    raise InputError(
      f"{what} does not fit: {len(faults)} of {len(here)} tensors differ: {shown}"
    )


def _shapes(tree: Any) -> dict[str, str]:
  """Tensor names to "float32[3, 4]", alike for arrays and Orbax's metadata."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    "/".join(_name(key) for key in path): f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
    for path, leaf in leaves
  }


def _name(key: Any) -> str:
  """A key's bare name: Orbax stores named tuples and dicts alike."""
  for attribute in ("key", "name", "idx"):
    if hasattr(key, attribute):
      return str(getattr(key, attribute))
  return str(key)
