"""The explorer's file: complete, safe whatever the texts, within its size."""

import base64
import html.parser
import io
import json
import pathlib
import tomllib

import explorer_example as example
import numpy as np
import PIL.Image
import pytest

from ncl_jax.report import explorer
from ncl_jax.report.explorer import data, page, thumbnails


class Scripts(html.parser.HTMLParser):
  """Texts of the elements by id or tag, as a browser's parser separates them."""

  def __init__(self, text: str):
    super().__init__()
    self.texts: dict[str, str] = {}
    self.attributes: list[tuple[str, str]] = []
    self._here = ""
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attrs):
    self._here = dict(attrs).get("id") or tag
    self.attributes += [(tag, name) for name, _ in attrs]

  def handle_data(self, data):
    self.texts[self._here] = self.texts.get(self._here, "") + data


def arrays(side):
  """The arrays of a side, decoded as the page's script does."""
  found = {}
  for key, packed in side["arrays"].items():
    raw = base64.b64decode(packed["data"])
    found[key] = np.frombuffer(raw, f"<{packed['type']}").reshape(-1, packed["width"])
  return found


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
  path = explorer.write(tmp_path_factory.mktemp("x") / "new" / "e.html", example.make())
  assert [p.name for p in path.parent.iterdir()] == ["e.html"]
  return Scripts(path.read_text("utf-8"))


def test_texts_are_data_never_markup(parsed):
  content = json.loads(parsed.texts["data"])
  assert content["title"] == example.TITLE
  assert content["classes"] == list(example.NAMES)
  assert parsed.texts["title"].strip() == example.TITLE
  assert "alert(1)" not in parsed.texts["script"]
  assert not [name for _, name in parsed.attributes if name.startswith("on")]


def test_nothing_is_loaded(parsed):
  assert not {("script", "src"), ("link", "rel=stylesheet")} & set(parsed.attributes)
  for text in (parsed.texts["style"], parsed.texts["script"]):
    assert "http" not in text and "@import" not in text
  assert "innerHTML" not in parsed.texts["script"]


def test_a_frame_holds_the_whole_page(tmp_path):
  file = explorer.write(tmp_path / "e.html", example.make())
  found = []
  parser = html.parser.HTMLParser()
  parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
  parser.feed(explorer.as_frame(file, height=321))
  assert [tag for tag, _ in found] == ["div", "iframe"]
  assert found[1][1]["srcdoc"] == file.read_text("utf-8")
  assert "height: 321px" in found[1][1]["style"]


def test_arrays_come_back(parsed):
  content = json.loads(parsed.texts["data"])
  labels, dense, sparse = example.codes()
  for side, f in zip(content["sides"], (dense, sparse), strict=True):
    found = arrays(side)
    expected = data.dimensions(f, labels, 4, 1e-5) | data.codes(f, 1e-5)
    for key, array in expected.items():
      scale = data.SCALE if key.endswith("_values") else 1
      np.testing.assert_allclose(
        found[key].squeeze() / scale, array.squeeze(), atol=1 / data.SCALE, rtol=1e-6
      )
  assert [side["label"] for side in content["sides"]] == ["CL", "NCL"]
  assert "sepin" not in arrays(content["sides"][0])
  scores = example.make().sides[1].sepin
  np.testing.assert_allclose(arrays(content["sides"][1])["sepin"][:, 0], scores, 1e-6)


def test_texts_stand_for_themselves_without_pictures_of_their_bytes(tmp_path):
  made = example.make(texts=tuple(f"text {i}" for i in range(40)))
  parsed = Scripts(explorer.write(tmp_path / "e.html", made).read_text("utf-8"))
  content = json.loads(parsed.texts["data"])
  assert content["texts"][39] == "text 39" and content["images"] == 40
  sheets = [name for name in parsed.texts if name.startswith("sheet")]
  assert sheets == ["sheet0"] and len(parsed.texts["sheet0"]) < 200


def test_texts_and_partners_are_data_too(tmp_path):
  made = example.two_towers()
  file = explorer.write(tmp_path / "e.html", made)
  text = file.read_text("utf-8")
  parsed = Scripts(text)
  content = json.loads(parsed.texts["data"])
  # The captions hold the end of a script.
  assert text.count("</script>") == 3 and content["words"] == list(example.WORDS)
  caption = base64.b64decode(content["caption"]["data"])
  shown = [content["captions"][i] for i in np.frombuffer(caption, "<i4")]
  assert shown == made.captions.tolist()
  assert len(content["captions"]) == len(set(shown)) == 20  # each at two images
  images, texts = map(arrays, content["sides"])
  assert "top_words" not in images and "top_partners" not in texts
  assert content["partners"]
  cl, ncl = made.sides
  for d in range(12):
    for name, f, found, names in (
      ("words", ncl.words, texts, example.WORDS),
      ("captions", ncl.captions, texts, shown),
      ("partners", cl.partners, images, range(40)),
    ):
      at, values = found[f"top_{name}"][d], found[f"top_{name}_values"][d]
      known = content[name] if name != "partners" else range(40)
      best = {}
      for row, what in zip(f[:, d], names, strict=True):
        best.setdefault(what, row)
      order = sorted((x for x in best.values() if x > 1e-5), reverse=True)
      order = order[: len(values)]
      close = {"atol": 0.6 / data.SCALE}
      np.testing.assert_allclose(values[: len(order)] / data.SCALE, order, **close)
      assert not values[len(order) :].any() and (at[len(order) :] == -1).all()
      of = [best[known[i]] for i in at if i >= 0]
      np.testing.assert_allclose(of, order)


