"""What a run will need on machines that are not at hand: its step, compiled for them.

The step is the one that `train` runs; its data are shapes alone. TPUs
need the package libtpu and no TPU.
"""

import dataclasses
import math
import os
import pathlib
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.runtime import compiler, hlo, hlo_cost, sharding
from ncl_jax.training import cost, input_pipeline
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

# Memory of one device as JAX counts them, GiB, by a part of its `device_kind`; the
# makers' data sheets. The first that fits counts.
MEMORY_GIB = {
  "TPU v2": 8,
  "TPU v3": 16,
  "TPU v4": 32,
  "TPU v5 lite": 16,
  "TPU v5": 95,
  "TPU v6": 32,
}


@dataclasses.dataclass(frozen=True)
class Plan:
  """What the compiled step needs; bytes are those of one device.

  Attributes:
    devices: how many, and of which kind.
    batch: images in a global batch.
    steps_per_call: steps in a call of the program.
    form: NT-Xent's implementation, see `methods.implementations.choose`; the name of
      another loss.
    compile_seconds: tracing included.
    arguments: bytes by what they hold: parameters, optimiser state, data, ...
    temp: bytes of activations, gradients and the like.
    program: bytes of the program itself.
    limit: bytes that there are; None where unknown.
    too_large: the compiler's message where it gave up for want of memory.
    model_flops: of the network's products, both passes, all devices.
    counted_flops: the compiler's count of a device's program, a loop's body once.
    collectives: by kind, see `hlo.collectives`.
    slices: TPU slices that the devices lie in.
    between: what a device sends to other slices, see `hlo.between_slices`.
    views: of each image.
    keep: what is saved for backward, as `model.keep`.
    operations: of a step on a device, see `hlo_cost`.
  """

  devices: int
  kind: str
  batch: int
  steps_per_call: int
  form: str
  compile_seconds: float
  arguments: dict[str, int]
  temp: int = 0
  program: int = 0
  limit: int | None = None
  too_large: str = ""
  model_flops: int = 0
  counted_flops: float = 0.0
  collectives: tuple[hlo.Collective, ...] = ()
  slices: int = 1
  between: tuple[hlo.Collective, ...] = ()
  views: int = 2
  keep: str = "all"
  operations: tuple[hlo_cost.Operation, ...] = ()

  @property
  def total(self) -> int:
    """Bytes that a device holds while the step runs."""
    return sum(self.arguments.values()) + self.temp + self.program

  @property
  def fits(self) -> bool | None:
    """Whether it does; None where the memory is unknown."""
    if self.too_large:
      return False
    return None if self.limit is None else self.total <= self.limit


def dump_to(folder: pathlib.Path) -> None:
  """Makes the compiler write down what it settles on; before jax starts.

  Args:
    folder: empty.
  """
  flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
  flags += " --xla_dump_hlo_module_re=jit_steps"
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
  # A program from the cache settles on nothing.
  jax.config.update("jax_enable_compilation_cache", False)


def plan(
  config: ConfigDict,
  source: Source,
  devices: Sequence[jax.Device],
  dump: pathlib.Path | None = None,
  code: bool = True,
) -> Plan:
  """Compiles the train step for the devices, without running anything.

  Args:
    config: settings, as given to `train`.
    source: the data, or their shapes.
    devices: from `devices`, or `jax.devices()`.
    dump: given to `dump_to` before; memory is read from there as it is laid out.
    code: False, with `dump`: machine code, which takes most of the time and changes no
      other number, is not waited for. A thread is left at work on it; the process is
      to end soon.

  Raises:
    InputError: for settings that cannot work.
  """
  config_lib.validate(config)
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh(devices)
  batch = config.train.batch_size
  sharding.check_batch(mesh, batch, config.train.grad_cache_chunks)
  placed = input_pipeline.layout(config, source, mesh)
  on_device = placed.on_device
  optimizer, learning_rate = optimizer_lib.make_optimizer(
    config, source.steps_per_epoch(batch)
  )
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  steps = step_lib.make_steps(config, source, mesh, optimizer, learning_rate, placed)
  data = _data(config, source, batch, on_device)
  method = methods.of(config)
  form = method.name
  if method.implementation:
    width = config_lib.widths(config)["z"]
    form = method.implementation(2 * batch, width, mesh.size)
  known: dict[str, Any] = {
    "devices": mesh.size,
    "slices": sharding.slices(mesh),
    "kind": devices[0].device_kind,
    "batch": batch,
    "steps_per_call": placed.steps_per_call,
    "form": form,
    "arguments": {
      "parameters": _bytes(state.params),
      "batch statistics": _bytes(state.batch_stats),
      "optimiser state": _bytes(state.opt_state),
      **({"momentum encoder": _bytes(state.momentum)} if state.momentum else {}),
      "training images" if on_device else "batch": _bytes(data)
      // (1 if on_device else mesh.size),
    },
    "limit": _limit(mesh),
    "views": config_lib.views(config),
    "keep": config.model.keep,
    "model_flops": batch * cost.image_flops(config, source),
  }
  began = time.perf_counter()
  lowered = steps.lower(state, data, jax.ShapeDtypeStruct((), np.uint32))
  try:
    if dump is not None and not code:
      return Plan(**known, **_until_planned(lowered, dump, known["arguments"], began))
    compiled = lowered.compile(compiler.cpu_effort(1, mesh))
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    seconds = time.perf_counter() - began
    return Plan(**known, compile_seconds=seconds, too_large=_reason(str(error)))
  seconds = time.perf_counter() - began
  memory, costs = compiled.memory_analysis(), compiled.cost_analysis() or {}
  arguments = known["arguments"]
  # What the device's own layout adds, and the small rest of the state.
  arguments["rest"] = max(
    0,
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    - sum(arguments.values()),
  )
  temp = memory.temp_size_in_bytes
  for layout in _layouts(dump) if dump else ():
    # A TPU's compiler adds the gaps between buffers to the memory that they lie in.
    _, temp = assigned(layout)
  return Plan(
    **known,
    compile_seconds=seconds,
    temp=temp,
    program=memory.generated_code_size_in_bytes,
    counted_flops=costs.get("flops", 0.0),
    **_counted(compiled.as_text()),
  )


