r"""Names and keywords of symbols as pairs of texts: 1,943 of Unicode's, in English.

  python -m studies.keywords.make_data --out=symbols
  python -m launch.train --config=configs/texts.py:ncl --workdir=runs/symbols-ncl

Fetches the npm packages cldr-annotations-full (Unicode's locale data) and
unicode-emoji-json (7 MB; npm must be installed) into --packages and writes names.npz
for the source `pairs:`: of each symbol its name ("crossed swords") and, as the caption,
its other keywords in the alphabet's order ("crossed, swords, weapon"). Labels are the
groups of emoji; arrows, signs and the like have none. The test set are concepts held
out whole: man, woman and person of the same description lie on one side. Words are not
held out: most of the test set's stand in names or keywords of the training set, too.
"""

import argparse
import json
import pathlib
import re
import tarfile
from typing import Any

import numpy as np

from ncl_jax.errors import InputError
from studies.emoji import make_data as emoji

PACKAGES = {"cldr-annotations-full": "48.2.0", "unicode-emoji-json": "0.9.0"}
NAMES = "package/annotations/en/annotations.json"
GROUPS = "package/data-by-emoji.json"
VARIANT = "\ufe0f"  # asks for a picture of the symbol; the names' file has none


def main() -> None:
  """Writes the file and says what is in it."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--out", default="symbols", help="folder for the file")
  parser.add_argument("--packages", default="", help="folder of the packages; --out")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  packages = pathlib.Path(flags.packages or out)
  try:
    names, groups = (
      emoji.npm_package(name, version, packages) for name, version in PACKAGES.items()
    )
  except InputError as error:
    parser.error(str(error))
  rows = rows_of(
    read(names, NAMES)["annotations"]["annotations"], groups_of(read(groups, GROUPS))
  )
  values = {
    "texts": emoji.column(rows, "name"),
    "captions": emoji.column(rows, "keywords"),
    "labels": emoji.column(rows, "group"),
    "concepts": emoji.column(rows, "concept"),
  }
  test = emoji.held_out([row["concept"] for row in rows])
  out.mkdir(parents=True, exist_ok=True)
  np.savez_compressed(out / "names.npz", **emoji.divided(values, test))
  print(
    f"{out / 'names.npz'}: {np.sum(~test)} train and {np.sum(test)} test pairs, "
    f"{len(set(values['concepts']))} concepts, {len(set(values['labels']) - {''})} "
    f"groups, {np.sum(values['labels'] == '')} symbols without one"
  )


def read(package: pathlib.Path, name: str) -> Any:
  """A JSON file in a package."""
  with tarfile.open(package) as archive:
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


def groups_of(entries: dict[str, dict[str, Any]]) -> dict[str, str]:
  """Symbol -> its group, as one would write it."""
  return {
    symbol.replace(VARIANT, ""): emoji.plain(entry["group"])
    for symbol, entry in entries.items()
  }


def rows_of(
  entries: dict[str, dict[str, list[str]]], groups: dict[str, str]
) -> list[dict[str, str]]:
  """One row a symbol: name, keywords, group or "", concept; as texts.

  Args:
    entries: symbol -> {"tts": [name], "default": keywords}; those without a keyword
      besides the name are left out.
    groups: of `groups_of`.
  """
  rows = []
  for symbol, entry in entries.items():
    name = " ".join(entry.get("tts", [])).lower()
    keywords = sorted({word.lower() for word in entry.get("default", [])} - {name})
    if not name or not keywords:
      continue
    words = [word for word in re.findall(r"\w+", name) if word not in emoji.PERSONS]
    rows.append(
      {
        "name": name,
        "keywords": ", ".join(keywords),
        "group": groups.get(symbol.replace(VARIANT, ""), ""),
        # "Man" and "woman" alone are a concept, too; so is a sign without a word.
        "concept": " ".join(words) or "person",
      }
    )
  return rows


if __name__ == "__main__":
  main()
