"""The explorer in a real browser: what a person does, and what they then see.

Screenshots lie in the directory that NCL_JAX_SCREENSHOTS names, if it is set.
"""

import os
import pathlib

import browser
import explorer_example as example
import numpy as np
import pytest

from ncl_jax.report import explorer
from ncl_jax.report.explorer import data

pytestmark = pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium here")

WIDE, PHONE = (1280, 860), (390, 800)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
  with browser.started(tmp_path_factory.mktemp("chromium")) as started:
    yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory):
  return explorer.write(tmp_path_factory.mktemp("page") / "e.html", example.make())


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory):
  folder = os.environ.get("NCL_JAX_SCREENSHOTS")
  path = pathlib.Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
  path.mkdir(parents=True, exist_ok=True)
  return path


@pytest.fixture
def page(chromium, file, request, screenshots):
  """The page, freshly opened; a screenshot at the end, and no complaint."""
  chromium.errors.clear()
  chromium.screen(*WIDE)
  chromium.open(file.as_uri())
  yield chromium
  chromium.screenshot(screenshots / f"{request.node.name}.png")
  assert chromium.errors == []


def column(page, number):
  """The texts of one column of the table, from 1."""
  cells = f"document.querySelectorAll('#entries td:nth-child({number})')"
  return page.run(f"[...{cells}].map((cell) => cell.textContent)")


def fill(page, selector, value):
  """Types into a field."""
  page.run(
    f"(() => {{ const field = document.querySelector('{selector}');"
    f" field.value = '{value}'; field.dispatchEvent(new Event('input')); }})()"
  )


def go_back(page, window="window"):
  """As by the browser's button."""
  page.run(
    "new Promise((done) => { history.back();"
    f" {window}.addEventListener('hashchange', () => done(), {{once: true}}); }})"
  )


def test_opens_on_the_most_active_dimension(page):
  _, _, sparse = example.codes()
  most = sparse.mean(axis=0).argmax()
  assert page.text("#detail h2") == f"NCL · dimension {most}"
  assert page.text("h1") == page.run("document.title") == example.TITLE
  assert page.run("document.querySelectorAll('#entries tbody tr').length") == 11
  assert "11 of 12 dimensions" in page.text("#count")  # one is dead
  assert (
    page.run("document.querySelectorAll('script').length") == 3
  )  # no name became one
  # Not named as the purity of an evaluation, which is of more images.
  assert page.text("[data-sort=purity]") == f"top {data.TOP}"


def test_names_show_as_text(page):
  shown = set(column(page, 3))
  assert shown <= set(example.NAMES) and len(shown) > 2
  page.key("i")
  assert page.run("document.querySelectorAll('#entries .cell').length") == 40
  shown = page.run(
    "[...document.querySelectorAll('#entries .caption')].map((c) => c.textContent)"
  )
  assert shown == list(example.NAMES) * 10


def test_sorts(page):
  _, _, sparse = example.codes()
  live = [d for d in range(12) if d != example.DEAD]
  for key, value in [("expected", sparse.mean(0)), ("active", (sparse > 0).sum(0))]:
    order = sorted(live, key=lambda d, value=value: (-value[d], d))
    if key != "expected":  # it opens by that
      page.click(f"[data-sort={key}]")
    assert column(page, 1) == [str(d) for d in order]
  page.click("[data-sort=active]")
  order = sorted(live, key=lambda d: (value[d], d))
  assert column(page, 1) == [str(d) for d in order]
  sorted_by = "document.querySelector('th[aria-sort]')"
  assert page.run(f"{sorted_by}.getAttribute('aria-sort')") == "ascending"
  assert page.run("document.activeElement.dataset.sort") == "active"
  page.click("[data-sort=sepin]")
  shown = [float(x) for x in column(page, 9)]
  assert shown == sorted(shown, reverse=True)


