r"""Emoji as pairs: 3,786 small pictures by each of two drawers, with their names.

  python -m studies.emoji.make_data --out=emoji
  python -m launch.train --config=configs/pairs.py:ncl --workdir=runs/emoji-ncl \
      --config.data.source=pairs:emoji/text.npz

Fetches the npm packages emoji-datasource-google and emoji-datasource-twitter (130 MB;
npm must be installed) into --packages and writes two files for the source `pairs:`:
text.npz, Google's pictures with captions, and drawers.npz, the same pictures with
Twitter's of the same emoji for partners; and for the source `folder:` Google's pictures
as files, --out/pictures/PART/CATEGORY. Labels are the categories, a further level the
subcategories. The test set are concepts held out whole: every skin tone, and man, woman
and person of the same description, lie on one side.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import tarfile

import numpy as np
from PIL import Image

from ncl_jax.errors import InputError

VERSION = "16.0.0"
DRAWERS = ("google", "twitter")
SIDE = 64
TEST_SHARE = 0.2
TONES = {
  "1F3FB": "light",
  "1F3FC": "medium light",
  "1F3FD": "medium",
  "1F3FE": "medium dark",
  "1F3FF": "dark",
}
# Words that tell drawings of one concept apart.
PERSONS = frozenset({"man", "men", "woman", "women", "person", "people"})


def main() -> None:
  """Writes files and folder, and says what is in them."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--out", default="emoji", help="folder for the files")
  parser.add_argument("--packages", default="", help="folder of the packages; --out")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  packages = pathlib.Path(flags.packages or out)
  try:
    files = [fetch(drawer, packages) for drawer in DRAWERS]
  except InputError as error:
    parser.error(str(error))
  entries = read_entries(files[0])
  pictures = [read_pictures(f, d) for f, d in zip(files, DRAWERS, strict=True)]
  # An emoji that one of them has not drawn is no pair of drawings.
  rows = [row for row in rows_of(entries) if all(row["image"] in p for p in pictures)]
  one, other = (np.stack([p[row["image"]] for row in rows]) for p in pictures)
  out.mkdir(parents=True, exist_ok=True)
  test = held_out([row["concept"] for row in rows])
  for name, values in (
    ("text", {"captions": column(rows, "caption")}),
    ("drawers", {"partners": other}),
  ):
    values |= {
      "images": one,
      "labels": column(rows, "category"),
      "labels_subcategory": column(rows, "subcategory"),
      "concepts": column(rows, "concept"),
    }
    np.savez_compressed(out / f"{name}.npz", **divided(values, test))
    print(
      f"{out / name}.npz: {np.sum(~test)} train and {np.sum(test)} test pairs, "
      f"{len(set(values['concepts']))} concepts, {len(set(values['labels']))} "
      f"categories, {len(set(values['labels_subcategory']))} subcategories"
    )
  write_folder(out / "pictures", rows, one, test)
  print(f"{out / 'pictures'}: the pictures of text.npz as files, for folder:")


def write_folder(
  folder: pathlib.Path,
  rows: list[dict[str, str]],
  pictures: np.ndarray,
  test: np.ndarray,
) -> None:
  """Writes pictures [N, H, W, 3] as files, in folders by part and category."""
  for row, picture, held in zip(rows, pictures, test, strict=True):
    place = folder / ("test" if held else "train") / row["category"]
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(place / row["image"])


def fetch(drawer: str, folder: pathlib.Path) -> pathlib.Path:
  """The package of a drawer, see `npm_package`.

  Args:
    drawer: of `DRAWERS`.
    folder: for the file.

  Returns:
    Its .tgz.

  Raises:
    InputError: if npm is not installed, or fails.
  """
  return npm_package(f"emoji-datasource-{drawer}", VERSION, folder)


