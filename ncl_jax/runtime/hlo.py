"""Reads the collectives of a compiled program from its HLO text."""

import dataclasses
import re
from collections.abc import Iterator

KINDS = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)

_BITS = {"pred": 8, "bf16": 16} | {
  f"{letter}{bits}": bits for letter in "suf" for bits in (4, 8, 16, 32, 64)
}
_INSTRUCTION = re.compile(
  rf"^\s*(?:ROOT )?%?\S+ = (.+?) ({'|'.join(KINDS)})(-start)?\(", re.M
)
_ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\]")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_ORIGIN = re.compile(r'op_name="([^"]*)"')
_BETWEEN = re.compile(
  r' = \((\w+)\[([\d,]*)\].* send\(.*_xla_megascale_transfer_type="(\w+)"'
)


@dataclasses.dataclass(frozen=True)
class Collective:
  """One instruction: its kind, its result's bytes on a device, and its origin."""

  kind: str
  bytes: int
  origin: str


def collectives(text: str) -> Iterator[Collective]:
  """The collective instructions in `compiled.as_text()`, each once.

  The TPU compiler splits one into stages with the same channel; they count as one.

  >>> line = "%a = (f32[2,3]{1,0}, bf16[4]{0}) all-reduce(%x, %y), channel_id=1"
  >>> list(collectives(line))
  [Collective(kind='all-reduce', bytes=32, origin='other')]
  """
  channels = set()
  for match in _INSTRUCTION.finditer(text):
    shapes, kind, start = match.groups()
    sizes = [array_bytes(*array) for array in _ARRAY.findall(shapes)]
    if start and kind == "collective-permute":
      sizes = sizes[1:2]
    elif start and kind != "all-reduce":
      # Operands come first, followed by as many results.
      sizes = sizes[len(sizes) // 2 :]
    end = text.find("\n", match.end())
    rest = text[match.end() : end if end >= 0 else None]
    channel, name = _CHANNEL.search(rest), _ORIGIN.search(rest)
    if channel:
      if (kind, channel[1]) in channels:
        continue
      channels.add((kind, channel[1]))
    yield Collective(kind, sum(sizes), _origin(name[1] if name else ""))


def between_slices(text: str) -> Iterator[Collective]:
  """What a device sends to other TPU slices, in the text of a compiled program.

  >>> name = '_xla_megascale_transfer_type="ALL_REDUCE"'
  >>> list(between_slices(f"%s = (f32[2,3]{{1,0}}, u32[]) send(%x), attributes={name}"))
  [Collective(kind='all-reduce', bytes=24, origin='slices')]
  """
  for match in _BETWEEN.finditer(text):
    dtype, shape, kind = match.groups()
    kind = kind.lower().replace("_", "-")
    yield Collective(kind, array_bytes(dtype, shape), "slices")


def array_bytes(dtype: str, shape: str) -> int:
  """Bytes of an array, `shape` as in "2,3"."""
  count = 1
  for side in filter(None, shape.split(",")):
    count *= int(side)
  return count * _BITS.get(dtype, 8) // 8


def _origin(name: str) -> str:
  """The part of the step that an instruction's name belongs to."""
  if re.search(r"bn\d?/|BatchNorm", name):
    return "BatchNorm"
  if "shard_map" in name:
    return "loss"
  if "transpose" in name:
    return "gradients"
  return "loss" if "jvp()" in name else "other"