def test_shows_what_a_transformer_looks_at(page, tmp_path):
  page.open(explorer.write(tmp_path / "e.html", example.transformers()).as_uri())
  page.click("tbody .link")
  assert page.run("document.querySelectorAll('canvas').length") == 0
  page.click("#detail .thumb")
  at = int(page.run("document.querySelector('#detail .thumb').dataset.image"))
  alpha = (
    "[...document.querySelectorAll('#detail canvas')].map((c) => [...c.getContext('2d')"
    ".getImageData(0, 0, 3, 3).data].filter((_, i) => i % 4 === 3))"
  )
  first, second = page.run(alpha)
  assert [i for i, x in enumerate(first) if x == 204] == [at % 9]
  assert set(first) == {102, 204} and set(second) == {204}
  # The square in the middle that the network sees: 12 pixels, shown 96 wide.
  box = page.run(
    "(() => { const c = document.querySelector('#detail canvas');"
    " const inner = c.getBoundingClientRect();"
    " const outer = c.parentElement.getBoundingClientRect();"
    " return [inner.x - outer.x, inner.y - outer.y, inner.width, inner.height]; })()"
  )
  assert box == [12, 12, 72, 72]
  assert "its 2 heads" in page.text("#detail")


def test_filters(page):
  fill(page, "#filter", "ALERT")
  assert set(column(page, 3)) == {example.NAMES[1]}
  fill(page, "#filter", "7")
  assert column(page, 1) == ["7"]
  fill(page, "#filter", "no such class")
  assert column(page, 1) == []
  assert "0 of 12" in page.text("#count")
  fill(page, "#filter", "")
  fill(page, "#minimum", "0")
  assert str(example.DEAD) in column(page, 1)
  page.click(f"[data-dimension='{example.DEAD}']")
  assert "no image activates it" in page.text("#detail")


def test_opens_a_dimension(page):
  labels, _, sparse = example.codes()
  page.click("tr[data-dimension='2'] .link")
  assert page.run("location.hash") == "#1/dimension/2"
  order = [n for n in (-sparse[:, 2]).argsort(kind="stable") if sparse[n, 2] > 0][:24]
  shown = page.run(
    "[...document.querySelectorAll('#detail .grid .thumb')].map((t) => t.dataset.image)"
  )
  assert shown == [str(n) for n in order]
  agree = sum(labels[n] == 2 for n in order)
  assert f"{agree} are {example.NAMES[2]}" in page.text("#detail b")
  assert page.run("document.querySelectorAll('#detail .agrees').length") == agree
  assert page.run("document.querySelectorAll('.histogram div').length") == 20
  assert page.run("document.querySelector('tr.open').dataset.dimension") == "2"


def test_opens_an_image_and_goes_back(page):
  page.click("tr[data-dimension='2'] .link")
  page.click("#detail .thumb")
  _, _, sparse = example.codes()
  n = sparse[:, 2].argmax()
  assert page.text("#detail h2") == f"NCL · image {n}"
  active = [d for d in (-sparse[n]).argsort(kind="stable") if sparse[n, d] > 0]
  shown = page.run(
    "[...document.querySelectorAll('.why .link')].map((b) => b.dataset.dimension)"
  )
  assert shown == [str(d) for d in active]
  cosines = sparse @ sparse[n]
  cosines[n] = 0
  near = page.run("document.querySelector('.near .thumb').dataset.image")
  assert cosines[int(near)] == pytest.approx(cosines.max())
  shared = page.run(
    "[...document.querySelector('.near').querySelectorAll('.chips button')]"
    ".map((b) => Number(b.dataset.dimension))"
  )
  parts = sparse[n] * sparse[int(near)]
  assert shared[0] == parts.argmax() and all(parts[d] > 0 for d in shared)
  go_back(page)
  assert page.text("#detail h2") == "NCL · dimension 2"
  go_back(page)
  assert page.text("#detail h2") == f"NCL · dimension {sparse.mean(axis=0).argmax()}"


def test_an_empty_code(page, file):
  page.open(f"{file.as_uri()}#1/image/{example.EMPTY}")
  assert "The code is empty" in page.text("#detail")
  assert "no other code points its way" in page.text("#detail")


