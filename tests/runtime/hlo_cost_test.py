"""Traffic and arithmetic of programs, against XLA's own counts."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from ncl_jax.preflight import roofline
from ncl_jax.runtime import hlo_cost


def counted(function, *arguments):
  """(bytes and FLOPs of a call as we count, as XLA counts)."""
  compiled = jax.jit(function).lower(*arguments).compile()
  found = list(hlo_cost.operations(compiled.as_text()))
  ours = [sum(getattr(o, k) * o.times for o in found) for k in ("bytes", "flops")]
  costs = compiled.cost_analysis()
  return ours, [costs["bytes accessed"], costs["flops"]]


def convolve(x, kernel, strides, padding, groups=1):
  return lax.conv_general_dilated(
    x,
    kernel,
    (strides, strides),
    ((padding, padding), (padding, padding)),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    feature_group_count=groups,
  )


@pytest.mark.parametrize("pass_", ["forward", "input", "kernel"])
@pytest.mark.parametrize(
  ("size", "strides", "padding", "groups"),
  [(3, 1, 1, 1), (3, 2, 1, 1), (7, 2, 3, 1), (1, 2, 0, 1), (3, 1, 1, 2)],
)
def test_convolutions_are_counted_as_by_xla(size, strides, padding, groups, pass_):
  x, kernel = jnp.ones((2, 9, 11, 4)), jnp.ones((size, size, 4 // groups, 6))
  f = functools.partial(
    convolve, strides=strides, padding=padding, groups=groups
  )  # fmt: skip
  dy = f(x, kernel)
  passes = {
    "forward": lambda x, kernel, dy: f(x, kernel),
    "input": lambda x, kernel, dy: jax.vjp(lambda x: f(x, kernel), x)[1](dy),
    "kernel": lambda x, kernel, dy: jax.vjp(lambda k: f(x, k), kernel)[1](dy),
  }
  ours, theirs = counted(passes[pass_], x, kernel, dy)
  assert ours == theirs and ours[1] > 0


def test_products_are_counted_as_by_xla():
  ours, theirs = counted(jnp.matmul, jnp.ones((5, 7)), jnp.ones((7, 3)))
  assert ours == theirs == [4 * (35 + 21 + 15), 2 * 5 * 7 * 3]


def test_only_the_slices_that_are_used_are_read():
  def two_rows(a, i):
    return 2 * lax.dynamic_slice(a, (i, 0), (2, 7))

  ours, theirs = counted(two_rows, jnp.ones((500, 7)), 3)
  assert ours[0] == theirs[0] < 500


def test_a_loop_counts_as_often_as_it_runs():
  def five(a):
    return lax.fori_loop(0, 5, lambda i, a: a @ a, a)

  ours, _ = counted(five, jnp.ones((7, 7)))
  assert ours[1] == 5 * 2 * 7**3
  assert ours[0] >= 5 * 2 * 4 * 7**2


# As the TPU's compiler writes it, shortened: memory 1 is on the chip.
TPU = """HloModule jit_steps, is_scheduled=true

%fused (p.0: bf16[8,4], p.1: bf16[4,4]) -> bf16[8,4] {
  %p.0 = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0)
  %p.1 = bf16[4,4]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %c = bf16[8,4]{1,0:T(8,128)(2,1)} convolution(%p.0, %p.1), dim_labels=bf_io->bf
}

%sliced (p.5: f32[90]) -> f32[9] {
  %p.5 = f32[90]{0} parameter(0)
  ROOT %s = f32[9]{0:S(1)} slice(%p.5), slice={[0:9]}
}

%in_place (p.2: f32[90], p.3: f32[3], p.4: s32[]) -> f32[90] {
  %p.2 = f32[90]{0} parameter(0)
  %p.3 = f32[3]{0} parameter(1)
  %p.4 = s32[]{} parameter(2)
  ROOT %u = f32[90]{0} dynamic-update-slice(%p.2, %p.3, %p.4)
}

ENTRY %main (x: bf16[8,4], k: bf16[4,4]) -> bf16[8,4] {
  %x = bf16[8,4]{1,0} parameter(0)
  %k = bf16[4,4]{1,0} parameter(1)
  %n = s32[]{} constant(2)
  %start = (bf16[4,4]{1,0:S(1)}, bf16[4,4]{1,0}, u32[]{:S(2)}) copy-start(%k)
  %done = bf16[4,4]{1,0:S(1)} copy-done(%start)
  %all = f32[90]{0} broadcast(%n), dimensions={}
  %part = ((f32[90]{0}), f32[9]{0:S(1)}, s32[]{:S(2)}) async-start(%all), calls=%sliced
  %few = f32[3]{0} broadcast(%n), dimensions={}
  %put = f32[90]{0} fusion(%all, %few, %n), kind=kLoop, calls=%in_place
  ROOT %f = bf16[8,4]{1,0} fusion(%x, %done), kind=kOutput, calls=%fused
}
"""


def test_traffic_of_a_tpu_is_that_of_its_main_memory():
  found = list(hlo_cost.operations(TPU))
  copied, whole, part, few, put, product = found
  assert part == hlo_cost.Operation(36, 0)  # of what is copied to the chip in parts
  assert copied == hlo_cost.Operation(32, 0)  # read; written on the chip
  assert (whole.bytes, few.bytes) == (4 + 360, 4 + 12)
  assert put.bytes == 12 + 4 + 12  # read, written in place
  assert product == hlo_cost.Operation(64 + 64, 2 * 8 * 4 * 4)


def test_the_bound_is_the_longer_time_of_each_operation():
  """Against arithmetic by hand, on a v5e: 819 GB/s, 197 TFLOP/s."""
  a = hlo_cost.Operation(bytes=819 * 10**6, flops=10**9, times=2)  # 1 ms each
  b = hlo_cost.Operation(bytes=10**6, flops=197 * 10**9)  # 1 ms
  found = roofline.bound([a, b], "TPU v5 lite")
  assert found.seconds == pytest.approx(3e-3)
  assert found.memory_bound == pytest.approx(2 / 3)
  assert roofline.machine("cpu") is None
  kinds = ("TPU v4", "TPU v5", "TPU v6 lite", "NVIDIA H100 80GB HBM3", "NVIDIA A100")
  machines = [roofline.machine(kind) for kind in kinds]
  assert [m.flops / 1e12 for m in machines] == [275, 459, 918, 989, 312]


# As a TPU's compiler writes loops, shortened: no count of its own.
LOOP = """
%body (p: (s32[], f32[2,3], f32[3,5])) -> (s32[], f32[2,3], f32[3,5]) {
  %a = f32[2,3]{1,0} get-tuple-element(%p), index=1
  %b = f32[3,5]{1,0} get-tuple-element(%p), index=2
  %d = f32[2,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}
}
%condition (p: (s32[], s32[])) -> pred[] {
  %limit = s32[]{:T(128)} LIMIT
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT, metadata={x="y"}
}
ENTRY %main {
  %t = (s32[], f32[2,3], f32[3,5]) parameter(0)
  %w = (s32[], f32[2,3], f32[3,5]) while(%t), condition=%condition, body=%body
}
"""


@pytest.mark.parametrize(
  ("limit", "times"), [("constant(7)", 7), ("get-tuple-element(%p), index=1", 1)]
)
def test_a_loops_length_is_read_from_its_condition(limit, times):
  (found,) = hlo_cost.operations(LOOP.replace("LIMIT", limit))
  assert (found.flops, found.times) == (2 * 2 * 3 * 5, times)
