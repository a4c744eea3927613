"""Reads a compiled program's HLO text: its instructions and its collectives."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_NAME = re.compile(r'op_name="([^"]*)"')
_BETWEEN = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_BITS = {"pred": 8, "bf16": 16} | {
  f"{letter}{bits}": bits for letter in "suf" for bits in (4, 8, 16, 32, 64)
}


@dataclasses.dataclass(frozen=True)
class Collective:
  """One instruction: its kind, its result's bytes on a device, and its origin."""

  kind: str
  bytes: int
  origin: str


@dataclasses.dataclass(frozen=True)
class _Array:
  dims: tuple[int, ...]
  size: int  # bytes, all of them in one kind of memory; `bytes`: in main memory
  in_main: bool  # otherwise on the chip

  @property
  def bytes(self) -> int:
    return self.size if self.in_main else 0


@dataclasses.dataclass(frozen=True)
class Instruction:
  """An instruction of a program, by its text."""

  name: str
  opcode: str
  results: tuple[_Array, ...]
  operands: tuple[str, ...]
  attributes: str

  @property
  def bytes(self) -> int:
    return sum(array.bytes for array in self.results)

  @property
  def size(self) -> int:
    return sum(array.size for array in self.results)


Computations = dict[str, dict[str, Instruction]]


def collectives(text: str) -> Iterator[Collective]:
  """The collective instructions in `compiled.as_text()`, each once.

  The TPU compiler splits one into stages with the same channel; they count as one.

  >>> line = "%a = (f32[2,3]{1,0}, bf16[4]{0}) all-reduce(%x, %y), channel_id=1"
  >>> list(collectives(line))
  [Collective(kind='all-reduce', bytes=32, origin='other')]
  """
  channels = set()
  for instruction in _with_opcodes(text, KINDS):
    kind = instruction.opcode.removesuffix("-start")
    results = instruction.results
    if kind != instruction.opcode and kind == "collective-permute":
      results = results[1:2]
    elif kind != instruction.opcode and kind != "all-reduce":
      # Operands come first, followed by as many results.
      results = results[len(results) // 2 :]
    if channel := _CHANNEL.search(instruction.attributes):
      if (kind, channel[1]) in channels:
        continue
      channels.add((kind, channel[1]))
    name = _NAME.search(instruction.attributes)
    size = sum(array.size for array in results)
    yield Collective(kind, size, _part(name[1] if name else ""))


def between_slices(text: str) -> Iterator[Collective]:
  """What a device sends to other TPU slices, in the text of a compiled program.

  >>> name = '_xla_megascale_transfer_type="ALL_REDUCE"'
  >>> list(between_slices(f"%s = (f32[2,3]{{1,0}}, u32[]) send(%x), attributes={name}"))
  [Collective(kind='all-reduce', bytes=24, origin='slices')]
  """
  for instruction in _with_opcodes(text, ("send",)):
    if found := _BETWEEN.search(instruction.attributes):
      kind = found[1].lower().replace("_", "-")
      yield Collective(kind, instruction.results[0].size, "slices")


def _with_opcodes(text: str, opcodes: tuple[str, ...]) -> Iterator[Instruction]:
  """The instructions of some kinds, at once or begun, wherever they stand."""
  wanted = re.compile(rf" = .*? ({'|'.join(opcodes)})(-start)?\(")
  return (_instruction(line) for line in text.splitlines() if wanted.search(line))


def parsed(text: str) -> tuple[Computations, str]:
  """The instructions of each computation by name, and the entry's name."""
  computations: Computations = {}
  entry = here = ""
  for line in text.splitlines():
    if line.startswith(("%", "ENTRY")) and line.rstrip().endswith("{"):
      found = re.match(r"(ENTRY )?%?([\w.\-]+)", line)
      assert found
      here = found[2]
      entry = here if found[1] else entry
      computations[here] = {}
    elif line[:1] == " " and " = " in line and here:
      instruction = _instruction(line)
      computations[here][instruction.name] = instruction
  return computations, entry


def _instruction(line: str) -> Instruction:
  name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
  end = _closed(rest) if rest.startswith("(") else rest.index(" ")
  kind, rest = rest[:end], rest[end:].strip()
  opcode, _, rest = rest.partition("(")
  end = _closed("(" + rest) - 2
  inside, attributes = rest[:end], rest[end + 1 :]
  return Instruction(
    name.removeprefix("%"),
    opcode,
    tuple(_array(*found) for found in _ARRAY.findall(kind)),
    tuple(re.findall(r"%([\w.\-]+)", inside)),
    f"{inside})" if opcode in ("parameter", "constant") else attributes,
  )


def _closed(text: str) -> int:
  """One place behind the end of the bracket that a text begins with."""
  depth = 0
  for i, letter in enumerate(text):
    depth += (letter == "(") - (letter == ")")
    if not depth:
      return i + 1
  return len(text)


def _array(dtype: str, dims: str, layout: str) -> _Array:
  sides = tuple(int(side) for side in dims.split(",") if side)
  # S(1) and so on are memories on the chip.
  in_main = not re.search(r"S\([1-9]", layout)
  return _Array(sides, math.prod(sides) * _BITS.get(dtype, 8) // 8, in_main)


def _part(name: str) -> str:
  """The part of the step that an instruction's name belongs to."""
  if re.search(r"bn\d?/|BatchNorm", name):
    return "BatchNorm"
  if "shard_map" in name:
    return "loss"
  if "transpose" in name:
    return "gradients"
  return "loss" if "jvp()" in name else "other"
