"""Programs in processes of their own, forked from one that has imported JAX and all.

Starting Python and importing takes most of the time of a program that ends at once.
"""

import functools
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
# Not the launch modules: each defines its flags while it runs.
IMPORTS = ["jax", "flax", "optax", "ncl_jax.cli", "ncl_jax.train", "ncl_jax.report"]


def run(program, *flags):
  """As `subprocess.run` on `python -m launch.PROGRAM FLAGS`, on one device."""
  with tempfile.TemporaryDirectory() as folder:
    out, err = (pathlib.Path(folder) / name for name in ("out", "err"))
    process = _context().Process(target=_main, args=(program, flags, out, err))
    process.start()
    process.join(300)
    if process.exitcode is None:
      process.kill()
      raise TimeoutError(f"launch.{program} {flags}")
    return subprocess.CompletedProcess(
      flags, process.exitcode, out.read_text(), err.read_text()
    )


@functools.cache
def _context():
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(IMPORTS)
  before = os.environ.get("JAX_NUM_CPU_DEVICES")
  os.environ["JAX_NUM_CPU_DEVICES"] = "1"  # JAX reads it when it is imported
  try:
    multiprocessing.forkserver.ensure_running()
  finally:
    del os.environ["JAX_NUM_CPU_DEVICES"]
    if before is not None:
      os.environ["JAX_NUM_CPU_DEVICES"] = before
  return context


def _main(program, flags, out, err):
  for stream, path in ((sys.stdout, out), (sys.stderr, err)):
    with path.open("w") as file:
      os.dup2(file.fileno(), stream.fileno())
  os.chdir(ROOT)
  sys.path.insert(0, str(ROOT))
  sys.argv = [f"{ROOT}/launch/{program}.py", *map(str, flags)]
  runpy.run_module(f"launch.{program}", run_name="__main__", alter_sys=True)
