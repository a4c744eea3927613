"""Released checkpoints in, files for others out, with the released code's features."""

import dataclasses
import json

import golden_numbers
import jax
import numpy as np
import pytest
import recipe
import safetensors.numpy
import tiny
from torch_files import save, tiny_state

from ncl_jax import config as config_lib
from ncl_jax import interop
from ncl_jax.data import decode
from ncl_jax.errors import InputError
from ncl_jax.evaluators import execute, knn, torch_exchange
from ncl_jax.evaluators.run import open_run
from ncl_jax.runtime import checkpoint
from ncl_jax.training import loop

GOLDEN = "resnet18_cifar"


def released_state():
  return recipe.state(golden_numbers.tensors(GOLDEN)["tensors"])


def released_config():
  config = tiny.config()
  config.model.update(backbone="resnet18", width=64)
  config.model.update(projector_hidden=64, projector_out=32)
  return config


def imported(tmp_path, state, **options):
  return torch_exchange.import_torch(
    tiny.config(backbone="resnet10"),
    save(tmp_path / "x.safetensors", state),
    tmp_path / "run",
    source=tiny.source(),
    **options,
  )


@pytest.mark.parametrize("form", [".safetensors", ".pth"])
def test_a_released_checkpoint_is_evaluated_here(tmp_path, form):
  state, golden = released_state(), golden_numbers.load(GOLDEN)
  file = tmp_path / f"released{form}"
  if form == ".pth":
    torch = pytest.importorskip("torch")
    tensors = {f"module.{k}": torch.from_numpy(v) for k, v in state.items()}
    torch.save({"epoch": 200, "state_dict": tensors}, file)
  else:
    save(file, state)
  source = tiny.source(train=32, test=21, channels=3)
  path = torch_exchange.import_torch(
    released_config(), file, tmp_path / "run", classifier=False, source=source
  )
  run = open_run(path, source=source)
  params = {k: v for k, v in run.variables["params"].items() if k != "probe"}
  variables = {"params": params, "batch_stats": run.variables["batch_stats"]}
  with jax.default_matmul_precision("float32"):
    h, z = jax.jit(config_lib.model(run.config).apply)(
      variables, golden["x"].transpose(0, 2, 3, 1)
    )
  expected = golden["feats_eval"]
  np.testing.assert_allclose(h, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
  hidden = expected @ state["projector.0.weight"].T + state["projector.0.bias"]
  expected = np.maximum(hidden, 0) @ state["projector.2.weight"].T
  expected += state["projector.2.bias"]
  np.testing.assert_allclose(z, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_the_directory_is_that_of_a_finished_run(tmp_path):
  state, source = tiny_state(), tiny.source()
  path = imported(tmp_path, state)
  assert json.loads((path / "config.json").read_text())["model"]["width"] == 2
  opened = open_run(path, source=source)
  assert opened.step == 12  # 48 images in batches of 16, four epochs
  back = interop.to_torch(jax.device_get(opened.variables))
  assert back.keys() == state.keys()
  for name, array in state.items():
    np.testing.assert_array_equal(back[name], array)
  assert execute.run(knn.evaluate, path, source=source)["step"] == 12
  assert (
    loop.train(tiny.config(backbone="resnet10"), path, source) == path
  )  # nothing is left to do
  with pytest.raises(InputError, match="has a checkpoint already"):
    imported(tmp_path, state)


@pytest.mark.parametrize(("classes", "options"), [(0, {}), (5, {"classifier": False})])
def test_without_a_classifier_the_probe_is_zero(tmp_path, classes, options):
  path = imported(tmp_path, tiny_state(classes=classes), **options)
  probe = open_run(path, source=tiny.source()).variables["params"]["probe"]
  assert probe["kernel"].shape == (16, 2)
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(probe))


@pytest.mark.parametrize(
  ("state", "says"),
  [
    (
      lambda: tiny_state(width=4),
      r"model.width: 4 in the file, 2 in the config.*--config.model.width=4",
    ),
    (
      lambda: tiny_state(stem="imagenet", projector_out=9),
      "model.stem: imagenet in the file.*projector_out: 9 in the file, 8",
    ),
    (lambda: tiny_state(classes=3), "classes: 3 in the file, 2 in tiny.*--noclassif"),
    (
      lambda: tiny_state() | {"backbone.conv1.weight": np.ones((2, 3, 3, 3))},
      "channels: 3 in the file, 1 in tiny",
    ),
    (
      lambda: tiny_state() | {"predictor.0.weight": np.ones((2, 2))},
      "x.safetensors: .*1 unexpected .predictor.0.weight",
    ),
  ],
)
def test_what_does_not_fit_is_refused_whole(tmp_path, state, says):
  with pytest.raises(InputError, match=says):
    imported(tmp_path, state())
  assert not (tmp_path / "run").exists()


def test_a_kill_before_the_checkpoint_is_mended_by_a_second_call(tmp_path, monkeypatch):
  def killed(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(checkpoint.Checkpoints, "save", killed)
    imported(tmp_path, tiny_state())
  path = imported(tmp_path, tiny_state())
  assert open_run(path, source=tiny.source()).step == 12


def test_exports(tmp_path):
  state, source = tiny_state(), tiny.source()
  path = imported(tmp_path, state)
  out = tmp_path / "new folder" / "ncl.safetensors"
  torch_exchange.export_variables(path, out, source=source)
  written = safetensors.numpy.load_file(out)
  assert written.keys() == state.keys()
  for name, array in state.items():
    np.testing.assert_array_equal(written[name], array)
  ours = tmp_path / "ours.safetensors"
  torch_exchange.export_variables(path, ours, names="ours", source=source)
  kernel = safetensors.numpy.load_file(ours)["params/projector/linear1/kernel"]
  np.testing.assert_array_equal(kernel, state["projector.0.weight"].T)

  file = tmp_path / "test.npz"
  test = source.split("test")
  names = [source.class_names[k] for k in test.labels]
  files = decode.Files([f"/data/{name}/🐈 {i}" for i, name in enumerate(names)], 8)
  named = dataclasses.replace(test, files=dataclasses.replace(files, root="/data"))
  splits = source.splits | {"test": named}
  torch_exchange.export_features(
    path, file, split="test", source=dataclasses.replace(source, splits=splits)
  )
  with np.load(file, allow_pickle=False) as opened:
    arrays = dict(opened)
  texts = {name: arrays.pop(name) for name in ("class_names", "names")}
  kinds = {name: (a.dtype.name, a.shape) for name, a in arrays.items()}
  assert kinds == {
    "h": ("float32", (21, 16)),
    "z": ("float32", (21, 8)),
    "f": ("float32", (21, 8)),
    "labels": ("int32", (21,)),
    "ids": ("int64", (21,)),
  }
  for label, name in zip(arrays["labels"], texts["names"], strict=True):
    assert texts["class_names"][label] == name.partition("/")[0]
  np.testing.assert_array_equal(arrays["labels"], source.split("test").labels)
  z = np.maximum(arrays["z"], 0)
  norms = np.linalg.norm(z, axis=1, keepdims=True)
  f = np.divide(z, norms, out=np.zeros_like(z), where=norms > 0)
  np.testing.assert_allclose(arrays["f"], f, atol=1e-6)
  hidden = np.maximum(
    arrays["h"] @ state["projector.0.weight"].T + state["projector.0.bias"], 0
  )
  np.testing.assert_allclose(
    hidden @ state["projector.2.weight"].T + state["projector.2.bias"],
    arrays["z"],
    rtol=1e-4,
  )
  for write, place in (
    (torch_exchange.export_variables, out),
    (torch_exchange.export_features, file),
  ):
    with pytest.raises(InputError, match="exists already"):
      write(path, place, source=source)
    with pytest.raises(InputError, match="must end in"):
      write(path, tmp_path / "x.bin", source=source)
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    "new folder",
    "ours.safetensors",
    "run",
    "test.npz",
    "x.safetensors",
  ]
