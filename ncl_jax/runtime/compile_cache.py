"""JAX's compilation cache: compiled programs outlive the process.

An entry that a kill cut off costs a warning and a compilation at each start, until its
file is deleted; JAX recovers by itself.
"""

import pathlib

import jax

DEFAULT = "~/.cache/ncl_jax/compiled"


def set_up() -> None:
  """Chooses the cache's folder, unless the user did.

  To be called before anything is compiled. JAX_COMPILATION_CACHE_DIR names another
  folder; empty, it turns the cache off.
  """
  if jax.config.values["jax_compilation_cache_dir"] is None:
    folder = str(pathlib.Path(DEFAULT).expanduser())
    jax.config.update("jax_compilation_cache_dir", folder)
  # JAX keeps what took a second to compile; the small programs of a start, dozens, cost
  # as much together.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
