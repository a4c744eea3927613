"""`launch.train --dry_run`: what it says is so, and it leaves nothing behind."""

import re

import jax
import numpy as np
import pytest
import tiny
from programs import ROOT, call

from ncl_jax import cli
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.experiments import compare
from ncl_jax.host import npz
from ncl_jax.preflight import dry_run
from ncl_jax.runtime import timing
from ncl_jax.training import cost
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib

TINY = f"--config={ROOT}/tests/tiny.py:ncl,relu"


@pytest.fixture(scope="module", autouse=True)
def small():
  """Every test of this file traces the network."""


def test_the_program_tells_and_writes_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  source = f"--config.data.source=arrays:{tiny.npz(tmp_path / 'set.npz')}"
  work = tmp_path / "run"
  change = "--config.loss.temperature=0.5"
  code, out, err = call("train", TINY, source, change, f"--workdir={work}", "--dry_run")
  assert code == 0, err
  assert "48 train, 21 test images 8x8x1; 32 of them read" in out
  assert "12 steps of 16 images, 4 epochs of 3; begins at step 0" in out
  changed, filled = re.search(
    r"Changed here\n(.*)From the data\n(.*)Data ", out, re.S
  ).groups()
  assert "loss.temperature: 0.2 there, 0.5 here" in changed
  assert len(changed.splitlines()) == 2  # and the source
  assert "augment.size: 0 there, 8 here" in filled
  assert '"transform": "relu"' in out and not work.exists()
  assert sorted(p.name for p in tmp_path.iterdir()) == ["set.npz"]


def numbers(text, pattern):
  return [float(x.replace(",", "")) for x in re.search(pattern, text).groups()]


def test_its_numbers_are_those_of_the_network(tmp_path):
  source, config = tiny.source(), tiny.config()
  text = dry_run.describe(config, tmp_path / "run", source=source)
  resolved = config_lib.resolve(config, source)
  params = jax.eval_shape(lambda: state_lib.init_variables(resolved, source))["params"]
  count = sum(x.size for x in jax.tree.leaves(params))
  assert numbers(text, r"(\S+) parameters") == [count]
  flops = (
    3
    * 16
    * timing.flops(
      config_lib.model(resolved).apply,
      {"params": params, "batch_stats": batch_stats(resolved, source)},
      jax.ShapeDtypeStruct((2, 8, 8, 1), np.float32),
    )
  )
  assert numbers(text, r"(\S+) operations a step, (\S+) in all") == pytest.approx(
    [flops, 12 * flops], rel=0.06
  )


def batch_stats(config, source):
  return jax.eval_shape(lambda: state_lib.init_variables(config, source))["batch_stats"]


def test_memory_grows_with_the_batch_and_falls_with_its_chunks():
  source = tiny.source(train=640)
  config = config_lib.resolve(tiny.config(), source)

  def kept(batch, chunks):
    config.train.batch_size, config.train.grad_cache_chunks = batch, chunks
    return cost.kept_bytes(config, source)

  config = config.unlock()
  whole = kept(256, 1)
  # At least the input of the second convolution, two channels of every view in float32.
  assert whole >= 256 * 2 * 8 * 8 * 2 * 4
  assert kept(512, 1) == pytest.approx(2 * whole, rel=0.02)
  assert kept(256, 4) == pytest.approx(whole / 4, rel=0.05)


def test_a_checkpoint_is_as_large_as_the_state_of_training():
  source = tiny.source()
  config = config_lib.resolve(tiny.config(), source)
  optimizer, _ = optimizer_lib.make_optimizer(config, 1)
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  parts = (state.params, state.batch_stats, state.opt_state, state.momentum)
  held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(parts))
  assert dry_run.state_bytes(config, source) == held


def test_a_batch_beyond_the_memory_is_refused_with_the_number(tmp_path, monkeypatch):
  config, source = tiny.config(), tiny.source()
  dry_run.describe(config, tmp_path / "run", source=source)
  # Two views of 16 images of 8 x 8 pixels in float32 are 8 KiB already.
  monkeypatch.setattr(npz, "memory", lambda: 8 << 10)
  with pytest.raises(InputError, match="16 images of 8 pixels.*grad_cache_chunks"):
    dry_run.describe(config, tmp_path / "run", source=source)


