"""From work directories to the explorer's file, and to figures."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
import tiny

from ncl_jax import metrics
from ncl_jax.errors import InputError
from ncl_jax.evaluators import sepin
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import explorer as explorer_lib
from ncl_jax.experiments import figures as figures_lib
from ncl_jax.report import figures
from ncl_jax.report.explorer import data
from ncl_jax.report.figures import runs as runs_lib
from ncl_jax.training import loop


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run")
  config = tiny.config()
  config.data.source = f"arrays:{tiny.npz(folder / 'tiny.npz')}"
  config.train.epochs = 2
  config.optimizer.warmup_epochs = 1.0
  return loop.train(config, folder / "pair" / "ncl", tiny.source())


def read(path):
  """The data of a page."""
  text = path.read_text("utf-8")
  found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
  return json.loads(found[1])


def array(packed):
  raw = base64.b64decode(packed["data"])
  return np.frombuffer(raw, f"<{packed['type']}").reshape(-1, packed["width"])


def test_two_sides_of_a_run(workdir, tmp_path):
  path = explorer_lib.explore(workdir, workdir, out=tmp_path / "e.html", sepin=True)
  content = read(path)
  assert content["images"] == 21 and content["note"] == ""
  assert content["classes"] == ["0", "1"]
  assert [side["label"] for side in content["sides"]] == ["NCL pair/ncl, step 6"] * 2
  run = open_run(workdir)
  test = run.extract("test")
  f = test.layer("f", run.config.loss.transform)
  for side in content["sides"]:
    arrays = side["arrays"]
    np.testing.assert_allclose(
      array(arrays["expected"])[:, 0], metrics.expected_activation(f), atol=1e-5
    )
    order = np.argsort(-f, axis=0, kind="stable")[0]
    best = array(arrays["top_values"])[:, 0] / data.SCALE
    np.testing.assert_allclose(best, f.max(0), atol=1 / data.SCALE)
    live = f.max(0) > 1e-5
    assert (array(arrays["top"])[live, 0] == order[live]).mean() > 0.5  # but for ties
    np.testing.assert_array_equal(array(content["labels"])[:, 0], test.labels)


def test_sepin_of_each_dimension_is_that_of_the_program(workdir):
  """All dimensions' mean is `sepin@all` of one batch for each half."""
  run = open_run(workdir)
  scores = sepin.dimensions(run)
  assert scores.shape == (run.config.model.projector_out,)
  expected = sepin.evaluate(run)["f"]["sepin@all"]
  assert scores.mean() == pytest.approx(expected, rel=1e-4)


def test_of_a_large_set_some_images_are_shown(workdir, monkeypatch):
  monkeypatch.setattr(data, "IMAGES", 10)
  content = read(explorer_lib.explore(workdir))
  assert content["images"] == 10
  assert content["note"] == "10 of 21 test images"
  assert [side["label"] for side in content["sides"]] == ["NCL"]
  assert "sepin" not in content["sides"][0]["arrays"]
  # Which, does not depend on the call.
  assert content == read(explorer_lib.explore(workdir, out=workdir / "again.html"))
  assert (workdir / "explorer.html").is_file()


def test_runs_of_other_data_are_refused(workdir, tmp_path):
  other = tmp_path / "other"
  other.mkdir()
  text = (workdir / "config.json").read_text()
  (other / "config.json").write_text(text.replace("tiny.npz", "moved.npz"))
  (other / "checkpoints").symlink_to(workdir / "checkpoints")
  with pytest.raises(InputError, match=r"of different data: .*tiny.*moved"):
    explorer_lib.explore(workdir, other)
  assert not (other / "explorer.html").exists()


@pytest.mark.parametrize("tested", [False, True])
def test_figures_of_two_runs_as_png_and_svg(workdir, tmp_path, monkeypatch, tested):
  compared = []
  monkeypatch.setattr(figures, "draw", lambda c: compared.append(c) or ())
  monkeypatch.setattr(runs_lib, "map_of", lambda x, seed: x[:, :2])
  method, other = (
    shutil.copytree(workdir, tmp_path / "pair" / name) for name in ("ncl", "other")
  )
  for path in (method, other):
    with (path / "metrics.jsonl").open("a") as file:
      file.write('{"step": 6, "test_top1": 0.5}\n' * tested)
  files = figures_lib.draw(method, other, tmp_path / "figures")
  names = ["activations", "maps", *["classifiers"] * tested]
  assert [file.name for file in files] == [
    f"{name}.{form}" for name in names for form in ("png", "svg")
  ]
  assert all(file.stat().st_size > 5000 for file in files)
  (comparison,) = compared  # what the report's own figures are drawn from
  np.testing.assert_array_equal(comparison.images, tiny.source().split("test").images)
  assert [row["step"] for row in comparison.method.curve][-1] == 6
  assert comparison.method.label == "NCL pair/ncl, step 6"
