"""Results of data that have changed are measured anew; moved data are the same."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tiny
from programs import call

from ncl_jax import config as config_lib
from ncl_jax.config import supervised_recipe
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import execute, knn, other_sets, registry, supervised
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.experiments import explorer as explorer_lib
from ncl_jax.experiments import result_cache, sweep
from ncl_jax.runtime import jsonl, sharding
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib


def relabelled(source, name):
  """The labels of a split in another order."""
  part = source.split(name)
  labels = np.random.default_rng(0).permutation(part.labels)
  assert not np.array_equal(labels, part.labels)
  splits = source.splits | {name: dataclasses.replace(part, labels=labels)}
  return dataclasses.replace(source, splits=splits)


def save(path, source):
  path.parent.mkdir(exist_ok=True)
  arrays = {}
  for name, part in source.splits.items():
    arrays |= {f"{name}_images": part.images, f"{name}_labels": part.labels}
  np.savez(path, **arrays)
  return f"arrays:{path}"


def test_a_sweep_measures_again_when_the_test_labels_have_changed(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(sweep.loop, "train", tiny.as_trained)
  config = tiny.config()
  # No statistics of the data in the settings: only the data themselves tell.
  config.augment.mean, config.augment.std = (0.3,), (0.2,)
  grid, found = "seed=0", []
  for change in (False, True):
    source = tiny.source()
    source = relabelled(source, "test") if change else source
    config.data.source = save(tmp_path / "d.npz", source)
    sweep.sweep(config, tmp_path / "sweep", grid, evaluators=("knn",))
    (row,) = jsonl.read(tmp_path / "sweep" / "sweep.jsonl")
    opened = open_run(tmp_path / "sweep" / "seed=0", source=source)
    alone = knn.evaluate(opened.config, opened.variables, source, opened.mesh)
    assert row["knn"]["h"]["accuracy"] == alone["h"]["accuracy"]
    found.append({name: row[name]["h"] for name in ("knn", "untrained", "pixels")})
  assert found[0]["pixels"] != found[1]["pixels"]
  assert found[0]["knn"] != found[1]["knn"]


def test_finetuning_begins_anew_when_the_labels_have_changed(tmp_path):
  source = tiny.source(train=40)
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding.make_mesh(jax.devices()[:1])
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  short = supervised_recipe.Recipe(
    epochs=1, warmup_epochs=0.0, batch_size=16, optimizer="sgd", learning_rate=1.0
  )

  def heads(source, folder):
    rest = {"layers": ("h",), "frozen": True, "folder": folder}
    return supervised.train(short, Run(config, variables, source, mesh), **rest).heads

  first = heads(source, tmp_path / "kept")
  again = heads(relabelled(source, "train"), tmp_path / "kept")
  afresh = heads(relabelled(source, "train"), None)
  jax.tree.map(np.testing.assert_array_equal, again, afresh)
  assert not np.array_equal(first["h"]["kernel"], again["h"]["kernel"])
  (tmp_path / "moved").mkdir()
  moved = dataclasses.replace(source, name="elsewhere")
  jax.tree.map(np.testing.assert_array_equal, heads(moved, tmp_path / "kept"), first)
  assert len(list((tmp_path / "kept").iterdir())) == 2


def test_a_run_is_not_gone_on_with_when_a_pixel_has_changed(tmp_path):
  config, source = tiny.config(), tiny.source()
  config.augment.mean, config.augment.std = (0.3,), (0.2,)
  path = tiny.as_trained(config, tmp_path / "run", source)
  part = source.split("train")
  images = part.images.copy()
  images[-1, -1, -1] ^= 1
  splits = source.splits | {"train": dataclasses.replace(part, images=images)}
  with pytest.raises(InputError, match="48, with other pixels. Bring that back"):
    workdir_lib.prepare(config, path, dataclasses.replace(source, splits=splits))
  # A data.json of an earlier version knows nothing of pixels.
  known = json.loads((path / "data.json").read_text())
  del known["pixels"]
  (path / "data.json").write_text(json.dumps(known))
  workdir_lib.prepare(config, path, dataclasses.replace(source, splits=splits))


def test_a_comparisons_key_holds_the_data_and_those_of_the_transfer(
  tmp_path, monkeypatch
):
  config, source = tiny.config(), tiny.source()
  config.eval.transfer = save(tmp_path / "other.npz", tiny.source(train=20, test=10))
  config = config_lib.resolve(config, source)
  variables = {"params": {"a": np.zeros(2)}}

  def key(name, source=source):
    run = Run(config, variables, source, None, tmp_path, 12)
    return result_cache.inputs(registry.registered()[name], (run,))

  assert key("knn") == key("knn", dataclasses.replace(source, name="elsewhere"))
  for split in ("train", "test"):
    assert key("knn") != key("knn", relabelled(source, split))
  before = key("selection"), key("knn")
  save(tmp_path / "other.npz", tiny.source(train=20, test=11))
  assert (key("selection") != before[0], key("knn") == before[1]) == (True, True)


def test_sets_of_shifted_images_are_in_the_key(tmp_path):
  config, source = tiny.config(), tiny.source()
  other = dataclasses.replace(tiny.source(), class_names=source.class_names)
  arrays = {}
  for name, part in other.splits.items():
    arrays[f"{name}_images"] = part.images
    arrays[f"{name}_labels"] = np.array(source.class_names)[part.labels]
  np.savez(tmp_path / "shifted.npz", **arrays)
  spec = f"arrays:{tmp_path / 'shifted.npz'}"
  config.eval.ood = (spec,)
  first = other_sets.shifted_digests(config, source)
  assert set(first) == {spec}
  arrays["test_images"][0, 0, 0] ^= 1
  np.savez(tmp_path / "shifted.npz", **arrays)
  assert other_sets.shifted_digests(config, source)[spec] != first[spec]


@pytest.fixture
def moved(tmp_path):
  """A run, and the new place of its data."""
  config, source = tiny.config(), tiny.source()
  config.data.source = save(tmp_path / "a" / "d.npz", source)
  source = workdir_lib.load_source(config)
  path = tiny.as_trained(config, tmp_path / "run", source)
  config.data.source = f"arrays:{tmp_path / 'b' / 'd.npz'}"
  return config, path, source


def test_moved_data_are_named_by_a_flag_and_known_by_what_they_hold(moved, tmp_path):
  config, path, _ = moved
  there = f"--workdir={path}"
  code, _, said = call("knn", there)
  assert code == 0, said
  (tmp_path / "a").rename(tmp_path / "b")
  for name in ("knn", "explore"):
    code, _, said = call(name, there)
    assert code == 2 and "--data_source=arrays:PATH" in said, said
  flag = f"--data_source={config.data.source}"
  code, _, said = call("knn", there, flag)
  assert code == 0, said
  first, second = jsonl.read(path / "eval" / "knn.jsonl")
  assert first["h"] == second["h"] and first["data"] == second["data"]
  code, _, said = call("explore", there, flag)
  assert code == 0 and (path / "explorer.html").is_file(), said
  # Another set is not taken for it, and the next program looks at the old place.
  other = save(tmp_path / "c" / "d.npz", relabelled(tiny.source(), "train"))
  code, _, said = call("knn", there, f"--data_source={other}")
  assert code == 2 and "with other labels" in said, said
  code, _, said = call("knn", there)
  assert code == 2 and "--data_source" in said


def test_a_run_goes_on_with_moved_data_and_with_no_others(moved, tmp_path):
  config, path, source = moved
  before = (path / "config.json").read_text()
  with pytest.raises(
    InputError, match="If the data were moved, .*--config.data.source"
  ):
    workdir_lib.load_source(config)
  (tmp_path / "b").mkdir()
  other = relabelled(source, "train")
  with pytest.raises(InputError, match="data.source: .*d.npz' here"):
    workdir_lib.prepare(config, path, other)
  assert (path / "config.json").read_text() == before
  (tmp_path / "a" / "d.npz").rename(tmp_path / "b" / "d.npz")
  assert tiny.as_trained(config, path, workdir_lib.load_source(config)) == path
  assert workdir_lib.read_config(path).data.source == config.data.source
  (path / "data.json").unlink()  # of a run that knows nothing of its data
  config.data.source = save(tmp_path / "c" / "d.npz", source)
  with pytest.raises(InputError, match="data.source: .*'arrays:.*c/d.npz' here"):
    workdir_lib.prepare(config, path, source)


def test_the_same_set_in_two_places_is_compared_in_the_explorer(moved, tmp_path):
  config, path, source = moved
  save(tmp_path / "b" / "d.npz", source)
  other = tiny.as_trained(config, tmp_path / "other", source)
  assert explorer_lib.explore(path, other, out=tmp_path / "e.html").is_file()
  config.data.source = save(tmp_path / "c" / "d.npz", relabelled(source, "train"))
  third = tiny.as_trained(config, tmp_path / "third", workdir_lib.load_source(config))
  with pytest.raises(InputError, match="the runs are of different data"):
    explorer_lib.explore(path, third, out=tmp_path / "f.html")


def test_a_result_that_cannot_be_kept_is_told(moved):
  _, path, _ = moved
  (path / "eval").write_text("in the way")
  code, _, said = call("knn", f"--workdir={path}")
  assert code == 1 and "the result of knn cannot be written" in said
  row = json.loads(said.strip().splitlines()[-1])
  opened = open_run(path)
  found = knn.evaluate(opened.config, opened.variables, opened.source, opened.mesh)
  assert row["h"]["accuracy"] == found["h"]["accuracy"]
  assert said.count("cannot be written") == 1
  with pytest.raises(Failed, match="cannot be written"):
    execute.run_all(["knn"], path)


def test_files_that_change_are_loaded_anew(tmp_path):
  config = tiny.config()
  config.data.source = save(tmp_path / "d.npz", tiny.source())
  first = workdir_lib.kept_source(config)
  assert workdir_lib.kept_source(config) is first
  save(tmp_path / "d.npz", tiny.source(train=50))
  assert workdir_lib.kept_source(config).num_examples("train") == 50


def test_a_copied_run_keeps_its_results_apart(moved, tmp_path):
  """The digest of the data stands in each row."""
  _, path, source = moved
  copy = shutil.copytree(path, tmp_path / "copy")
  rows = [
    execute.run(knn.evaluate, run, source=data)
    for run, data in ((path, source), (copy, relabelled(source, "test")))
  ]
  assert rows[0]["data"] != rows[1]["data"]
