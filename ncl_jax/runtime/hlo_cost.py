"""Memory traffic and arithmetic of a compiled program, from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterator

from ncl_jax.runtime import hlo

# Instructions that move nothing by themselves.
_FREE = (
  "parameter",
  "constant",
  "tuple",
  "get-tuple-element",
  "bitcast",
  "after-all",
  "partition-id",
  "replica-id",
  "opt-barrier",
  "add-dependency",
)
_FREE_CALLS = re.compile(r'custom_call_target="(AllocateBuffer|ConcatBitcast)"')
_SLICES = ("slice", "dynamic-slice", "gather")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|branch_computations)=\{?%?([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Operation:
  """What one instruction, or one fusion of them, does on a device.

  Attributes:
    bytes: read from and written to main memory.
    flops: of matrix products and convolutions; positions outside the image or between
      dilated pixels do not count.
    times: how often it runs in a call of the program.
  """

  bytes: int
  flops: int
  times: int = 1


@dataclasses.dataclass(frozen=True)
class _Array:
  dims: tuple[int, ...]
  size: int  # bytes
  in_main: bool  # memory; otherwise in one on the chip

  @property
  def bytes(self) -> int:
    """In main memory."""
    return self.size if self.in_main else 0


@dataclasses.dataclass(frozen=True)
class _Instruction:
  name: str
  opcode: str
  results: tuple[_Array, ...]
  operands: tuple[str, ...]
  attributes: str

  @property
  def bytes(self) -> int:
    """Of the results, in main memory."""
    return sum(array.bytes for array in self.results)

  @property
  def size(self) -> int:
    """Of the results, in any memory."""
    return sum(array.size for array in self.results)


_Computations = dict[str, dict[str, _Instruction]]


def operations(text: str) -> Iterator[Operation]:
  """The operations in optimised HLO, without those that neither move nor compute.

  A fusion reads its operands and writes its results; what is between stays on the chip.
  An operand of which only slices are used counts as the slices. A loop's body counts as
  often as it runs, where the compiler knows that.

  >>> given = ["  %a = f32[2,3] parameter(0)", "  %b = f32[3,5] parameter(1)"]
  >>> product = "  %d = f32[2,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}"
  >>> list(operations("\\n".join(["ENTRY %m {", *given, product, "}"])))
  [Operation(bytes=124, flops=60, times=1)]
  """
  computations, entry = _parsed(text)
  yield from _of_computation(computations, entry, 1)


def _of_computation(
  computations: _Computations, name: str, times: int
) -> Iterator[Operation]:
  known = computations[name]
  for instruction in known.values():
    opcode, called = instruction.opcode, _CALLED.search(instruction.attributes)
    if opcode in _FREE or opcode.endswith("-done"):
      continue
    if _FREE_CALLS.search(instruction.attributes):
      continue
    if opcode in ("while", "call", "conditional", "async-start") and called:
      more = times * _trips(instruction, computations)
      yield from _of_computation(computations, called[1], more)
      continue
    inner = computations.get(called[1], {}) if called else {}
    moved = _moved(instruction, known, inner if opcode == "fusion" else {})
    flops = _flops(instruction, known, computations)
    if moved or flops:
      yield Operation(moved, flops, times)


def _trips(instruction: _Instruction, computations: _Computations) -> int:
  """How often a loop runs; 1 where that is not a number in the program."""
  if trips := _TRIPS.search(instruction.attributes):
    return int(trips[1])
  # A TPU's compiler says it only in the condition: a counter from 0 is less than it.
  condition = _CONDITION.search(instruction.attributes)
  inside = computations.get(condition[1], {}) if condition else {}
  root = list(inside.values())[-1] if inside else None
  if not root or root.opcode != "compare" or "direction=LT" not in root.attributes:
    return 1
  limit = inside[root.operands[-1]]
  return int(limit.attributes[:-1]) if limit.opcode == "constant" else 1


def _moved(
  instruction: _Instruction,
  known: dict[str, _Instruction],
  inner: dict[str, _Instruction],
) -> int:
  """Bytes that an instruction reads and writes."""
  sources = [known[name] for name in instruction.operands if name in known]
  read = sum(source.bytes for source in {s.name: s for s in sources}.values())
  if instruction.opcode == "copy-start":
    return read + instruction.results[0].bytes
  if instruction.opcode.endswith("-start") and len(instruction.results) > 1:
    # The results repeat the operands.
    return read + max(0, instruction.bytes - read)
  if instruction.opcode in _SLICES:
    return instruction.size * sources[0].results[0].in_main + instruction.bytes
  if instruction.opcode == "dynamic-update-slice":
    update = known[instruction.operands[1]]
    return update.bytes + update.size * instruction.results[0].in_main
  if not inner:
    return read + instruction.bytes
  last = _behind_bitcasts(list(inner)[-1], inner)
  in_place, written = "", instruction.bytes
  if last.opcode == "dynamic-update-slice":
    in_place = _behind_bitcasts(last.operands[0], inner).name
    written = min(written, inner[last.operands[1]].size)
  total: dict[str, int] = {}
  for parameter in (i for i in inner.values() if i.opcode == "parameter"):
    place = int(parameter.attributes.split(")")[0])
    if place >= len(sources):
      continue
    source = sources[place]
    users = [i for i in inner.values() if parameter.name in i.operands]
    size = source.bytes
    if parameter.name == in_place:
      size = 0
    elif users and all(user.opcode in _SLICES for user in users):
      size = min(size, sum(user.size for user in users))
    total[source.name] = max(size, total.get(source.name, 0))
  return sum(total.values()) + written


def _behind_bitcasts(name: str, inner: dict[str, _Instruction]) -> _Instruction:
  while inner[name].opcode == "bitcast":
    name = inner[name].operands[0]
  return inner[name]


def _flops(
  instruction: _Instruction, known: dict[str, _Instruction], computations: _Computations
) -> int:
  if instruction.opcode == "dot":
    left = known[instruction.operands[0]].results[0].dims
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    sides = [left[int(i)] for i in contracted[1].split(",") if i] if contracted else []
    return 2 * math.prod(instruction.results[0].dims) * math.prod(sides)
  if instruction.opcode == "convolution":
    left, right = (known[name].results[0].dims for name in instruction.operands[:2])
    return _convolution(instruction, left, right)
  called = _CALLED.search(instruction.attributes)
  if instruction.opcode != "fusion":
    return 0
  inside = computations.get(called[1], {}) if called else {}
  return sum(_flops(inner, inside, computations) for inner in inside.values())


def _convolution(
  instruction: _Instruction, left: tuple[int, ...], right: tuple[int, ...]
) -> int:
  """Twice the multiplications that no padding takes part in, as XLA counts them."""
  labels, window = (p.search(instruction.attributes) for p in (_LABELS, _WINDOW))
  assert labels, instruction
  of_left, of_right, of_result = labels.groups()
  result = instruction.results[0].dims
  given = dict(part.split("=") for part in window[1].split()) if window else {}
  spatial = sorted(label for label in of_left if label.isdigit())

  def along(key: str, usual: str) -> list[str]:
    return given[key].split("x") if key in given else [usual] * len(spatial)

  positions = 1
  for i, label in enumerate(spatial):
    positions *= _positions(
      left[of_left.index(label)],
      right[of_right.index(label)],
      result[of_result.index(label)],
      stride=int(along("stride", "1")[i]),
      low=int(along("pad", "0_0")[i].split("_")[0]),
      dilation=(int(along("lhs_dilate", "1")[i]), int(along("rhs_dilate", "1")[i])),
    )
  counts = {"feature_group_count": 1, "batch_group_count": 1}
  for key in counts:
    found = re.search(rf"{key}=(\d+)", instruction.attributes)
    counts[key] = int(found[1]) if found else 1
  features = left[of_left.index("f")] // counts["feature_group_count"]
  rows = left[of_left.index("b")] // counts["batch_group_count"]
  return 2 * positions * features * rows * result[of_result.index("f")]


def _positions(
  size: int, window: int, out: int, *, stride: int, low: int, dilation: tuple[int, int]
) -> int:
  """Pairs of an output and a window position, along an axis, that meet a pixel."""
  of_left, of_right = dilation
  places = (o * stride + k * of_right - low for o in range(out) for k in range(window))
  return sum(p % of_left == 0 and 0 <= p // of_left < size for p in places)


def _parsed(text: str) -> tuple[_Computations, str]:
  """The instructions of each computation by name, and the entry's name."""
  computations: _Computations = {}
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


def _instruction(line: str) -> _Instruction:
  name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
  end = _closed(rest) if rest.startswith("(") else rest.index(" ")
  kind, rest = rest[:end], rest[end:].strip()
  opcode, _, rest = rest.partition("(")
  end = _closed("(" + rest) - 2
  inside, attributes = rest[:end], rest[end + 1 :]
  return _Instruction(
    name.removeprefix("%"),
    opcode,
    tuple(_array(*found) for found in _ARRAY.findall(kind)),
    tuple(re.findall(r"%([\w.\-]+)", inside)),
    f"{inside})" if opcode in ("parameter", "constant") else attributes,
  )


def _closed(text: str) -> int:
  """Where the bracket that a text begins with is closed: one place behind it."""
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
  return _Array(sides, hlo.array_bytes(dtype, dims), in_main)