def _until_planned(
  lowered: Any, dump: pathlib.Path, arguments: dict[str, int], began: float
) -> dict[str, Any]:
  """What is known once the compiler has laid out the memory."""
  failed: list[Exception] = []

  def compile_() -> None:
    try:
      lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      failed.append(error)

  thread = threading.Thread(target=compile_, daemon=True)
  thread.start()
  # Written after the file that is read here.
  while not any(dump.glob("*after_optimizations_after_buffer_assignment.txt")):
    thread.join(0.5)
    if failed:
      raise failed[0]
    if not thread.is_alive():
      raise InputError(
        "this compiler tells nothing before it is done: leave out --nocode"
      )
  seconds = time.perf_counter() - began
  thread.join(2)
  (program,) = dump.glob("*after_optimizations_after_buffer_assignment.txt")
  (layout,) = _layouts(dump)
  held, temp = assigned(layout)
  arguments["rest"] = max(0, held - sum(arguments.values()))
  return {"compile_seconds": seconds, "temp": temp, **_counted(program.read_text())}


def _counted(program: str) -> dict[str, Any]:
  return {
    "collectives": tuple(hlo.collectives(program)),
    "between": tuple(hlo.between_slices(program)),
    "operations": tuple(hlo_cost.operations(program)),
  }


def _layouts(dump: pathlib.Path) -> list[str]:
  """The compiler's accounts of its buffers, one of the step."""
  files = dump.glob("*after_optimizations-buffer-assignment.txt")
  return [file.read_text() for file in files]


def assigned(text: str) -> tuple[int, int]:
  """Bytes of a device's main memory in XLA's account of its buffers.

  Args:
    text: of the file that ends in buffer-assignment.txt.

  Returns:
    (arguments, results and constants; temporary).

  >>> assigned("allocation 0: size 8, parameter 1, shape |f32[2]|, maybe-live-out:")
  (8, 0)
  """
  held = temp = 0
  for size, what in re.findall(r"^allocation \d+: size (\d+), (.*)$", text, re.M):
    if "thread-local" in what or what.startswith("color"):
      continue  # of other memories
    if "preallocated-temp" in what:
      temp += int(size)
    else:
      held += int(size)
  return held, temp


def _data(
  config: ConfigDict, source: Source, batch: int, on_device: bool
) -> dict[str, Any]:
  count = source.num_examples("train") if on_device else batch
  label = jax.ShapeDtypeStruct((count,), np.int32)
  shape = (math.prod(source.image_shape),) if on_device else source.image_shape
  image = jax.ShapeDtypeStruct((count, *shape), np.uint8)
  data = {"image": image, "label": label}
  if methods.of(config).captions:
    data["tokens"] = jax.ShapeDtypeStruct((count, config.text.length), np.int32)
  return data | ({"order": label} if on_device else {})


def _bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _limit(mesh: Mesh) -> int | None:
  kind = mesh.devices.flat[0].device_kind
  for name, gib in MEMORY_GIB.items():
    if name in kind:
      return gib * 2**30
  return None


def _reason(message: str) -> str:
  """The sentence with the sizes, of pages."""
  found = re.search(r"Used \S+ of \S+ hbm[^\n]*", message)
  return found[0].strip() if found else message.splitlines()[0]
