"""What a run needs elsewhere: read from its compiled step, on TPU where libtpu is."""

import importlib.util
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.preflight import memory_plan, plan_page, roofline, targets
from ncl_jax.runtime import hlo, hlo_cost
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib

# As the CPU and the TPU compiler write them, shortened.
PROGRAM = """
HloModule jit_steps
%body (p: f32[2]) -> f32[2] {
  %ar = f32[64,2]{1,0} all-reduce(%x), metadata={op_name="jit(s)/transpose(jvp(M))/dot"}
  %ar.2 = f32[64,2]{1,0} all-reduce(%x), channel_id=9, metadata={op_name="a"}
  %ar.3 = f32[64,2]{1,0} all-reduce(%y), channel_id=9, metadata={op_name="a"}
  %g = (bf16[4]{0:T(8)}, bf16[32]{0:T(8)S(1)}) all-gather-start(bf16[4]{0} %z), x=1, \
metadata={op_name="jit(s)/jvp(jit(shmap_body))/shard_map/all_gather"}
  %gd = bf16[32]{0} all-gather-done(%g)
}
ENTRY %main {
  %all-reduce.7 = (f32[8], f32[]) all-reduce-start(%a, %b), \
metadata={op_name="jit(s)/jvp(M)/bn1/BatchNorm/reduce_sum"}
  ROOT %cp = (f32[3], f32[3], u32[], u32[]) collective-permute-start(%f), channel_id=4
  %fusion = f32[9] fusion(%all-reduce.7), calls=%body
}
"""


def test_collectives_are_read_from_a_program():
  found = [(c.kind, c.bytes) for c in hlo.collectives(PROGRAM)]
  assert found == [
    ("all-reduce", 64 * 2 * 4),
    ("all-reduce", 64 * 2 * 4),
    ("all-gather", 32 * 2),
    ("all-reduce", 9 * 4),
    ("collective-permute", 3 * 4),
  ]
  origins = [c.origin for c in hlo.collectives(PROGRAM)]
  assert origins == ["gradients", "other", "loss", "BatchNorm", "other"]


@pytest.fixture(scope="module")
def planned():
  source = tiny.source()
  return memory_plan.plan(tiny.config(), source, targets.devices("cpu:8")), source


def test_memory_is_that_of_the_state_and_the_data(planned):
  found, source = planned
  config = config_lib.resolve(tiny.config(), source)
  optimizer, _ = optimizer_lib.make_optimizer(config, 3)
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  count = {key: sum(x.size for x in jax.tree.leaves(getattr(state, key)))
           for key in ("params", "batch_stats")}  # fmt: skip
  assert found.arguments["parameters"] == 4 * count["params"]
  assert found.arguments["batch statistics"] == 4 * count["batch_stats"]
  # LARS keeps a momentum the size of the parameters, and counters.
  assert 0 <= found.arguments["optimiser state"] - 4 * count["params"] < 100
  images = source.split("train").images
  assert found.arguments["training images"] == images.nbytes + 2 * 4 * len(images)
  assert found.total > sum(found.arguments.values()) and found.fits is None


def test_what_is_sent_is_gradients_statistics_and_embeddings(planned):
  found, _ = planned
  sizes: dict[str, int] = {}
  for c in found.collectives:
    sizes[c.kind] = sizes.get(c.kind, 0) + c.bytes
  gradients = found.arguments["parameters"]
  assert set(sizes) == {"all-reduce", "all-gather"}
  assert gradients <= sizes["all-reduce"] < 2 * gradients
  embeddings = 16 * 2 * 8 * 4
  assert embeddings <= sizes["all-gather"] < 2 * embeddings


def test_the_page_tells_it(planned):
  page = plan_page.text(planned[0], "a title")
  for part in ("a title", "8 x cpu, batch 16 = 2 images", "all-gather", "parameters"):
    assert part in page
  assert "memory unknown here" in page


