"""The files of a report: strict JSON, a page that stands alone, the edge cases."""

import dataclasses
import html.parser
import json
import pathlib
import re
import subprocess
import sys
import unittest.mock

import numpy as np
import pytest
import report_example as example

from ncl_jax import report
from ncl_jax.report import Metric, figures

VOID = {"meta", "link", "img", "source", "br"}
ODD = '<script>alert("1")</script> & $x_1$ | `a` *b* 猫'


class Page(html.parser.HTMLParser):
  """Tags, links, texts and table cells of a page; refuses tags that do not close."""

  def __init__(self, text: str):
    super().__init__()
    self.open: list[str] = []
    self.tags: list[tuple[str, dict]] = []
    self.links: list[str] = []
    self.rows: list[list[str]] = []
    self.text = ""
    self.feed(text)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.tags.append((tag, attrs))
    self.links += [attrs[k] for k in ("src", "srcset", "href") if k in attrs]
    if tag == "tr":
      self.rows.append([])
    if tag in ("td", "th"):
      self.rows[-1].append("")
    if tag == "small":
      self.rows[-1][-1] += " "
    if tag not in VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text += data
    inside = {"td", "th"} & set(self.open)
    if inside and "p" not in self.open:
      self.rows[-1][-1] += data


def strict(text: str) -> dict:
  """JSON as the standard has it: no NaN, no Infinity."""

  def refuse(name):
    raise AssertionError(f"{name} is not JSON")

  return json.loads(text, parse_constant=refuse)


def check_folder(folder: pathlib.Path) -> tuple[dict, Page]:
  """What holds for every report."""
  content = strict((folder / "report.json").read_text())
  page = Page((folder / "index.html").read_text("utf-8"))
  for link in page.links:
    assert link == "data:," or (folder / link).is_file(), link
  for tag, attrs in page.tags:
    assert tag not in ("script", "iframe")
    assert "style" not in attrs
    if tag == "img":
      assert len(attrs["alt"]) > 20
      assert int(attrs["width"]) > 100
  listed = {f[key] for f in content["figures"] for key in ("file", "narrow_file")}
  on_disk = {f"figures/{path.name}" for path in (folder / "figures").iterdir()}
  assert listed == on_disk
  markdown = (folder / "report.md").read_text("utf-8")
  shown = re.findall(r"\]\((figures/\w+\.png)\)", markdown)
  assert shown == [figure["file"] for figure in content["figures"]]
  assert not [path for path in folder.rglob("*") if path.suffix == ".tmp"]
  return content, page


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """The example's report, once: (comparison, folder, what `write` returned)."""
  folder = tmp_path_factory.mktemp("report")
  comparison = example.make()
  pictures = example.pictures()  # before it is replaced: it calls `draw` itself
  with unittest.mock.patch.object(figures, "draw", lambda _: pictures):
    return comparison, folder, report.write(folder, comparison)


def test_json_is_strict_and_what_write_returned(written):
  _, folder, returned = written
  content, _ = check_folder(folder)
  assert content == returned


def test_the_explorer_shows_the_two_methods(written):
  comparison, folder, _ = written
  text = (folder / "explorer.html").read_text("utf-8")
  content = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
  assert content["title"] == comparison.title
  assert [side["label"] for side in content["sides"]] == ["CL", "NCL"]
  assert content["classes"] == list(comparison.class_names)
  assert content["images"] == 20
  assert "explorer.html" in check_folder(folder)[1].links
  assert "](explorer.html)" in (folder / "report.md").read_text("utf-8")


