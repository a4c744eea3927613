"""Does this machine compute, store and run what a training run needs?"""

import os
import textwrap
from collections.abc import Callable

import jax

from ncl_jax.preflight.self_check import arithmetic, machine, storage, training
from ncl_jax.preflight.self_check.result import Result
from ncl_jax.runtime import sharding as sharding_lib

__all__ = ["Result", "run"]


def run(
  workdir: str | os.PathLike | None = None, show: Callable[[str], None] = print
) -> bool:
  """Runs every check; whether none failed in this process.

  Args:
    workdir: where a checkpoint is tried; None for a temporary folder.
    show: takes a line for each, and the verdict. Process 0 shows all, any other only
      what failed there.
  """
  # As training does; it must come before jax starts.
  sharding_lib.set_cpu_devices(training.CPU_BATCH)
  checks: list[tuple[str, Callable[[], Result]]] = [
    ("versions", machine.versions),
    ("devices", machine.devices),
    ("matmul", arithmetic.matmul),
    ("precision", arithmetic.default_precision),
    ("loss", arithmetic.loss),
    ("step", training.step),
    ("checkpoint", lambda: storage.save_and_restore(workdir)),
    ("speed", training.speed),
  ]
  results = []
  for name, check in checks:
    try:
      result = check()
    except Exception as error:  # noqa: BLE001
      message = textwrap.shorten(str(error), 400)
      result = Result(name, False, f"{type(error).__name__}: {message}")
    results.append(result)
    if jax.process_index() == 0:
      show(str(result))
    elif result.ok is False:
      show(f"{result} (process {jax.process_index()})")
  failed = [result.name for result in results if result.ok is False]
  if jax.process_index() == 0:
    show(f"FAIL: {', '.join(failed)}" if failed else "PASS: all checks")
  return not failed