def test_switches_between_the_methods(page):
  page.click("tr[data-dimension='2'] .link")
  rank = column(page, 1).index("2")
  page.click("#sides button")
  assert page.text("#detail h2").startswith("CL · dimension")
  assert page.text("#detail h2").endswith(f" {column(page, 1)[rank]}")
  assert "12 of 12 dimensions" in page.text("#count")
  assert page.run("document.querySelector('[data-sort=sepin]')") is None
  page.click("#detail .thumb")
  image = page.text("#detail h2").removeprefix("CL")
  _, dense, _ = example.codes()
  n = int(image.rsplit(" ", 1)[1])
  near = page.run(
    "[...document.querySelectorAll('.near')].map((line) => ["
    "line.querySelector('.thumb').dataset.image,"
    " ...[...line.querySelectorAll('.chips button')].map((b) => b.dataset.dimension)])"
  )
  assert len(near) == 8
  for m, *shared in near:  # of values of either sign, those that agree
    parts = (dense[n] * dense[int(m)])[list(map(int, shared))]
    assert len(shared) > 1 and (parts > 0.004).all() and (np.diff(parts) <= 1e-3).all()
  page.key("c")
  assert page.text("#detail h2") == f"NCL{image}"


def test_keyboard(page):
  first, second, third = column(page, 1)[:3]
  page.key("j")
  page.key("j")
  assert page.text("#detail h2").endswith(f"dimension {third}")
  page.key("k")
  assert page.text("#detail h2").endswith(f"dimension {second}")
  page.key("/")
  assert page.run("document.activeElement.id") == "filter"
  page.key("j")  # now a letter
  assert page.run("document.activeElement.value") == "j"
  page.key("Escape")
  page.key("i")
  assert "40 of 40 images" in page.text("#count")
  page.key("d")
  assert "11 of 12 dimensions" in page.text("#count")


def test_words_captions_and_partners_of_a_dimension(chromium, tmp_path):
  made = example.two_towers()
  file = explorer.write(tmp_path / "two.html", made)
  chromium.errors.clear()
  chromium.screen(*WIDE)
  chromium.open(f"{file.as_uri()}#1/dimension/2")
  cl, ncl = made.sides
  active = [i for i in np.argsort(-ncl.words[:, 2]) if ncl.words[i, 2] > 0]
  shown = "[...document.querySelectorAll('#detail span.plain bdi')]"
  words = chromium.run(f"{shown}.map((word) => word.textContent)")
  assert words == [example.WORDS[i] for i in active] and len(words) > 1
  caption = chromium.text("#detail li bdi")
  assert caption in made.captions[ncl.captions[:, 2] == ncl.captions[:, 2].max()]
  chromium.open(f"{file.as_uri()}#0/image/3")
  pictures = "document.querySelectorAll('#detail .top .thumb').length"
  assert chromium.run(pictures) == 2
  assert made.captions[3] in chromium.text("#detail .top")
  chromium.open(f"{file.as_uri()}#0/dimension/1")
  titles = "[...document.querySelectorAll('#detail .thumb')].map((t) => t.title)"
  partners = [t for t in chromium.run(titles) if t.startswith("partner of image")]
  best = cl.partners[:, 1].argmax()
  assert partners[0].startswith(f"partner of image {best},")
  assert chromium.errors == []


def test_texts_take_the_place_of_images(chromium, tmp_path):
  texts = tuple(f"text {i} </script>" for i in range(40))
  file = explorer.write(tmp_path / "texts.html", example.make(texts=texts))
  chromium.errors.clear()
  chromium.open(f"{file.as_uri()}#1/dimension/2")
  _, _, sparse = example.codes()
  cells = "[...document.querySelectorAll('#detail .cell button')]"
  shown = chromium.run(f"{cells}.map((cell) => cell.textContent)")
  assert shown[0] == texts[sparse[:, 2].argmax()]
  assert chromium.run("document.querySelectorAll('.thumb').length") == 0
  assert "40 of 40 texts" not in chromium.text("#count")
  chromium.key("i")
  assert "40 of 40 texts" in chromium.text("#count")
  assert chromium.errors == []


def test_dark(page):
  page.screen(*WIDE, dark=True)
  background = page.run("getComputedStyle(document.body).backgroundColor")
  assert sum(map(int, background.strip("rgb()").split(","))) < 150


