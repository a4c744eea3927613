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
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.preflight import roofline
from ncl_jax.runtime import compiler, hlo, hlo_cost, sharding
from ncl_jax.training import cost, input_pipeline
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


@dataclasses.dataclass(frozen=True)
class Plan:
  """What the compiled step needs; bytes are those of one device."""

  devices: int
  kind: str  # of device
  batch: int  # images in a global batch
  steps_per_call: int
  form: str  # NT-Xent's implementation; the name of another loss
  compile_seconds: float  # tracing included
  arguments: dict[str, int]  # bytes by what they hold: parameters, data, ...
  temp: int = 0  # bytes of activations, gradients and the like
  program: int = 0  # bytes of the program itself
  limit: int | None = None  # bytes that there are; None where unknown
  too_large: str = ""  # the compiler's message where it gave up for want of memory
  model_flops: int = 0  # of the network's products, both passes, all devices
  collectives: tuple[hlo.Collective, ...] = ()
  slices: int = 1  # TPU slices that the devices lie in
  between: tuple[hlo.Collective, ...] = ()  # what a device sends to other slices
  views: int = 2  # of each image
  keep: str = "all"  # what is saved for backward, as `model.keep`
  operations: tuple[hlo_cost.Operation, ...] = ()  # of a step on a device

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
  """Makes the compiler write its decisions to an empty folder; before jax starts."""
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
    source: the data, or their shapes.
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
  optimizer, learning_rate = optimizer_lib.make_optimizer(
    config, source.steps_per_epoch(batch)
  )
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  steps = step_lib.make_steps(config, source, mesh, optimizer, learning_rate, placed)
  data = _data(config, source, batch, placed.on_device)
  method = methods.of(config)
  form = method.name
  if method.implementation:
    width = config_lib.widths(config)["z"]
    form = method.implementation(2 * batch, width, mesh.size)
  arguments = {
    "parameters": cost.tree_bytes(state.params),
    "batch statistics": cost.tree_bytes(state.batch_stats),
    "optimiser state": cost.tree_bytes(state.opt_state),
    "momentum encoder": cost.tree_bytes(state.momentum),
    "training images": cost.tree_bytes(data) * placed.on_device,
    "batch": cost.tree_bytes(data) // mesh.size * (not placed.on_device),
  }
  arguments = {name: size for name, size in arguments.items() if size}
  known = Plan(
    devices=mesh.size,
    slices=sharding.slices(mesh),
    kind=devices[0].device_kind,
    batch=batch,
    steps_per_call=placed.steps_per_call,
    form=form,
    compile_seconds=0.0,
    arguments=arguments,
    limit=roofline.memory(devices[0].device_kind),
    views=config_lib.views(config),
    keep=config.model.keep,
    model_flops=batch * cost.image_flops(config, source),
  )
  began = time.perf_counter()
  lowered = steps.lower(state, data, jax.ShapeDtypeStruct((), np.uint32))
  return _compiled(known, lowered, compiler.cpu_effort(1, mesh), dump, code, began)


def _compiled(
  known: Plan,
  lowered: Any,
  options: Any,
  dump: pathlib.Path | None,
  code: bool,
  began: float,
) -> Plan:
  """The plan with what the compiler tells."""
  program_bytes, memory = 0, None
  try:
    if dump is not None and not code:
      program = _until_planned(lowered, dump)
      seconds = time.perf_counter() - began
    else:
      compiled = lowered.compile(options)
      seconds = time.perf_counter() - began
      program, memory = compiled.as_text(), compiled.memory_analysis()
      program_bytes = memory.generated_code_size_in_bytes
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    # The sentence with the sizes, of pages.
    found = re.search(r"Used \S+ of \S+ hbm[^\n]*", str(error))
    reason = found[0].strip() if found else str(error).splitlines()[0]
    seconds = time.perf_counter() - began
    return dataclasses.replace(known, compile_seconds=seconds, too_large=reason)
  layouts = dump.glob("*after_optimizations-buffer-assignment.txt") if dump else ()
  texts = [layout.read_text() for layout in layouts]
  if memory is None or len(texts) == 1:
    # Without the gaps between buffers, which a TPU's compiler adds in its analysis.
    held, temp = assigned(texts[0])
  else:
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    held -= memory.alias_size_in_bytes
    temp = memory.temp_size_in_bytes
  # What the device's own layout adds, and the small rest of the state.
  rest = max(0, held - sum(known.arguments.values()))
  return dataclasses.replace(
    known,
    compile_seconds=seconds,
    arguments=known.arguments | {"rest": rest},
    temp=temp,
    program=program_bytes,
    collectives=tuple(hlo.collectives(program)),
    between=tuple(hlo.between_slices(program)),
    operations=tuple(hlo_cost.operations(program)),
  )


def _until_planned(lowered: Any, dump: pathlib.Path) -> str:
  """The program, once the compiler has laid out its memory."""
  failed: list[Exception] = []

  def compile_() -> None:
    try:
      lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      failed.append(error)

  thread = threading.Thread(target=compile_, daemon=True)
  thread.start()
  # Written after the layout.
  name = "*after_optimizations_after_buffer_assignment.txt"
  while not any(dump.glob(name)):
    thread.join(0.5)
    if failed:
      raise failed[0]
    if not thread.is_alive():
      raise InputError(
        "this compiler tells nothing before it is done: leave out --nocode"
      )
  thread.join(2)
  (program,) = dump.glob(name)
  return program.read_text()


def assigned(text: str) -> tuple[int, int]:
  """Bytes of a device's main memory in XLA's account of its buffers.

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
