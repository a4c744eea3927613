"""Data on the devices: the same run as with transferred data, without transfers."""

import jax
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.runtime import checkpoint, jsonl, sharding
from ncl_jax.training import input_pipeline, loop
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


def test_batches_sent_or_taken_on_the_devices_are_the_same():
  config, source = tiny.config(), tiny.source()
  mesh = sharding.make_mesh()
  take = jax.jit(
    lambda data, start: input_pipeline.batch_of(data, start, 16, mesh, (8, 8, 1))
  )
  # Started in the second of three steps of an epoch, and on into the next two.
  feeds = [
    input_pipeline.open_feed(source, config, mesh, 1, on_device) for on_device in (0, 1)
  ]
  seen = set()
  for step in range(1, 8):
    sent, data = (f.at(step) for f in feeds)
    taken = take(data, step % 3 * 16)
    for name in ("image", "label"):
      np.testing.assert_array_equal(taken[name], sent[name])
      assert taken[name].sharding.is_equivalent_to(
        sent[name].sharding, taken[name].ndim
      )
    seen.add(np.asarray(sent["image"]).tobytes())
  assert len(seen) == 7
  for f in feeds:
    f.close()


@pytest.fixture(scope="module")
def program():
  """(steps of a call, state, data on the device), three steps an epoch and a call."""
  config, source = tiny.config(), tiny.source()
  config.train.log_every_steps = 2
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh()
  optimizer, rate = optimizer_lib.make_optimizer(config, 3)
  layout = input_pipeline.Layout(on_device=True, steps_per_call=3)
  steps = step_lib.make_steps(config, source, mesh, optimizer, rate, layout)
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  return steps, state, input_pipeline.open_feed(source, config, mesh, 0, True).at(0)


def test_the_loop_is_one_on_a_tpu(program):
  steps, state, data = program
  traced = steps.trace(state, data, np.uint32(0))
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  # What each loop carries: one the whole state, another the few words of the random
  # number generator.
  carried = [line.count("%iterArg") for line in text.splitlines() if "while(" in line]
  tensors = len(jax.tree.leaves(state))
  assert sum(count >= tensors for count in carried) == 1
  assert sum(count > 10 for count in carried) == 1


def test_a_steady_run_sends_nothing_and_compiles_once(program):
  steps, state, data = program
  seed = jax.device_put(np.uint32(0), state.step.sharding)
  with jax.transfer_guard_host_to_device("disallow_explicit"):
    # Of 2 and 1 steps: to the logged one, to the end of the epoch.
    for done in (2, 3):
      state, values, *_ = steps(state, data, seed)
      assert int(jax.device_get(state.step)) == done
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
      jax.device_put(np.zeros(3))
  assert steps._cache_size() == 1
  np.testing.assert_array_equal(np.asarray(values["loss"]) > 0, [True, False, False])


def test_calls_end_where_the_loop_looks():
  for per_call, per_epoch, log_every in ((1, 3, 2), (20, 7, 5), (4, 100, 50)):
    done, ends = 0, []
    while done < 3 * per_epoch:
      done += step_lib.steps_in_call(done, per_call, per_epoch, log_every)
      ends.append(done)
    places = {*range(0, done + 1, per_epoch), *range(0, done + 1, log_every)} - {0}
    assert places <= set(ends) and done == 3 * per_epoch
    assert max(np.diff([0, *ends])) <= per_call


def test_sets_that_are_too_large_are_sent():
  config, source = tiny.config(), tiny.source()
  mesh = sharding.make_mesh(jax.devices()[:2])
  assert input_pipeline.layout(config, source, mesh).on_device
  config.train.steps_per_call = 2
  assert input_pipeline.layout(config, source, mesh).steps_per_call == 2
  # 2 copies of 48 images of 8 x 8 pixels in one memory.
  config.data.on_device_mib = 2 * 48 * 64 // 2**20
  assert config.data.on_device_mib == 0
  with pytest.raises(InputError, match="steps_per_call is 2: allowed is 1 for data"):
    input_pipeline.layout(config, source, mesh)
  config.train.steps_per_call = 0
  assert input_pipeline.layout(config, source, mesh) == input_pipeline.Layout(False, 1)


def test_what_is_refused_leaves_no_directory(tmp_path):
  config = tiny.config()
  config.data.on_device_mib, config.train.steps_per_call = 0, 2
  with pytest.raises(InputError, match="steps_per_call is 2"):
    loop.train(config, tmp_path / "run", tiny.source())
  assert not (tmp_path / "run").exists()


# Last, as from here on programs are optimized.


@pytest.mark.usefixtures("optimized")
def test_many_steps_a_call_are_as_many_calls_bit_for_bit(tmp_path):
  source = tiny.source()
  rows, models = [], []
  # Calls of 2, 1 and 2, 1 steps: an epoch has three, and every fourth is logged.
  for name, on_device, per_call in (("sent", 0, 1), ("on_device", 1, 2)):
    config = tiny.config()
    config.train.epochs = 2
    config.train.log_every_steps = 4
    config.data.on_device_mib, config.train.steps_per_call = on_device, per_call
    run = loop.train(config, tmp_path / name, source)
    rows.append((run / "metrics.jsonl").read_text())
    models.append(final_model(config, source, run))
  assert rows[0] == rows[1]
  assert [row["step"] for row in jsonl.read(run / "metrics.jsonl")] == [3, 4, 6]
  jax.tree.map(np.testing.assert_array_equal, *models)


def final_model(config, source, run):
  config = config_lib.resolve(config, source)
  shapes = jax.eval_shape(lambda: state_lib.init_variables(config, source))
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return checkpoint.load_model(run, shapes, one)[0]