def test_a_comparison_is_the_sum_of_its_runs(tmp_path):
  config = tiny.config()
  config.data.source = f"arrays:{tiny.npz(tmp_path / 'set.npz')}"
  config.model.projector_hidden = 4096  # so that mebibytes are many
  work = tmp_path / "new" / "out"

  def disk(**options):
    text = compare.describe(config, work, evaluators=("knn",), **options)
    runs, mebibytes = numbers(text, r"Compare   (\d+) runs[^$]*Disk      (\S+) MiB")
    return runs, mebibytes

  resolved = config_lib.resolve(config, tiny.source())
  one = dry_run.state_bytes(resolved, tiny.source()) / 2**20
  for seeds, controls, runs in ((1, ("all",), 2), (2, ("cl_l1", "cl_narrow"), 8)):
    kept = runs * (resolved.train.keep_checkpoints + 1)
    found = disk(seeds=seeds, controls=controls)
    assert found == (runs, pytest.approx(kept * one, abs=0.6))
  with pytest.raises(InputError, match="compare needs an NCL config"):
    config_lib.set_method(config, "cl")
    compare.describe(config, work, seeds=1)
  assert sorted(p.name for p in tmp_path.iterdir()) == ["set.npz"]


def test_without_labels_it_says_what_is_left(tmp_path):
  text = dry_run.describe(
    tiny.config(), tmp_path / "run", source=tiny.source(labelled=False)
  )
  assert "no labels" in text and "need labels" in text and "sparsity" in text


def test_images_that_cannot_be_read_are_noticed(tmp_path):
  class Broken:
    shape = (48, 8, 8, 1)

    def __len__(self):
      return 48

    def __getitem__(self, rows):
      raise InputError(f"cannot read the image {rows[0]}")

  whole = tiny.source()
  splits = {"train": whole.split("train")}
  splits["test"] = Split(Broken(), np.zeros(48, np.int32))
  with pytest.raises(InputError, match="cannot read the image 0"):
    dry_run.describe(
      tiny.config(), tmp_path / "run", source=Source("broken", splits, ("a", "b"))
    )


def test_hours_on_a_cpu_are_told_before_they_begin():
  source = tiny.source()
  config = config_lib.resolve(tiny.config(backbone="resnet_two_blocks"), source)
  assert cost.cost_warning(config, source) == []
  with config.unlocked():
    config.train.epochs = 50_000_000
  first, *advice = cost.cost_warning(config, source)
  # Two views, three times the forward pass, by the description's own numbers.
  work = 48 * 50_000_000 * 3 * speed_of_views(config)
  hours = work / cost._CPU_FLOPS_NARROW / 3600
  assert first.startswith(f"about {hours:.0f} hours on two CPU cores")
  assert any("ncl train_projector" in line for line in advice)


def speed_of_views(config):
  """Operations of the forward pass of an image's two views, by XLA's own count."""
  model = config_lib.model(config)
  views = np.zeros((2, 8, 8, 1), np.float32)
  variables = jax.eval_shape(lambda: model.init(jax.random.key(0), views))
  return jax.jit(model.apply).lower(variables, views).cost_analysis()["flops"]


def test_advice_for_photographs_and_for_laptops():
  config = tiny.config()
  assert not cost.advice(config, 3600)
  line, other = cost.advice(config, 10 * 86400)
  assert "ncl train_projector" in other
  assert "--config.data.image_size=32" in line
  config.augment.size = 120
  assert "stem=imagenet" in cost.advice(config, 3600)[0]
  for setting in re.findall(r"--config\.([\w.]+)", line):
    assert setting in config_lib.known_keys()


@pytest.mark.parametrize(
  ("seconds", "text"),
  [(1, "a minute"), (600, "10 minutes"), (7200, "2 hours"), (10 * 86400, "10 days")],
)
def test_durations(seconds, text):
  assert cost.duration(seconds) == text
