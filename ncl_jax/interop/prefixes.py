"""The names that wrappers and older versions give a network's tensors, made one."""

from collections.abc import Iterable

from absl import logging

from ncl_jax.errors import InputError

_TEACHER = "momentum_"
_WRAPPER = "module"
_OLD = {"encoder": "backbone"}


def standard(names: Iterable[str]) -> dict[str, str]:
  """Tensor names as they are to those that `from_torch` knows.

  `module` (torch's wrapper for several devices) is left out wherever it stands;
  `encoder.`, solo-learn's older word, becomes `backbone.`. The teacher of a momentum
  method, `momentum_*`, is not the network that was trained: it is dropped, with a line
  in the log.

  Args:
    names: of the tensors.

  Returns:
    name -> standard name, without the teacher's.

  Raises:
    InputError: two tensors with one name.

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
