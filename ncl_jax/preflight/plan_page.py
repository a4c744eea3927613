"""A plan as a page to read."""

from ncl_jax.preflight import roofline
from ncl_jax.preflight.memory_plan import Plan


def text(found: Plan, title: str) -> str:
  """A plan as a page to read."""
  share = found.batch // found.devices
  slices = f" in {found.slices} slices" if found.slices > 1 else ""
  lines = [
    title,
    f"{found.devices} x {found.kind}{slices}, batch {found.batch:,} = {share:,} images "
    f"a device, {found.steps_per_call} step(s) a call, loss {found.form}, saved for "
    f"backward: {found.keep} (model.keep)",
    f"{'compiled' if found.program else 'memory planned'} in "
    f"{found.compile_seconds:.0f} s",
    "",
    "MiB per device",
  ]
  rows = dict(found.arguments)
  if not found.too_large:
    views = found.views * share
    rows[f"temporary ({found.temp / views / 2**20:.2f} a view)"] = found.temp
    if found.program:
      rows["program"] = found.program
  rows["together"] = found.total
  lines += [f"  {name:28} {size / 2**20:12,.1f}" for name, size in rows.items()]
  if found.limit:
    lines.append(f"  {'there are':28} {found.limit / 2**20:12,.1f}")
  verdict = {True: "fits", False: "DOES NOT FIT", None: "memory unknown here"}
  lines.append(verdict[found.fits] + (f": {found.too_large}" * bool(found.too_large)))
  if found.fits is False:
    lines.append("less: --config.train.grad_cache_chunks=K, --config.model.keep=blocks")
  lines += ["", f"network, TFLOP a step: {found.model_flops / 1e12:,.2f}"]
  if found.too_large:
    return "\n".join(lines)
  lines += _roofline(found)
  lines += ["", "Collectives of a step, MiB of results on a device"]
  for kind in sorted({c.kind for c in found.collectives}):
    of_kind = [c for c in found.collectives if c.kind == kind]
    size = sum(c.bytes for c in of_kind) / 2**20
    lines.append(f"  {kind:28} {size:12,.2f} in {len(of_kind)}")
    for what in sorted({c.origin for c in of_kind}):
      part = [c.bytes for c in of_kind if c.origin == what]
      lines.append(f"    {what:26} {sum(part) / 2**20:12,.2f} in {len(part)}")
  return "\n".join(lines + _between_slices(found))


def _between_slices(found: Plan) -> list[str]:
  """What crosses the network between slices."""
  if found.slices == 1:
    return []
  size = sum(c.bytes for c in found.between)
  kinds = ", ".join(sorted({c.kind for c in found.between}))
  lines = [
    "",
    f"Between the {found.slices} slices, MiB on a device",
    f"  {kinds:28} {size / 2**20:12,.2f} in {len(found.between)}",
  ]
  seconds = roofline.between_slices(found.between, found.slices, found.kind)
  if seconds is not None:
    lines.append(f"  {'at least':28} {seconds * 1e3:9,.1f} ms, and as many delays")
  return lines


def _roofline(found: Plan) -> list[str]:
  """A table of the shortest times; none for a CPU's program."""
  if not roofline.machine(found.kind) or not found.operations:
    return []
  # A call's steps are a loop whose length the compiler does not know: counted once.
  share = found.batch / found.devices
  moved = sum(o.bytes * o.times for o in found.operations)
  flops = sum(o.flops * o.times for o in found.operations)
  lines = [
    "",
    f"Roofline of a step on a device: {moved / 1e9:.1f} GB of main memory, "
    f"{flops / 1e12:.2f} TFLOP",
    "  (a bound, not a measurement; other devices: the same program)",
    f"  {'':28} {'at least':>12} {'memory-bound':>13} {'images/s':>9} {'MFU':>9}",
  ]
  for kind in dict.fromkeys((found.kind, *roofline.COMPARED)):
    bound = roofline.bound(found.operations, kind)
    used = found.model_flops / found.devices / (bound.seconds * bound.machine.flops)
    lines.append(
      f"  {kind:28} {bound.seconds * 1e3:9,.1f} ms {bound.memory_bound:13.0%} "
      f"{share / bound.seconds:9,.0f} {used:9.0%}"
    )
  return lines