def test_json_holds_every_number(written):
  comparison, _, content = written
  assert content["title"] == comparison.title
  assert content["facts"] == dict(comparison.facts)
  assert content["remarks"] == list(comparison.remarks)
  assert content["seeds"] == [3, 5, 7]
  assert content["methods"] == {"cl": "CL", "ncl": "NCL", "untrained": "untrained"}
  assert (content["baseline"], content["method"]) == ("cl", "ncl")
  assert "fewer than 5" in content["claim"]
  assert list(content["metrics"]) == [metric.key for metric in comparison.metrics]
  knn = content["metrics"]["knn_h"]
  assert knn["methods"]["ncl"]["seeds"] == [0.910, 0.930, 0.950]
  assert knn["methods"]["ncl"]["mean"] == pytest.approx(0.930)
  assert knn["methods"]["ncl"]["standard_deviation"] == pytest.approx(0.020)
  assert knn["chance"] == 0.25
  assert knn["note"] == "k = 20."
  assert (knn["unit"], knn["better"], knn["group"]) == ("%", "higher", "Accuracy")
  half = 4.302652729911275 * 0.01 / 3**0.5
  assert knn["difference"]["mean"] == pytest.approx(0.02)
  assert knn["difference"]["interval"] == pytest.approx([0.02 - half, 0.02 + half])
  assert knn["difference"]["verdict"] == ""
  probe = content["metrics"]["probe_h"]
  assert probe["methods"]["ncl"]["seeds"] == [0.95, None, 0.97]
  assert probe["difference"]["pairs"] == 2
  assert probe["chance"] is None
  missing = {"seeds": [], "mean": None, "standard_deviation": None, "expected": None}
  assert probe["methods"]["untrained"] == missing
  assert content["metrics"]["sparsity"]["methods"]["ncl"]["expected"] == 0.93


def test_figures_are_named_with_captions(written):
  _, folder, content = written
  names = [pathlib.Path(figure["file"]).stem for figure in content["figures"]]
  assert names == list(figures.NAMES)
  page = (folder / "index.html").read_text("utf-8")
  markdown = (folder / "report.md").read_text("utf-8")
  for figure in content["figures"]:
    assert all(figure[key] for key in ("title", "caption", "description"))
    assert f"<h2>{figure['title']}</h2>" in page
    assert f"## {figure['title']}\n" in markdown


def test_page_and_markdown_show_the_same_table(written):
  _, folder, _ = written
  _, page = check_folder(folder)
  text = (folder / "report.md").read_text("utf-8")
  lines = [line for line in text.splitlines() if line.startswith("|")]
  cells = [
    [re.sub(r"\\(.)|\*\*", r"\1", cell).strip() for cell in row]
    for row in (
      re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if "---" not in line
    )
  ]
  assert page.rows[0] == ["metric", *cells[0][1:]]
  for ours, theirs in zip(page.rows[1:], cells[1:], strict=True):
    plain = [re.sub(r" \((.*?)\)$", r" \1", cell) for cell in theirs if cell]
    assert ours == plain


def test_page_stands_alone_on_phones_and_in_the_dark(written):
  _, folder, _ = written
  text = (folder / "index.html").read_text("utf-8")
  assert "http" not in text
  style = text.partition("<style>")[2].partition("</style>")[0]
  assert style and "url(" not in style and "@import" not in style
  assert 'name="viewport" content="width=device-width' in text
  assert "prefers-color-scheme: dark" in text
  _, page = check_folder(folder)
  phones = [attrs for tag, attrs in page.tags if tag == "source"]
  assert len(phones) == len(figures.NAMES)
  assert all("max-width" in attrs["media"] for attrs in phones)
  assert ("html", {"lang": "en"}) in page.tags


def test_page_says_what_is_compared_and_claimed(written):
  comparison, folder, _ = written
  _, page = check_folder(folder)
  for sentence in (
    comparison.title,
    "NCL against CL; for comparison: untrained. Seeds: 3, 5, 7.",
    "3 seeds: fewer than 5, so intervals are shown but nothing is claimed.",
    "The control has random weights.",
    "python -m launch.compare --a=b_c",
    "k = 20.",
  ):
    assert sentence in page.text


def test_odd_texts_are_shown_as_they_are(tmp_path):
  metrics = (*example.METRICS[:3], Metric("x", ODD, ODD, "", "lower", ODD))
  comparison = example.make(
    title=ODD,
    facts=((ODD, ODD),),
    remarks=(ODD,),
    metrics=metrics,
    class_names=(ODD, "猫", "", "a very long name that no cell can hold"),
  )
  # Labels beyond the named classes, unlabelled images, and a collapsed NCL besides.
  comparison = dataclasses.replace(comparison, labels=np.arange(20) % 7 - 1)
  comparison = example.with_methods(
    comparison,
    label=lambda method: f"{method.key} {ODD}",
    features=lambda method: method.features * (method.key != "ncl"),
  )
  report.write(tmp_path, comparison)
  content, page = check_folder(tmp_path)
  assert content["title"] == ODD
  assert content["facts"] == {ODD: ODD}
  # Title twice; note, remark, fact (two); group; label; methods and their difference.
  assert page.text.count(ODD) >= 11
  assert any(ODD in cell for cell in page.rows[0])
  markdown = (tmp_path / "report.md").read_text("utf-8")
  assert "<script>" not in markdown
  widths = {
    len(re.split(r"(?<!\\)\|", line))
    for line in markdown.splitlines()
    if line.startswith("|")
  }
  assert widths == {8}


