"""Timing summary of a run, and its use of the hardware."""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ncl_jax.host import resources

# Dense bfloat16 TFLOP/s of one JAX device, from the makers' data sheets, by a part of
# its `device_kind`. The first match counts.
PEAKS = {
  "TPU v3": 61.5,
  "TPU v4": 275.0,
  "TPU v5 lite": 197.0,
  "TPU v5e": 197.0,
  "TPU v5": 459.0,
  "TPU v6": 918.0,
  "B200": 2250.0,
  "H200": 989.0,
  "H100 PCIe": 756.0,
  "H100": 989.0,
  "A100": 312.0,
  "L40S": 362.0,
  "L40": 181.0,
  "L4": 121.0,
  "A10G": 70.0,
}


class Timer:
  """Measures seconds between calls of `lap`, after a `start` (None: of the process)."""

  def __init__(self, start: float | None = None) -> None:
    self.seconds = {"start": since_process_began() if start is None else start}
    self._last = time.perf_counter()

  def lap(self, name: str) -> None:
    """Records the time since the last lap as `name`."""
    now = time.perf_counter()
    self.seconds[name], self._last = now - self._last, now

  @contextlib.contextmanager
  def paused(self, name: str) -> Iterator[None]:
    """Pauses the current lap and records the time inside as `name`."""
    began = time.perf_counter()
    yield
    spent = time.perf_counter() - began
    self.seconds[name] = self.seconds.get(name, 0.0) + spent
    self._last += spent

  def running(self) -> float:
    """Seconds of the current lap."""
    return time.perf_counter() - self._last


def since_process_began() -> float:
  """Seconds since the process began on Linux; NaN elsewhere."""
  try:
    # The 20th field after the name in brackets, which may contain anything; in ticks.
    after_name = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2]
    began = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
  except (OSError, AttributeError, ValueError, IndexError):
    return float("nan")


def flops(function: Callable[..., Any], *args: Any) -> int:
  """Floating-point operations of a pure function's matrix products and convolutions.

  Each multiplication of a dense product counts as two, before any optimisation by the
  compiler; other operations are not counted. A loop's body counts once. `args` are
  arrays or `jax.ShapeDtypeStruct`.

  >>> a, b = np.zeros((2, 3)), np.zeros((3, 5))
  >>> flops(lambda a, b: jax.numpy.tanh(a @ b), a, b)
  60
  """
  return _flops(jax.make_jaxpr(function)(*args).jaxpr)


def _flops(jaxpr: Any) -> int:
  total = 0
  for equation in jaxpr.eqns:
    name, parameters = equation.primitive.name, equation.params
    size = int(np.prod(equation.outvars[0].aval.shape)) if equation.outvars else 0
    if name == "dot_general":
      (contracted, _), _ = parameters["dimension_numbers"]
      left = equation.invars[0].aval.shape
      total += 2 * size * int(np.prod([left[axis] for axis in contracted]))
    elif name == "conv_general_dilated":
      kernel = equation.invars[1].aval.shape
      out_axis = parameters["dimension_numbers"].rhs_spec[0]
      total += 2 * size * int(np.prod(kernel)) // kernel[out_axis]
    else:
      total += sum(_flops(inner) for inner in _inner(parameters))
  return total


def _inner(parameters: dict[str, Any]) -> list[Any]:
  """The jaxprs inside an equation; for a conditional, the first branch."""
  values = (v[0] if name == "branches" else v for name, v in parameters.items())
  found = (getattr(value, "jaxpr", value) for value in values)
  return [jaxpr for jaxpr in found if hasattr(jaxpr, "eqns")]


def peak() -> float | None:
  """Dense bfloat16 FLOP/s of all devices; None if unknown, as on CPU."""
  kind = jax.devices()[0].device_kind
  for name, teraflops in PEAKS.items():
    if name.lower() in kind.lower():
      return teraflops * 1e12 * jax.device_count()
  return None


def peak_memory() -> float:
  """Peak memory in bytes: of a device, or of this process on CPU."""
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  return max(s.get("peak_bytes_in_use", 0) for s in stats) or resources.peak_memory()


def report(
  timer: Timer, *, steps: int, seconds: float, images: int, flops_per_image: int
) -> dict[str, Any]:
  """A run's timing summary, a row of speed.jsonl.

  Args:
    steps: number of steps after the first call, which took so many seconds.
    flops_per_image: of the network, forward and backward, all views.

  Returns:
    Seconds of each lap and of a step, images a second, the fraction of the devices'
    peak that the network's arithmetic reaches (None if the peak is unknown), peak
    memory in bytes, and the devices.
  """
  rate = steps * images / seconds if steps else float("nan")
  most = peak()
  return {
    "seconds": timer.seconds,
    "steps": steps,
    "step_seconds": seconds / steps if steps else float("nan"),
    "images_per_second": rate,
    "flops_per_image": flops_per_image,
    "utilisation": rate * flops_per_image / most if most else None,
    "peak_memory_bytes": peak_memory(),
    "device": jax.devices()[0].device_kind,
    "devices": jax.device_count(),
    "jax": jax.__version__,
  }


def sentence(row: dict[str, Any]) -> str:
  """The timing summary as a sentence."""
  parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["seconds"].items())
  if not row["steps"]:
    return f"seconds: {parts}; no step after the first call was timed"
  used, step = row["utilisation"], 1e3 * row["step_seconds"]
  step = f"{step:,.0f}" if step >= 100 else f"{step:.3g}"
  share = "unknown here" if used is None else f"{used:.1%} of the bfloat16 peak"
  return (
    f"seconds: {parts}; then {step} ms a step, "
    f"{row['images_per_second']:,.0f} images/s on {row['devices']} x {row['device']}; "
    f"model FLOP utilisation {share}; peak memory "
    f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB"
  )
