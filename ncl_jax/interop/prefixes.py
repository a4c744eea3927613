"""Normalises the tensor names that wrappers and older versions use."""

from collections.abc import Iterable

from absl import logging

from ncl_jax.errors import InputError

_TEACHER = "momentum_"
_WRAPPER = "module"
_OLD = {"encoder": "backbone"}


def standard(names: Iterable[str]) -> dict[str, str]:
  """Maps tensor names to those that `from_torch` expects.

  `module` (torch's wrapper for several devices) is removed everywhere, and `encoder.`,
  solo-learn's older name, becomes `backbone.`. The teacher of a momentum method,
  `momentum_*`, is dropped with a line in the log.

  Raises:
    InputError: if two tensors get the same name.

  >>> standard(["module.encoder.conv1.weight", "projector.0.bias"])
  {'module.encoder.conv1.weight': 'backbone.conv1.weight', \
'projector.0.bias': 'projector.0.bias'}
  """
  found: dict[str, str] = {}
  owners: dict[str, str] = {}
  teacher = []
  for name in names:
    first, *rest = [part for part in name.split(".") if part != _WRAPPER] or [name]
    if first.startswith(_TEACHER):
      teacher.append(name)
      continue
    found[name] = ".".join([_OLD.get(first, first), *rest])
    other = owners.setdefault(found[name], name)
    if other != name:
      raise InputError(f"{other} and {name} are two tensors for {found[name]}")
  if teacher:
    parts = sorted({name.split(_TEACHER)[1].split(".")[0] for name in teacher})
    logging.info(
      "left out: %d tensors of the teacher, %s",
      len(teacher),
      ", ".join(f"{_TEACHER}{part}" for part in parts),
    )
  return found