def npm_package(name: str, version: str, folder: pathlib.Path) -> pathlib.Path:
  """A package, downloaded unless it lies there already: its .tgz, or an InputError."""
  file = folder / f"{name}-{version}.tgz"
  if file.is_file():
    return file
  npm = shutil.which("npm")
  if npm is None:
    raise InputError(
      f"npm is not installed and {file} is not there: install Node.js, or put the "
      f"package {name} {version} there yourself"
    )
  folder.mkdir(parents=True, exist_ok=True)
  done = subprocess.run(
    [npm, "pack", f"{name}@{version}"], cwd=folder, capture_output=True, text=True
  )
  if done.returncode or not file.is_file():
    raise InputError(f"npm pack {name}@{version} failed: {done.stderr.strip()}")
  return file


def read_entries(package: pathlib.Path) -> list[dict]:
  """The list of emoji in a package."""
  with tarfile.open(package) as archive:
    file = archive.extractfile("package/emoji.json")
    assert file is not None
    return json.load(file)


def read_pictures(package: pathlib.Path, drawer: str) -> dict[str, np.ndarray]:
  """File name -> picture, uint8 [64, 64, 3], on white."""
  found = {}
  prefix = f"package/img/{drawer}/{SIDE}/"
  # Front to back: to look for files by name would unpack it again for each.
  with tarfile.open(package) as archive:
    for member in archive:
      if member.name.startswith(prefix) and member.name.endswith(".png"):
        file = archive.extractfile(member)
        assert file is not None
        found[member.name.removeprefix(prefix)] = on_white(Image.open(file))
  return found


def on_white(image: Image.Image) -> np.ndarray:
  """A picture without its transparency, uint8 [H, W, 3]."""
  image = image.convert("RGBA")
  white = Image.new("RGBA", image.size, "white")
  return np.asarray(Image.alpha_composite(white, image).convert("RGB"))


def rows_of(entries: list[dict]) -> list[dict[str, str]]:
  """One row a picture: image, caption, category, subcategory, concept; as texts."""
  rows = []
  for entry in entries:
    name = plain(entry["name"] or entry["short_name"])
    words = [word for word in re.findall(r"\w+", name) if word not in PERSONS]
    known = {
      "category": plain(entry["category"]),
      "subcategory": plain(entry["subcategory"]),
      # "Man" and "woman" alone are a concept, too.
      "concept": " ".join(words) or "person",
    }
    rows.append(known | {"image": entry["image"], "caption": name})
    for tones, variant in entry.get("skin_variations", {}).items():
      tone = " and ".join(dict.fromkeys(TONES[code] for code in tones.split("-")))
      caption = f"{name}, {tone} skin tone"
      rows.append(known | {"image": variant["image"], "caption": caption})
  return rows


def plain(name: str) -> str:
  """A name as one would write it.

  >>> plain("Smileys & Emotion"), plain("face-smiling")
  ('smileys and emotion', 'face smiling')
  """
  words = name.replace("&", "and").replace("-", " ").replace("_", " ")
  return " ".join(words.lower().split())


def held_out(concepts: list[str]) -> np.ndarray:
  """Which rows are test, bool [N]: a fifth of the concepts, always the same."""
  names = sorted(set(concepts))
  count = round(TEST_SHARE * len(names))
  chosen = np.random.default_rng(0).permutation(len(names))[:count]
  test = {names[i] for i in chosen}
  return np.array([concept in test for concept in concepts])


def column(rows: list[dict[str, str]], key: str) -> np.ndarray:
  """The values of one key, str [N]."""
  return np.array([row[key] for row in rows])


def divided(values: dict[str, np.ndarray], test: np.ndarray) -> dict[str, np.ndarray]:
  """Name -> rows, under "train_NAME" and "test_NAME"."""
  parts = {"train": ~test, "test": test}
  return {
    f"{part}_{name}": value[rows]
    for part, rows in parts.items()
    for name, value in values.items()
  }


if __name__ == "__main__":
  main()
