"""Checks this machine before a long run.

  ncl check --workdir=runs

Takes one to two minutes on two CPU cores. A line for each check: PASS, FAIL, or NOTE
for what is good to know; exit code 1 if one failed. With --workdir the checkpoint is
tried in that directory, and nothing is left there.
"""

import sys

from absl import flags

from ncl_jax import cli

_WORKDIR = flags.DEFINE(
  cli.PATH,
  "workdir",
  None,
  "directory that must take a checkpoint; default: a temporary one",
)


def main() -> None:
  """Checks."""
  from ncl_jax.preflight import self_check

  if not self_check.run(_WORKDIR.value):
    sys.exit(1)


if __name__ == "__main__":
  cli.run(main)
