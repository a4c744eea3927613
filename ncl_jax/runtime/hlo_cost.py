"""Memory traffic and arithmetic of a compiled program, from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterator

from ncl_jax.runtime.hlo import Computations, Instruction, parsed

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
_CALLED = re.compile(r"\b(?:calls|to_apply|body|branch_computations)=\{?%?([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Operation:
  """What one instruction, or one fusion of them, does on a device.

  Of convolutions, positions outside the image or between dilated pixels do not count.
  """

  bytes: int  # read from and written to main memory
  flops: int  # of matrix products and convolutions
  times: int = 1  # that it runs in a call of the program


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
  computations, entry = parsed(text)
  yield from _of_computation(computations, computations[entry], 1)


def _of_computation(
  computations: Computations, known: dict[str, Instruction], times: int
) -> Iterator[Operation]:
  for instruction in known.values():
    opcode, free = instruction.opcode, _FREE_CALLS.search(instruction.attributes)
    if free or opcode in _FREE or opcode.endswith("-done"):
      continue
    inner = _inside(_CALLED, instruction, computations)
    if inner and opcode in ("while", "call", "conditional", "async-start"):
      more = times * _trips(instruction, computations)
      yield from _of_computation(computations, inner, more)
      continue
    moved = _moved(instruction, known, inner if opcode == "fusion" else {})
    flops = _flops(instruction, known, computations)
    if moved or flops:
      yield Operation(moved, flops, times)


def _inside(
  calls: re.Pattern, instruction: Instruction, computations: Computations
) -> dict[str, Instruction]:
  """The instructions of the computation that one calls."""
  called = calls.search(instruction.attributes)
  return computations.get(called[1], {}) if called else {}


def _trips(instruction: Instruction, computations: Computations) -> int:
  """How often a loop runs; 1 where that is not a number in the program."""
  if trips := _TRIPS.search(instruction.attributes):
    return int(trips[1])
  # A TPU's compiler says it only in the condition: a counter from 0 is less than it.
  inside = _inside(_CONDITION, instruction, computations)
  root = list(inside.values())[-1] if inside else None
  if not root or root.opcode != "compare" or "direction=LT" not in root.attributes:
    return 1
  limit = inside[root.operands[-1]]
  return int(limit.attributes[:-1]) if limit.opcode == "constant" else 1


def _moved(
  instruction: Instruction,
  known: dict[str, Instruction],
  inner: dict[str, Instruction],
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


def _behind_bitcasts(name: str, inner: dict[str, Instruction]) -> Instruction:
  while inner[name].opcode == "bitcast":
    name = inner[name].operands[0]
  return inner[name]


def _flops(
  instruction: Instruction, known: dict[str, Instruction], computations: Computations
) -> int:
  if instruction.opcode == "dot":
    left = known[instruction.operands[0]].results[0].dims
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    sides = [left[int(i)] for i in contracted[1].split(",") if i] if contracted else []
    return 2 * math.prod(instruction.results[0].dims) * math.prod(sides)
  if instruction.opcode == "convolution":
    left, right = (known[name].results[0].dims for name in instruction.operands[:2])
    return _convolution(instruction, left, right)
  if instruction.opcode != "fusion":
    return 0
  inside = _inside(_CALLED, instruction, computations)
  return sum(_flops(inner, inside, computations) for inner in inside.values())


def _convolution(
  instruction: Instruction, left: tuple[int, ...], right: tuple[int, ...]
) -> int:
  """Twice the multiplications that no padding takes part in, as XLA counts them."""
  labels, window = (p.search(instruction.attributes) for p in (_LABELS, _WINDOW))
  assert labels, instruction
  of_left, _, of_result = labels.groups()
  result = instruction.results[0].dims
  given = dict(part.split("=") for part in window[1].split()) if window else {}
  spatial = sorted(label for label in of_left if label.isdigit())

  def along(key: str, usual: str) -> list[str]:
    return given[key].split("x") if key in given else [usual] * len(spatial)

  positions = 1
  for i, label in enumerate(spatial):
    size, taps, out = (
      dims[of.index(label)]
      for dims, of in zip((left, right, result), labels.groups(), strict=True)
    )
    stride, apart, step = (
      int(along(key, "1")[i]) for key in ("stride", "lhs_dilate", "rhs_dilate")
    )
    low = int(along("pad", "0_0")[i].split("_")[0])
    # Pairs of an output and a window position that meet a pixel.
    places = (o * stride + k * step - low for o in range(out) for k in range(taps))
    positions *= sum(p % apart == 0 and 0 <= p // apart < size for p in places)

  def groups(of: str) -> int:
    found = re.search(rf"{of}_group_count=(\d+)", instruction.attributes)
    return int(found[1]) if found else 1

  features = left[of_left.index("f")] // groups("feature")
  rows = left[of_left.index("b")] // groups("batch")
  return 2 * positions * features * rows * result[of_result.index("f")]