def test_texts_in_the_place_of_images_are_data_too(tmp_path):
  texts = tuple(f"</script> {i}" for i in range(40))
  text = explorer.write(tmp_path / "e.html", example.make(texts=texts)).read_text()
  content = json.loads(Scripts(text).texts["data"])
  assert content["texts"] == list(texts) and text.count("</script>") == 3
  with pytest.raises(ValueError, match="texts: 3 rows for 40 images"):
    example.make(texts=texts[:3])


def test_partners_stand_behind_the_images():
  made = example.two_towers()
  sprite = thumbnails.sprite(page.pictures(made))
  both = [*made.images, *made.partners]
  for picture, tile in zip(both, tiles(sprite), strict=False):
    np.testing.assert_array_equal(tile.reshape(picture.shape), picture)
  assert page.pictures(example.make()).shape == (40, 12, 12, 1)


def test_every_file_of_the_page_is_installed_with_the_package():
  root = pathlib.Path(explorer.__file__).parents[3]
  project = tomllib.loads((root / "pyproject.toml").read_text())
  listed = project["tool"]["setuptools"]["package-data"]["ncl_jax.report.explorer"]
  folder = root / "ncl_jax" / "report" / "explorer"
  found = {file.name for file in folder.iterdir() if file.is_file()}
  assert set(listed) == {name for name in found if not name.endswith(".py")}


def test_classes_without_a_name_are_numbers():
  made = example.make(class_names=("a",))
  content = page.content(made, thumbnails.sprite(made.images))
  assert content["classes"] == ["a", "1", "2", "3"]


def tiles(sprite):
  """The thumbnails, cut out of their sheets."""
  w, h = sprite.tile
  for sheet in sprite.sheets:
    with PIL.Image.open(io.BytesIO(sheet)) as image:
      pixels = np.asarray(image)
    assert pixels.shape[:2] == (sprite.rows * h, sprite.columns * w)
    for y in range(0, sprite.rows * h, h):
      for x in range(0, sprite.columns * w, w):
        yield pixels[y : y + sprite.height, x : x + sprite.width]


@pytest.mark.parametrize(("n", "channels"), [(40, 1), (40, 3), (1, 3), (1030, 1)])
def test_small_images_are_kept_bit_for_bit(n, channels):
  images = np.random.default_rng(0).integers(0, 256, (n, 5, 9, channels), np.uint8)
  sprite = thumbnails.sprite(images)
  assert sprite.mime == "image/png"
  assert (sprite.width, sprite.height, sprite.tile) == (9, 5, (16, 8))
  assert len(sprite.sheets) == (2 if n > 1024 else 1)
  for image, tile in zip(images, tiles(sprite), strict=False):
    np.testing.assert_array_equal(tile.reshape(image.shape), image)


def test_large_images_are_reduced():
  images = np.repeat(np.repeat(example.images(3, 12), 16, 1), 8, 2)  # 192 x 96
  sprite = thumbnails.sprite(images)
  assert (sprite.width, sprite.height) == (48, 96)
  small = images.reshape(3, 96, 2, 48, 2).mean((2, 4))
  for expected, tile in zip(small, tiles(sprite), strict=False):
    np.testing.assert_allclose(tile, expected, atol=1)


@pytest.mark.parametrize(
  ("budget", "width", "mime"),
  [(10**7, 96, "png"), (90_000, 96, "jpeg"), (60_000, 64, "jpeg"), (1, 16, "jpeg")],
)
def test_sheets_keep_to_the_budget(budget, width, mime):
  smooth = np.linspace(0, 200, 99)[None, :, None, None] * np.ones((16, 99, 99, 3))
  noise = np.random.default_rng(0).integers(0, 55, smooth.shape)
  images = (smooth + noise).astype(np.uint8)
  sprite = thumbnails.sprite(images, budget)
  assert (sprite.width, sprite.mime) == (width, f"image/{mime}")
  size = sum(map(len, sprite.sheets))
  assert size <= budget or budget == 1


def test_a_jpeg_tile_keeps_to_itself():
  """Neighbours of another colour leave no trace."""
  images = np.zeros((9, 20, 20, 3), np.uint8)
  images[1::2] = (255, 0, 0)
  sprite = thumbnails.sprite(images, budget=1)
  for image, tile in zip(images, tiles(sprite), strict=False):
    np.testing.assert_allclose(tile, np.broadcast_to(image[0, 0], tile.shape), atol=3)


@pytest.mark.slow
def test_ten_thousand_images_of_two_wide_networks_fit():
  rng = np.random.default_rng(0)
  n, width = 10_000, 2048
  images = rng.integers(0, 256, (n, 8, 8, 3), np.uint8).repeat(4, 1).repeat(4, 2)
  f = np.maximum(rng.normal(size=(n, width)).astype(np.float32) - 1.5, 0)
  f /= np.linalg.norm(f, axis=1, keepdims=True)
  labels = rng.integers(0, 100, n)
  sides = (explorer.Side("CL", f), explorer.Side("NCL", f))
  text = page.as_html(explorer.Exploration("large", images, labels, (), sides))
  assert len(text.encode()) < 30e6
