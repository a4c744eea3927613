"""Checks this machine before a long run.

  ncl check --workdir=runs

This takes one to two minutes on two CPU cores. It prints a line for each check: PASS,
FAIL, or NOTE for information. The exit code is 1 if a check fails. With --workdir it
also writes a checkpoint to that directory and removes it again.
"""

import sys

from absl import flags

from ncl_jax import cli

_WORKDIR = flags.DEFINE(
  cli.PATH,
  "workdir",
  None,
  "directory to test a checkpoint in; default: a temporary one",
)


def main() -> None:
  """Checks."""
  from ncl_jax.preflight import self_check

  if not self_check.run(_WORKDIR.value):
    sys.exit(1)


if __name__ == "__main__":
  cli.run(main)