def test_a_plan_that_does_not_fit_says_so():
  row = {"parameters": 3 * 2**30}
  found = memory_plan.Plan(
    8, "TPU", 64, 1, "ring", 1.0, row, temp=2**30, limit=4 * 2**30
  )
  assert found.fits
  assert not memory_plan.Plan(8, "TPU", 64, 1, "ring", 1.0, row, limit=2**30).fits
  given_up = memory_plan.Plan(
    8, "TPU", 64, 1, "ring", 1.0, row, too_large="Used 9G of 4G hbm"
  )
  page = plan_page.text(given_up, "")
  assert "DOES NOT FIT: Used 9G" in page and "train.grad_cache_chunks" in page


# As the TPU compiler writes what crosses the network between slices, shortened.
SENT = """
  %send.1 = (f32[1,2,128]{2,1,0:T(2,128)}, u32[], token[]) send(%all-reduce.2, %a), \
channel_id=3, is_host_transfer=true, frontend_attributes={\
_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %send-done.1 = token[] send-done(%send.1), channel_id=3
  %send.2 = (bf16[64]{0}, u32[]{:S(2)}, token[]) send(%x, %b), channel_id=4, \
frontend_attributes={_xla_megascale_transfer_type="ALL_GATHER"}
  %send.3 = (f32[9]{0}, u32[], token[]) send(%x, %b), channel_id=5
"""


def test_what_crosses_the_network_between_slices_is_counted():
  sent = tuple(hlo.between_slices(SENT))
  assert [(c.kind, c.bytes) for c in sent] == [
    ("all-reduce", 1024),
    ("all-gather", 128),
  ]
  row = {"parameters": 2**20}
  # 3.125 GB/s; of three slices, a sum's part is sent 2 * 2 / 3 times, others twice.
  seconds = (1024 * 4 / 3 + 128 * 2) / 3.125e9
  found = roofline.between_slices(sent, 3, "TPU v5 lite")
  assert found == pytest.approx(seconds, rel=1e-12)
  plan = memory_plan.Plan(
    24, "TPU v5 lite", 48, 1, "ring", 1.0, row, slices=3, between=sent * 5000
  )
  page = plan_page.text(plan, "")
  assert "24 x TPU v5 lite in 3 slices, batch 48 = 2 images" in page
  assert re.search(r"all-gather, all-reduce +5\.49 in 10000\n +at least +2\.6 ms", page)
  alone = memory_plan.Plan(8, "TPU v5 lite", 48, 1, "ring", 1.0, row)
  assert "slices" not in plan_page.text(alone, "")


def test_a_calls_steps_are_a_loop_that_counts_once():
  """A millisecond of memory traffic in the loop's body is a millisecond a step."""
  operation = hlo_cost.Operation(819_000_000, 0)
  for steps in (1, 20):
    plan = memory_plan.Plan(
      8, "TPU v5 lite", 64, steps, "ring", 1.0, {}, operations=(operation,)
    )
    page = plan_page.text(plan, "")
    assert re.search(r"TPU v5 lite +1\.0 ms +100% +8,000 ", page), page
    assert "0.8 GB of main memory" in page


def test_data_are_stood_in_for():
  config = config_lib.defaults()
  config.data.source = "tfds:imagenet2012"
  source = targets.dummy_data(config)
  images = source.split("train").images
  assert images.shape == (1_281_167, 256, 256, 3) and source.num_classes == 1000
  assert images.strides == (0, 0, 0, 0)  # one byte in memory
  config.data.source, config.data.image_size = "folder:elsewhere", 64
  source = targets.dummy_data(config, (10, 5, 5, 1, 0))
  assert source.split("train").images.shape == (10, 64, 64, 1)
  assert np.all(source.split("train").labels == -1)
  with pytest.raises(InputError, match="data shape"):
    targets.dummy_data(config, (10, 5))


def test_only_tpus_have_slices():
  with pytest.raises(InputError, match="only TPUs have slices"):
    targets.devices("cpu:8", slices=2)


@pytest.mark.parametrize("name", ["v5e", "8", "cpu:0", "cpu:64", "v5e:4", "gpu:8"])
def test_an_unknown_topology_is_refused(name):
  jax.devices()  # before it starts, jax would take 64
  with pytest.raises(InputError, match="topology"):
    targets.devices(name)


