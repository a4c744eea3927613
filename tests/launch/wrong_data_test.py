"""Wrong images, folders and arrays: one message that helps, nothing changed."""

import numpy as np
import pytest
import tiny
from PIL import Image
from wrong_inputs import FOLDER, NEW, TINY, Case, check

OWN = "--config.data.source=folder:P/set"
ARRAYS = "--config.data.source=arrays:P/set.npz"
CASES: list[Case] = []


def add(program, flags, says, make=lambda place: None):
  CASES.append(Case(program, flags, says, make))


def pictures(root, names=("a/0.png", "a/1.png", "b/0.png", "b/1.png")):
  for i, name in enumerate(names):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (i, 9 * i, 200)).save(path)


def image_file(name, content):
  def make(place):
    pictures(place / "set")
    path = place / "set" / "a" / name
    if isinstance(content, bytes):
      path.write_bytes(content)
    else:
      content(path)

  return make


def cut(size, to):
  def make(path):
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:to])

  return make


for name, content in [
  ("cut.jpg", cut((64, 64), 700)),
  ("cut.png", cut((64, 64), 700)),
  ("head.gif", b"GIF89a\x08\x00"),
  ("empty.jpg", b""),
  ("text.jpg", b"no picture"),
  ("page.webp", b"<html>404</html>"),
  ("noise.png", np.random.default_rng(1).bytes(500)),
  ("gone.jpg", lambda path: path.symlink_to("nowhere.jpg")),
  ("float.tif", lambda path: Image.new("F", (8, 8), -0.5).save(path)),
]:
  add(
    "train",
    [FOLDER, OWN, NEW],
    [f"P/set/a/{name}", "data.on_bad_image=skip"],
    image_file(name, content),
  )


def folder(*names):
  return lambda place: pictures(place / "set", names)


for says, make in [
  (["no folder P/set"], lambda place: None),
  (["folder:P/set is a file"], lambda place: (place / "set").write_text("x")),
  (["no images in P/set", "PATH/CLASS"], lambda place: (place / "set").mkdir()),
  (
    ["no images in P/set", ".jpg"],
    lambda place: (place / "set/a/b").mkdir(parents=True),
  ),
  (["no images in P/set", "PATH/CLASS"], folder(".hidden/0.png", ".x/1.png")),
  (["P/set", "val", "none of train"], folder("val/a/0.png", "val/b/0.png")),
  (["1 image", "at least 2"], folder("0.png")),
  (["8", "only 3 images"], folder("0.png", "1.png", "2.png", "3.png")),
]:
  add("train", [FOLDER, OWN, NEW], says, make)
add("train", [FOLDER, NEW], ["'folder:'", "folder:PATH"])
add(
  "train",
  [FOLDER, "--config.data.source=P/set", NEW],
  ["did you mean folder:P/set"],
  folder("a/0.png"),
)
add(
  "train",
  [FOLDER, OWN, "--config.data.on_bad_image=skip", NEW],
  ["no images in P/set"],
  lambda place: ((place / "set").mkdir(), (place / "set/0.png").write_text("x")),
)
add(
  "show_views",
  [FOLDER, OWN, "--out=P/views.png"],
  ["no folder P/set"],
)


def npz(**arrays):
  return lambda place: np.savez(place / "set.npz", **arrays)


PIXELS, LABELS = tiny.images(0, 24)
for says, make in [
  (["no file P/set.npz"], lambda place: None),
  (["set.npz", "numpy.savez"], lambda place: (place / "set.npz").write_text("x")),
  (["pictures", "train_images"], npz(pictures=PIXELS)),
  (["train_image", "allowed: train_images"], npz(train_image=PIXELS)),
  (["has no labels but label"], npz(images=PIXELS, label=LABELS)),
  (["(24, 64)", "[N, H, W]"], npz(images=PIXELS.reshape(24, 64))),
  (["channels to the end"], npz(images=np.zeros((9, 3, 8, 8), np.uint8))),
  (["NaN", "0..1"], npz(images=np.full((9, 8, 8), np.nan))),
  (["255.0", "divide them by 255"], npz(images=np.full((9, 8, 8), 255.0))),
  (["complex128", "0..65535"], npz(images=PIXELS * 1j)),
  (["Python objects", "never"], npz(images=np.array([None, 1]))),
  (
    ["Python objects", "numpy.array(names"],
    npz(images=PIXELS, labels=LABELS.astype("O")),
  ),
  (["float64", "whole numbers"], npz(images=PIXELS, labels=LABELS + 0.5)),
  (["24 examples but 23 labels"], npz(images=PIXELS, labels=LABELS[1:])),
  (["-1 and 1 alone", "0 and 1"], npz(images=PIXELS, labels=LABELS % 2 * 2 - 1)),
  (["one-hot", "argmax"], npz(images=PIXELS, labels=np.eye(9)[LABELS % 9])),
  (["-2", "or -1"], npz(images=PIXELS, labels=LABELS - 2)),
  (["1000001", "0 to K-1"], npz(images=PIXELS, labels=LABELS + 10**6)),
  (
    ["image size"],
    npz(x_train=PIXELS, x_test=PIXELS[:, :4]),
  ),
]:
  add("train", [TINY, ARRAYS, NEW], says, make)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_helps_and_nothing_changes(case, run, tmp_path, monkeypatch):
  check(case, run, tmp_path, monkeypatch)
