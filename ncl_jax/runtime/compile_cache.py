"""JAX's persistent compilation cache.

JAX recovers from an entry truncated by a kill: it logs a warning and compiles again at
each start until the file is deleted.
"""

import pathlib

import jax

DEFAULT = "~/.cache/ncl_jax/compiled"


def set_up() -> None:
  """Sets the cache's folder unless the user did; call before compiling anything.

  JAX_COMPILATION_CACHE_DIR sets another folder; an empty value turns the cache off.
  """
  if jax.config.values["jax_compilation_cache_dir"] is None:
    folder = str(pathlib.Path(DEFAULT).expanduser())
    jax.config.update("jax_compilation_cache_dir", folder)
  # By default JAX caches only programs that took a second to compile. The dozens of
  # small programs at start-up cost as much together.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