# A minute each; at a batch of 4,096.
KEEP = "--config.model.keep=convolutions"
CIFAR = ("--config=configs/cifar10.py:ncl", KEEP)
IMAGENET = ("--config=configs/imagenet100.py:ncl", KEEP)
RESNET50 = (*IMAGENET, "--config.model.backbone=resnet50")
CASES = {
  "resnet18-32px": CIFAR,
  "resnet18-32px-remat": (*CIFAR, "--config.model.keep=blocks"),
  "resnet18-224px": IMAGENET,
  "resnet50-224px": (*RESNET50, "--config.train.grad_cache_chunks=4"),
}


def page_of(*flags):
  """What `launch.plan` prints for a TPU, compiled as it would be for a run."""
  for_tests = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
  environment = {k: v for k, v in os.environ.items() if k not in for_tests}
  done = subprocess.run(
    [sys.executable, "-m", "launch.plan", *flags],
    env=environment | {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
    capture_output=True,
    text=True,
    timeout=3600,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


LIMITS = {"resnet18-32px": 1.6, "resnet18-32px-remat": 1.2}  # MiB a view


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
@pytest.mark.parametrize("topology", ["v5e:2x4", "v5e:4x8", "v4:2x2x2", "v4:2x4x4"])
@pytest.mark.parametrize("case", CASES)
def test_the_step_fits_on_a_tpu(case, topology):
  page = page_of(*CASES[case], "--batch=4096", "--nocode", f"--topology={topology}")
  print(page)
  assert "\nfits\n" in page
  assert "all-to-all" not in page and "reduce-scatter" not in page
  if case in LIMITS:
    a_view = float(page.split("temporary (")[1].split(" a view")[0])
    assert a_view <= LIMITS[case]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
@pytest.mark.parametrize(("keep", "gigabytes"), [("all", 71.1), ("convolutions", 79.7)])
def test_traffic_of_a_resnet50_stays_as_it_is(keep, gigabytes):
  """Of main memory, on each of 32 v5e chips; docs/scaling.md has the same numbers."""
  flags = ["--config=configs/imagenet100.py:ncl", "--config.model.backbone=resnet50"]
  flags += [f"--config.model.keep={keep}", "--batch=4096", "--topology=v5e:4x8"]
  (found,) = re.findall(r"a step on a device: ([\d.]+) GB", page_of(*flags, "--nocode"))
  assert float(found) == pytest.approx(gigabytes, rel=0.03)


LAYOUT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <568 reduce_sum.1270 @0> (size=512,offset=0): f32[]
allocation 1: size 100, parameter 66, shape |f32[25]| at ShapeIndex {}, maybe-live-out:
allocation 2: size 7, maybe-live-out:
allocation 3: size 3, constant:
allocation 4: size 11, color 1, preallocated-temp:
allocation 5: size 2048, preallocated-temp:
"""


def test_memory_is_read_from_the_compilers_account():
  assert memory_plan.assigned(LAYOUT) == (110, 2048)


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
def test_a_tpu_without_a_tpu():
  """With machine code and without: the same memory but the program's."""
  flags = (
    "--config=tests/tiny.py:ncl",
    "--topology=v5e:2x4",
    "--data_shape=48,8,8,1,2",
  )
  pages = []
  for more in ([], ["--nocode"]):
    page = page_of(*flags, *more)
    assert "8 x TPU v5 lite, batch 16" in page and "\nfits\n" in page
    pages.append(page.splitlines())
  (with_code,), (without,) = ([x for x in p if "temporary" in x] for p in pages)
  assert with_code == without and float(without.split()[-1]) > 1
  assert [sum(x.startswith("  program ") for x in page) for page in pages] == [1, 0]


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
def test_two_slices_without_a_tpu():
  """Everything that devices exchange also crosses the network, and nothing else."""
  flags = ("--config=tests/tiny.py:ncl", "--topology=v5e:2x2", "--slices=2")
  page = page_of(*flags, "--data_shape=48,8,8,1,2", "--nocode")
  assert "8 x TPU v5 lite in 2 slices, batch 16" in page
  (count,) = re.findall(r"slices, MiB.*\n .*all-reduce +[\d.]+ in (\d+)", page)
  # Mean and variance of the network's 6 BatchNorms, forward and backward.
  assert int(count) >= 2 * 6
