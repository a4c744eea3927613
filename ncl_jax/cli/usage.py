"""The text of a program's --help."""

import sys
import textwrap
from collections.abc import Callable

from absl import flags

from ncl_jax.errors import EXIT_CODES


def usage(main: Callable[[], None], shared: set[str]) -> str:
  """The module's docstring, its flags, and what all programs have in common.

  Args:
    shared: names of the flags that are for several machines.
  """
  module = sys.modules[main.__module__]
  by_module = flags.FLAGS.flags_by_module_dict()
  # Those that several programs have are defined in this package.
  own = [*by_module.get(__package__, []), *by_module.get(sys.argv[0], [])]
  lines = [(module.__doc__ or "").strip(), "", "Flags, written --NAME=VALUE:"]
  for flag in own:
    if flag.name not in shared:
      lines += _explained(flag)
  if any(flag.name == "config" for flag in own):
    text = (
      "a setting of the config; ncl_jax/config/fields.py lists them with their defaults"
    )
    lines += _entry("--config.SECTION.FIELD", text)
  lines += ["", "On several machines, the same command on each:"]
  for flag in own:
    if flag.name in shared:
      lines += _explained(flag)
  lines += ["", "Exit codes:"]
  for code, text in EXIT_CODES.items():
    lines += _entry(f"{code}", text)
  return "\n".join([*lines, "", "The guide is in docs/ of the repository."])


def _explained(flag: flags.Flag) -> list[str]:
  """A flag's entry: what it is, what is allowed, what it is if not given."""
  text = flag.help
  if flag.flag_type() == "bool":
    return _entry(f"--[no]{flag.name}" if flag.default else f"--{flag.name}", text)
  if isinstance(flag, flags.EnumFlag):
    text += f"; one of {', '.join(flag.parser.enum_values)}"
  if flag.default not in (None, "", []):
    default = flag.default
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    text += f" (default {shown})"
  return _entry(f"--{flag.name}", text)


def _entry(name: str, text: str) -> list[str]:
  """The name, and the text in a column beside it or, if there is no room, below."""
  lines = textwrap.wrap(" ".join(text.split()), 80 - 24)
  first = f"  {name:<20}  " if len(name) <= 20 else f"  {name}\n{'':24}"
  return [first + lines[0], *(" " * 24 + line for line in lines[1:])]
