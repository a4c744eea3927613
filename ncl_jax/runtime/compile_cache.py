"""JAX's persistent compilation cache.

JAX recovers from an entry truncated by a kill: it logs a warning and compiles again at
each start until the file is deleted.
"""

import pathlib

import jax

from ncl_jax.host import paths

DEFAULT = "~/.cache/ncl_jax/compiled"


def set_up() -> None:
  """Sets the cache's folder unless the user did; call before compiling anything.

  JAX_COMPILATION_CACHE_DIR sets another folder, which may be in a bucket; an empty
  value turns the cache off.

  Raises:
    InputError: as `paths.absolute`.
  """
  chosen = jax.config.values["jax_compilation_cache_dir"]
  if chosen is None:
    folder = str(pathlib.Path(DEFAULT).expanduser())
    jax.config.update("jax_compilation_cache_dir", folder)
  elif paths.in_bucket(chosen):
    paths.absolute(chosen)  # sets up access to buckets
  # By default JAX caches only programs that took a second to compile. The dozens of
  # small programs at start-up cost as much together.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