def few_images():
  """Four unlabelled images, one seed, nothing trained, no metric of classes."""
  comparison = example.with_seeds(example.make(), 1)
  methods = tuple(
    dataclasses.replace(method, features=method.features[:4], curve=())
    for method in comparison.methods
  )
  return dataclasses.replace(
    comparison,
    metrics=comparison.metrics[4:],
    methods=methods,
    labels=np.full(4, -1),
    images=np.zeros((4, 5, 3, 3), np.uint8),
    class_names=(),
    chance={},
    expected={},
    remarks=(),
    facts=(),
  )


def nothing_lives():
  """Every method dead, every value NaN."""
  return example.with_methods(
    example.make(),
    features=lambda method: np.zeros_like(method.features),
    values=lambda method: dict.fromkeys(method.values, (example.NAN,) * 3),
  )


def wide_and_long():
  """2,048 dimensions, 60 classes, twelve seeds, four methods in two rows of panels."""
  rng = np.random.default_rng(0)
  n = 120
  f = np.maximum(rng.normal(size=(n, 2048)) - 1.5, 0).astype(np.float32)
  comparison = example.with_seeds(example.make(), 12)
  cl, ncl, control = (
    dataclasses.replace(method, features=f[:, :width])
    for method, width in zip(comparison.methods, (40, 2048, 40), strict=True)
  )
  more = dataclasses.replace(control, key="more", label="k-means on the pixels of it")
  return dataclasses.replace(
    comparison,
    methods=(cl, ncl, control, more),
    labels=np.arange(n) % 60,
    images=rng.integers(0, 256, (n, 4, 4, 3), np.uint8),
    class_names=tuple(f"class {i}" for i in range(60)),
  )


@pytest.mark.parametrize(
  ("make", "without"),
  [
    (few_images, {"accuracy", "curves", "interpretability"}),
    (nothing_lives, {"accuracy", "interpretability"}),
    pytest.param(wide_and_long, set(), marks=pytest.mark.slow),
  ],
)
def test_edges(tmp_path, make, without):
  comparison = make()
  content = report.write(tmp_path, comparison)
  check_folder(tmp_path)
  names = {pathlib.Path(figure["file"]).stem for figure in content["figures"]}
  assert names == set(figures.NAMES) - without
  assert len(report.table(comparison).splitlines()) > len(comparison.metrics)
  if make is few_images:
    assert "Green frame" not in content["figures"][0]["caption"]
    assert content["claim"].startswith("One seed")


def test_a_new_report_replaces_the_old_one(tmp_path, monkeypatch):
  """And only it: foreign files stay, a failure leaves the old one whole."""
  (tmp_path / "figures").mkdir()
  foreign = tmp_path / "figures" / "mine.png"
  foreign.write_bytes(b"mine")
  pictures = example.pictures()[:-1]  # all but the curves
  monkeypatch.setattr(figures, "draw", lambda _: pictures)
  stale = tmp_path / "figures" / "curves_narrow.png"
  stale.write_bytes(b"old")
  report.write(tmp_path, few_images())
  assert not stale.exists()
  assert foreign.read_bytes() == b"mine"
  before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

  def fail(_):
    raise RuntimeError("no memory")

  monkeypatch.setattr(figures, "draw", fail)
  with pytest.raises(RuntimeError, match="no memory"):
    report.write(tmp_path, few_images())
  assert before == {
    path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
  }


def test_neither_pyplot_nor_the_trainer_is_imported():
  """pyplot would choose a backend and hold every figure for the user's session."""
  program = """
import sys
import report_example as example
from ncl_jax.report.figures import results
assert results.curves(example.make()).wide.png
names = ["matplotlib.pyplot", "ncl_jax.training.loop", "tensorflow", "orbax.checkpoint"]
print([name for name in names if name in sys.modules])
"""
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, "-c", program],
    env={"PYTHONPATH": f"{root}:{pathlib.Path(__file__).parent}", "PATH": ""},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == "[]"
