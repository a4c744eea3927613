"""benchmarks/collect.py, fashion.py: the page has the numbers that were measured."""

import numpy as np
import pytest

from benchmarks import collect, fashion
from ncl_jax import config as config_lib
from ncl_jax import writer
from ncl_jax.errors import InputError

PROBES = {"cl": [0.8123456, 0.7], "ncl": [0.82, 0.74], "untrained": [0.6, 0.61]}


@pytest.fixture
def workdir(tmp_path):
  """What `launch.compare` leaves, of one program, one of its lines measured twice."""
  rows = [
    {
      "of": {"arm": arm, "seed": seed, "program": "linear_probe"},
      "result": {
        "program": "linear_probe",
        "settings": {"split": "test"},
        "h": {"accuracy": value, "grid": [1, 2]},
      },
    }
    for arm, values in PROBES.items()
    for seed, value in enumerate(values)
  ]
  old = {"of": rows[0]["of"], "result": {"h": {"accuracy": 0.0}}}
  writer.write(tmp_path / "measured.jsonl", [old, *rows])
  run = tmp_path / "seed0" / "cl"
  run.mkdir(parents=True)
  config = config_lib.defaults()
  config.model.width = 8
  (run / "config.json").write_text(config_lib.to_json(config))
  writer.write(run / "speed.jsonl", [{"steps": 3}])
  return tmp_path


def test_collected_lines(workdir):
  lines = collect.comparison({str(workdir): "abc"})
  assert [(line["arm"], line["seed"]) for line in lines] == [
    (arm, seed) for arm in PROBES for seed in (0, 1)
  ]
  first = lines[0]
  assert first["speed"] == [{"steps": 3}]
  assert first["changed"] == {"model.width": 8}
  # The last measurement counts, in five digits, without grids and settings.
  seen = {"commit": "abc", "h": {"accuracy": 0.81235}}
  assert first["results"] == {"linear_probe": seen}
  assert "changed" not in lines[1]


def test_what_was_run_again_replaces_what_was_there(workdir, tmp_path):
  again = tmp_path / "again"
  again.mkdir()
  of = {"arm": "ncl", "seed": 1, "program": "linear_probe"}
  rows = [{"of": of, "result": {"h": {"accuracy": 0.5}}}]
  writer.write(again / "measured.jsonl", rows)
  lines = collect.comparison({str(workdir): "abc", str(again): "def"})
  seen = {(x["arm"], x["seed"]): x["results"]["linear_probe"] for x in lines}
  assert seen["ncl", 1] == {"commit": "def", "h": {"accuracy": 0.5}}
  assert seen["ncl", 0]["commit"] == "abc" and len(lines) == 6
  with pytest.raises(InputError, match="nothing.*no results"):
    collect.comparison({str(tmp_path / "nothing"): "abc"})
  with pytest.raises(InputError, match="no results"):
    fashion.results(tmp_path / "nothing")


def test_paired_table(workdir, tmp_path):
  writer.write(tmp_path / "compare.jsonl", collect.comparison({str(workdir): "abc"}))
  arms = fashion.results(tmp_path)
  place = ("probe, %", ("linear_probe", "h", "accuracy"), 100)
  nowhere = ("other", ("knn", "h", "accuracy"), 100)
  *_, line = fashion.paired(arms, [place, nowhere])
  cells = [cell.strip() for cell in line.strip("|").split("|")]
  assert cells[0] == "probe, %" and len(cells) == 5
  cl = 100 * np.array([0.81235, 0.7])
  assert cells[1] == f"{cl.mean():.3g} ± {cl.std(ddof=1):.2g}"
  # t with one degree of freedom: 12.706; the differences are 0.765 and 4 points.
  assert cells[3] == "+2.38 [-18.2, +22.9]"
  assert cells[4] == "60.5 ± 0.71"


def test_sweep_table():
  cells = [
    {
      "settings": {"loss.map": name, "seed": seed},
      "feature_stats": {"f": {"purity": purity, "sparsity": 0.5}},
    }
    for name, values in (("relu", (0.5, 0.7)), ("exp", (0.2, 0.3)))
    for seed, purity in enumerate(values)
  ]
  head, _, relu, exp = fashion.sweep(cells)
  place = [cell.strip() for cell in head.strip("|").split("|")].index("purity 3 %")
  assert relu.strip("|").split("|")[place].strip() == "60"
  assert "50, 70" in relu and "20, 30" in exp
