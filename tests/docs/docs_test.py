"""The guide is true: snippets run; commands, flags, settings and files exist."""

import importlib
import importlib.util
import json
import pathlib
import re
import shlex

import jax
import numpy as np
import pytest
import tiny
import yaml
from programs import ROOT, call

from benchmarks import measure
from benchmarks import run as benchmarks_page
from ncl_jax import cli, methods
from ncl_jax import config as config_lib
from ncl_jax.config import recipes

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
# Finished experiments: their links hold, their settings are those of their day.
STUDIES = sorted((ROOT / "studies").rglob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def name(page):
  return str(page.relative_to(ROOT))


def blocks(page, language):
  return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", ["your_model.md", "your_embeddings.md"])
def test_snippets_run_one_after_the_other(page, tmp_path, monkeypatch):
  """In the order of the page; what needs a library that is not here is left out."""
  monkeypatch.chdir(tmp_path)  # some write files
  names = {}
  for text in blocks(DOCS / page, "python"):
    if "equinox" in text and importlib.util.find_spec("equinox") is None:
      compile(text, page, "exec")
      continue
    exec(compile(text, page, "exec"), names)
    if "gradient" in names:
      # Each way of writing a network gives a loss and a gradient that moves it.
      leaves = [np.asarray(x) for x in jax.tree.leaves(names.pop("gradient"))]
      assert np.isfinite(names["loss"]) and all(np.abs(x).max() > 1e-3 for x in leaves)


COMMANDS = sorted(
  {
    (name(page), " ".join(line.split("#")[0].split()))
    for page in PAGES
    for text in blocks(page, "") + blocks(page, "sh")
    for line in text.replace("\\\n", " ").splitlines()
    if re.match(r"(?:\S+=\S+ )*ncl \w", line.strip())
  }
)
HELP: dict[str, set[str]] = {}


def flags_of(program):
  if program not in HELP:
    code, out, err = call(program, "--help")
    assert code == 0, err
    HELP[program] = set(re.findall(r"^  --(?:\[no\])?([\w.]+)", out, re.M))
  return HELP[program]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_have_programs_flags_settings_and_files(page, command):
  # The variables of a shell's loop.
  command = command.replace("$method", "ncl").replace("$seed", "0")
  words = shlex.split(command)
  program = words[words.index("ncl") + 1]
  assert (ROOT / "launch" / f"{program}.py").is_file()
  for word in words[words.index("ncl") + 2 :]:
    if word in ("&", "&&", "|", ">", ";"):
      break  # the rest is the shell's
    flag, _, value = word.removeprefix("--").partition("=")
    if flag.startswith("config."):
      assert flag.removeprefix("config.") in config_lib.known_keys(), word
      continue
    if program == "reproduce" and (ROOT / "configs" / f"{word}.py").is_file():
      continue
    known = flags_of(program)
    assert word.startswith("--") and {flag, flag.removeprefix("no")} & known, word
    if flag == "config" and value != "...":
      file, _, method = value.partition(":")
      assert recipes.load(file, method)


@pytest.mark.parametrize("page", [*PAGES, *STUDIES], ids=name)
def test_links_and_files_exist(page):
  text = page.read_text()
  for target in re.findall(r"\]\(([^)\s]+)\)", text):
    if "://" not in target:
      file, _, anchor = target.partition("#")
      found = (page.parent / file) if file else page
      assert found.exists(), target
      if anchor:
        headings = re.findall(r"^#+ (.*)$", found.read_text(), re.M)
        # As GitHub and MkDocs make them: without punctuation.
        plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
        assert anchor in {heading.replace(" ", "-") for heading in plain}, target
  folders = "benchmarks|configs|launch|ncl_jax|studies|tests"
  for file in re.findall(rf"`((?:{folders})/[\w/]+\.\w+)`", text):
    if "NAME" not in file:
      assert (ROOT / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_settings_exist(page):
  text = page.read_text()
  sections = "|".join(config_lib.defaults())
  for key in re.findall(rf"`(?:--config\.)?((?:{sections})\.[a-z_0-9]+)[`=]", text):
    file_of_ours = any(key.endswith(end) for end in (".py", ".json", ".jsonl"))
    section, leaf = key.split(".", 1)
    if file_of_ours or key in config_lib.known_keys():
      continue
    # Not a setting: then a function of the module of the same name.
    assert hasattr(importlib.import_module(f"ncl_jax.{section}"), leaf), key


@pytest.mark.parametrize(
  "module",
  sorted(
    {m for page in PAGES for m in re.findall(r"^::: (\S+)$", page.read_text(), re.M)}
  ),
)
def test_the_reference_names_modules_with_docstrings(module):
  assert importlib.import_module(module).__doc__


def test_the_site_has_every_page_that_it_names():
  settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

  def pages(entry):
    if isinstance(entry, dict):
      entry = list(entry.values())
    if isinstance(entry, list):
      return [page for part in entry for page in pages(part)]
    return [entry]

  named = pages(settings["nav"])
  assert len(named) == len(set(named)) >= 15
  assert all((DOCS / page).is_file() for page in named)


def test_messages_in_the_table_are_those_of_the_programs():
  """The first words of each are in the code, up to what is filled in."""
  source = "".join(
    re.sub(r'"\s*\n\s*f?"', "", p.read_text()) for p in (ROOT / "ncl_jax").rglob("*.py")
  )
  rows = re.findall(r"^\| `([^`]+)` \|", (DOCS / "resuming.md").read_text(), re.M)
  assert len(rows) >= 9
  for text in rows:
    words = max(re.split(r"\bN\b|\bM\b|nan", text), key=len).strip()
    assert words in source, text


def test_every_data_form_and_method_is_in_the_guide():
  from ncl_jax import data

  text = "".join(pathlib.Path(page).read_text() for page in PAGES)
  assert all(form.partition(":")[0] in text for form in data.FORMS)
  recipes = (DOCS / "recipes.md").read_text()
  assert all(f"`{method}`" in recipes for method in methods.VARIANTS)


# A run of seconds: the page's commands stay as they are, and these follow.
SMALL = (
  *tiny.FLAGS,
  "--config.train.epochs=2",
  "--config.optimizer.warmup_epochs=1",
)


@pytest.mark.slow
def test_the_first_run_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  steps = [c for page, c in COMMANDS if page == "docs/first_run.md"]
  text = (DOCS / "first_run.md").read_text().replace("\\\n", " ")
  steps.sort(key=lambda c: " ".join(text.split()).index(c))
  assert len(steps) == 7
  for command in steps:
    program, *flags = command.replace("runs", str(tmp_path)).split()[1:]
    if program == "check":
      continue  # has tests of its own
    small = SMALL if program == "train" else ()
    code, _, err = call(program, *flags, *small)
    assert code == 0, (command, err)
  rows = (tmp_path / "ncl" / "eval" / "knn.jsonl").read_text().splitlines()
  assert len(rows) == 1 and (tmp_path / "ncl" / "explorer.html").stat().st_size > 10_000


def test_the_page_of_measurements_is_made_of_their_data():
  page = (DOCS / "performance.md").read_text()
  assert page == benchmarks_page.render(DOCS / "data" / "performance")


def test_the_guide_has_the_numbers_of_the_loss_and_of_accumulation():
  """Those of docs/data/performance, from which docs/performance.md is made."""
  text = (DOCS / "training.md").read_text()
  folder = DOCS / "data" / "performance"

  def line(label):
    (cells,) = re.findall(rf"^\| {re.escape(label)} \|(.*)\|$", text, re.M)
    return [cell.strip() for cell in cells.split("|")]

  rows = {
    row["B"]: row
    for row in json.loads((folder / "loss.json").read_text())["rows"]
    if row[""] == "NT-Xent" and row["D"] == 256
  }
  sizes = [int(cell.replace(",", "")) for cell in line("rows (two an image)")]
  for label, key in (
    ("released formula, MiB", "released MiB"),
    ("plain, MiB", "plain MiB"),
    ("tiled, MiB", "tiled MiB"),
    ("ring over 8 devices, MiB on each", "ring MiB"),
  ):
    found = [rows[size].get(key) for size in sizes]
    assert line(label) == ["" if x is None else f"{x:,.0f}" for x in found]
  ratios = [rows[size].get("tiled/plain") for size in sizes]
  expected = ["" if x is None else measure.shown(x) for x in ratios]
  assert line("tiled, CPU time relative to plain") == expected
  rows = json.loads((folder / "accumulation.json").read_text())["rows"]
  assert line("k") == [str(row["chunks"]) for row in rows]
  assert line("MiB") == [f"{row['temp MiB']:.0f}" for row in rows]
  assert line("relative to k = 1") == [f"{row['relative to 1']:.2g}" for row in rows]