def test_narrow_window(page):
  """As in a notebook: all columns fit."""
  page.screen(1000, 760)
  seen, whole = page.run(
    "(() => { const list = document.getElementById('list');"
    " return [list.clientWidth, list.scrollWidth]; })()"
  )
  assert whole <= seen


def test_phone(page, file):
  page.screen(*PHONE)
  page.open(file.as_uri())
  visible = "getComputedStyle(document.getElementById('{}')).display !== 'none'"
  assert page.run(visible.format("list")) and not page.run(visible.format("detail"))
  page.click("tbody .link")
  assert page.run(visible.format("detail")) and not page.run(visible.format("list"))
  assert page.run("document.documentElement.scrollWidth") <= PHONE[0]
  page.click("#back")
  assert page.run(visible.format("list"))
  page.click("tbody .link")
  go_back(page)
  assert page.run(visible.format("list")) and not page.run(visible.format("detail"))
  page.click("tbody .link")


def test_one_method_without_labels(page, tmp_path):
  _, _, sparse = example.codes()
  made = example.make(
    labels=sparse[:, 0].astype(int) * 0 - 1,
    class_names=(),
    images=example.images(channels=3),
    sides=(explorer.Side("NCL", sparse),),
  )
  page.open(explorer.write(tmp_path / "e.html", made).as_uri())
  assert page.run("document.getElementById('sides').hidden")
  assert "class" not in page.text("#entries thead")
  page.click("#detail .thumb")
  assert "Why this code" in page.text("#detail")


def test_files_are_shown_and_found_by_name(page, tmp_path):
  """An é typed as one character finds the two that a Mac writes."""
  files = tuple(f"<b>/cafe\u0301 🇩🇪 {i}.png" for i in range(40))
  page.open(explorer.write(tmp_path / "e.html", example.make(files=files)).as_uri())
  page.key("i")
  fill(page, "#filter", "CAFÉ 🇩🇪 17.")
  shown = "[...document.querySelectorAll('#entries .thumb')]"
  assert page.run(f"{shown}.map((b) => b.dataset.image)") == ["17"]
  assert files[17] in page.run(f"{shown}[0].title")
  page.click("#entries .thumb")
  assert f"File: {files[17]}" in page.text("#detail")


def test_inside_another_page(chromium, file, tmp_path, screenshots):
  """As in a notebook: the frame has no address of its own to go to."""
  outer = tmp_path / "notebook.html"
  outer.write_text(f"<!DOCTYPE html>{explorer.as_frame(file)}", "utf-8")
  chromium.errors.clear()
  chromium.screen(*WIDE)
  chromium.open(outer.as_uri())
  frame = "document.querySelector('iframe').contentDocument"

  def heading():
    return chromium.run(f"{frame}.querySelector('#detail h2').textContent")

  for selector in ("tr[data-dimension='2'] .link", "#detail .thumb", "#sides button"):
    chromium.run(f"{frame}.querySelector({selector!r}).click()")
  _, _, sparse = example.codes()
  assert heading() == f"CL · image {sparse[:, 2].argmax()}"
  chromium.screenshot(screenshots / "test_inside_another_page.png")
  go_back(chromium, "document.querySelector('iframe').contentWindow")
  assert heading() == "NCL · dimension 2"
  assert chromium.run("location.href") == outer.as_uri()
  assert chromium.errors == []


def test_ten_thousand_images_are_looked_at_in_parts(chromium, tmp_path):
  """Two sides of 256 dimensions; how fast it is, `benchmarks.explorer` tells."""
  labels, dense, sparse = example.codes(10_000, 256)
  sides = explorer.Side("CL", dense), explorer.Side("NCL", sparse)
  made = example.make(images=example.images(10_000), labels=labels, sides=sides)
  file = explorer.write(tmp_path / "e.html", made)
  chromium.errors.clear()
  chromium.screen(*WIDE)
  chromium.open(file.as_uri())
  rows = "document.querySelectorAll('#entries tbody tr').length"
  first = chromium.run(rows)
  for selector in ("[data-sort=active]", "tbody .link", "#detail .thumb", "#more"):
    chromium.click(selector)
  assert chromium.run(rows) == 3 * first == 180
  chromium.key("c")
  assert chromium.text("#detail h2").startswith("CL · image")
  assert chromium.errors == []
