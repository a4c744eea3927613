"""The shortest time of a program on a device: by memory traffic or by arithmetic."""

import dataclasses
from collections.abc import Iterable, Mapping

from ncl_jax.runtime import timing
from ncl_jax.runtime.hlo import Collective
from ncl_jax.runtime.hlo_cost import Operation

# Main memory's GB/s of one JAX device, by a part of its `device_kind`; the makers' data
# sheets. The first that fits counts.
BANDWIDTHS = {
  "TPU v4": 1228,
  "TPU v5 lite": 819,
  "TPU v5": 2765,
  "TPU v6": 1640,
  "H200": 4800,
  "H100": 3350,
  "A100": 2039,  # with 80 GB
}

# Memory of one device, GiB, likewise.
MEMORY_GIB = {
  "TPU v2": 8,
  "TPU v3": 16,
  "TPU v4": 32,
  "TPU v5 lite": 16,
  "TPU v5": 95,
  "TPU v6": 32,
}
# GB/s of one JAX device in the network between slices: the makers' figure for a pod of
# 256 chips, divided by them.
NETWORKS = {"TPU v5 lite": 3.125, "TPU v6": 12.5}

# Also told, whatever was planned for.
COMPARED = ("H100", "A100")


@dataclasses.dataclass(frozen=True)
class Machine:
  """Peaks of a device: bytes a second of main memory, bfloat16 FLOP a second."""

  bytes: float
  flops: float


@dataclasses.dataclass(frozen=True)
class Bound:
  """The shortest time of a call."""

  machine: Machine
  seconds: float  # sum over operations of the longer of their two times
  memory_bound: float  # fraction of it in which memory takes longer than arithmetic


def machine(kind: str) -> Machine | None:
  """The peaks of a `device_kind`; None where unknown."""

  bandwidth, peak = _of(BANDWIDTHS, kind), _of(timing.PEAKS, kind)
  if bandwidth is None or peak is None:
    return None
  return Machine(bandwidth * 1e9, peak * 1e12)


def memory(kind: str) -> int | None:
  """Bytes of a device's memory; None where unknown."""
  found = _of(MEMORY_GIB, kind)
  return None if found is None else int(found * 2**30)


def between_slices(sent: Iterable[Collective], slices: int, kind: str) -> float | None:
  """The shortest seconds in which collectives cross the network between slices.

  Of an array to be summed, a device sends at least 2 (slices - 1) / slices; any other
  array goes to each of the other slices.

  Returns:
    None for a `device_kind` whose network is unknown.

  >>> between_slices([Collective("all-reduce", 3_125_000, "slices")], 2, "TPU v6")
  0.00025
  """
  bandwidth = _of(NETWORKS, kind)
  if bandwidth is None:
    return None
  shares = (c.bytes * (2 / slices if c.kind == "all-reduce" else 1) for c in sent)
  return (slices - 1) * sum(shares) / (bandwidth * 1e9)


def _of(table: Mapping[str, float], kind: str) -> float | None:
  return next((table[name] for name in table if name in kind), None)


def bound(operations: Iterable[Operation], kind: str) -> Bound:
  """The shortest time of operations that run one after the other.

  >>> moved, computed = Operation(819_000_000, 0), Operation(0, 3 * 197_000_000_000)
  >>> found = bound([moved, computed], "TPU v5 lite")
  >>> found.seconds, found.memory_bound
  (0.004, 0.25)
  """
  peaks = machine(kind)
  assert peaks, kind
  total = by_memory = 0.0
  for operation in operations:
    moving = operation.times * operation.bytes / peaks.bytes
    computing = operation.times * operation.flops / peaks.flops
    total += max(moving, computing)
    by_memory += moving if moving > computing else 0.0
  return Bound(peaks, total, by_memory / total if total else 0.0)
