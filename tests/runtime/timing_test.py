"""Counting a network's arithmetic, and the timing summary of a run."""

import json
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import models
from ncl_jax.runtime import timing
from ncl_jax.training import loop


def layer(rows, height, size, channels, features):
  return 2 * rows * height**2 * size**2 * channels * features


def test_flops_of_a_resnet18_are_the_formulas():
  # From table 1 of He et al. 2015, by hand: the CIFAR stem, padded to 34 x 34.
  expected, size, channels = layer(3, 34, 3, 3, 64), 34, 64
  for stage, width in enumerate((64, 128, 256, 512)):
    if stage:
      size = math.ceil(size / 2)
      expected += layer(3, size, 1, channels, width)
    expected += layer(3, size, 3, channels, width) + 3 * layer(3, size, 3, width, width)
    channels = width
  model = models.resnet18()
  views = jax.ShapeDtypeStruct((3, 32, 32, 3), jnp.float32)
  variables = jax.eval_shape(
    lambda: model.init(jax.random.key(0), jnp.zeros(views.shape))
  )
  assert timing.flops(model.apply, variables, views) == expected


def test_flops_inside_calls_and_choices_are_counted_once():
  def f(a):
    a = jax.lax.cond(a[0, 0] > 0, lambda a: a @ a, lambda a: (a @ a) @ a, a)
    return jax.jit(lambda a: jax.checkpoint(jnp.matmul)(a, a))(a)

  # The false branch comes first: two products, and one after it.
  assert timing.flops(f, np.zeros((4, 4))) == 3 * 2 * 4**3


def training_loss(model, variables, x):
  def loss(params):
    stats = variables["batch_stats"]
    h, moved = model.apply(
      {"params": params, "batch_stats": stats}, x, True, 2, mutable=["batch_stats"]
    )
    return jnp.sum(h**2), (h, moved)

  return loss


def saved_for_backward(model, variables, x):
  """Shapes of what is saved for the backward pass: what its function encloses."""

  def backward(params):
    return jax.vjp(training_loss(model, variables, x), params, has_aux=True)[1]

  return jax.tree.leaves(jax.eval_shape(backward, variables["params"]))


@pytest.mark.parametrize("stem", models.STEMS)
def test_what_is_computed_again_changes_no_number(stem, x64):
  x = jax.random.normal(jax.random.key(0), (8, 16, 16, 3), jnp.float64)
  model = models.ResNet((2, 1), models.BasicBlock, stem, width=2)
  init = jax.jit(lambda key: jax.tree.map(jnp.float64, model.init(key, x)))
  variables = init(jax.random.key(1))
  found, kept, flops = {}, {}, {}
  for name in models.KEEPS:
    one = model.clone(keep=name)
    loss = training_loss(one, variables, x)
    flops[name] = timing.flops(jax.grad(loss, has_aux=True), variables["params"])
    found[name] = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
    kept[name] = sum(leaf.size for leaf in saved_for_backward(one, variables, x))
  gradient, aux = found.pop("all")
  for other, seen in found.values():
    jax.tree.map(np.testing.assert_array_equal, seen, aux)
    for a, b in zip(*map(jax.tree.leaves, (gradient, other)), strict=True):
      np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11 * np.abs(a).max())
  assert kept["blocks"] < 0.9 * kept["convolutions"] < 0.5 * kept["all"]
  # The small stem alone is computed again: with its stage, and for it.
  conv = variables["params"]["conv1"]["kernel"].size
  again = 2 * 2 * 8 * 18 * 18 * conv if stem == "cifar" else 0
  assert flops["convolutions"] == flops["all"] + again < flops["blocks"]


def test_only_the_outputs_of_convolutions_wait_for_the_backward_pass():
  model = models.resnet18(width=4, dtype=jnp.bfloat16).clone(keep="convolutions")
  x = jnp.zeros((6, 32, 32, 3))
  variables = jax.eval_shape(lambda: model.init(jax.random.key(0), x))
  found = saved_for_backward(model, variables, x)
  # By shape no kernel is among them: those have 3 or 1 in the first place.
  maps = [leaf for leaf in found if leaf.ndim > 2 and leaf.shape[0] == len(x)]
  maps.remove(jax.ShapeDtypeStruct(x.shape, x.dtype))
  # Four a stage and that of the shortcut where the size changes.
  sizes = [(34, 4)] * 4 + [(17, 8)] * 5 + [(9, 16)] * 5 + [(5, 32)] * 5
  assert sorted(leaf.shape for leaf in maps) == sorted((6, s, s, c) for s, c in sizes)
  assert {leaf.dtype for leaf in maps} == {jnp.dtype("bfloat16")}


def test_every_start_of_a_run_is_accounted_for(tmp_path):
  config = tiny.config()
  config.train.epochs = 2
  config.model.keep = "blocks"
  before = time.time()
  run = loop.train(config, tmp_path, tiny.source())
  elapsed = time.time() - before
  (row,) = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
  assert row["from_step"] == 0 and row["steps"] == 5
  phases = row["seconds"]
  assert [*phases] == ["start", "initialise", "trace", "compile", "first call"]
  # The first lap began with the process, the others with this call.
  parts = sum(phases.values()) - phases["start"] + 5 * row["step_seconds"]
  assert 0.5 * elapsed < parts < elapsed
  assert row["images_per_second"] == pytest.approx(16 / row["step_seconds"])
  assert row["utilisation"] is None  # a CPU's peak is not in the table
  assert row["peak_memory_bytes"] > 50e6


def test_the_share_of_the_peak(monkeypatch):
  class Device:
    device_kind = "NVIDIA H100 80GB HBM3"

    def memory_stats(self):
      return {"peak_bytes_in_use": 123}

  monkeypatch.setattr(jax, "devices", lambda: [Device(), Device()])
  monkeypatch.setattr(jax, "local_devices", lambda: [Device(), Device()])
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  timer = timing.Timer()
  row = timing.report(timer, steps=10, seconds=2.0, images=256, flops_per_image=10**10)
  # 1280 images/s of 10 GFLOP each, on two cards of 989 TFLOP/s.
  assert row["utilisation"] == pytest.approx(1280 * 1e10 / (2 * 989e12))
  assert row["peak_memory_bytes"] == 123
  text = timing.sentence(row)
  assert "200 ms a step, 1,280 images/s on 2 x NVIDIA H100" in text
  assert "0.6% of the bfloat16 peak" in text
  slow, fast = (row | {"step_seconds": seconds} for seconds in (2.9604, 0.00123))
  assert "2,960 ms a step" in timing.sentence(slow)
  assert "1.23 ms a step" in timing.sentence(fast)


def test_a_pause_is_no_part_of_the_lap(monkeypatch):
  now = iter([0.0, 10.0, 13.0, 20.0, 24.0, 30.0, 31.0])
  monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
  timer = timing.Timer(0.0)
  for _ in range(2):
    with timer.paused("test"):
      pass
  assert timer.seconds == {"start": 0.0, "test": 7.0}
  assert timer.running() == 23.0


def test_a_run_of_one_call_claims_no_speed():
  timer = timing.Timer(0.0)
  row = timing.report(timer, steps=0, seconds=0.0, images=16, flops_per_image=1)
  assert "nan" not in timing.sentence(row)
