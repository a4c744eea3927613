"""The explorer of a run's test images, alone or next to another run's."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ncl_jax import features, methods, models
from ncl_jax.data.subset import take
from ncl_jax.errors import InputError
from ncl_jax.evaluators import embedding, pairs
from ncl_jax.evaluators import sepin as sepin_lib
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.report import explorer
from ncl_jax.report.explorer import data, thumbnails
from ncl_jax.training import workdir as workdir_lib


def explore(
  workdir: str | pathlib.Path,
  versus: str | pathlib.Path | None = None,
  *,
  step: int | None = None,
  out: str | pathlib.Path | None = None,
  sepin: bool = False,
) -> pathlib.Path:
  """Writes the explorer of a run's newest checkpoint.

  Args:
    versus: of another on the same data, to switch to; None for none.
    out: the file; None for WORKDIR/explorer.html.
    sepin: compute it for each dimension, which takes longer than all else.

  Raises:
    FileNotFoundError: if a directory has no config or no checkpoint.
    InputError: if the two runs are not of the same data.
  """
  opened = open_runs(workdir, versus, step)
  run = opened[-1]
  whole = run.source.split("test")
  ids = data.some(len(whole), data.IMAGES)
  split = whole if len(ids) == len(whole) else take(whole, ids)
  items = run.source.kind
  note = "" if split is whole else f"{len(ids)} of {len(whole)} test {items}"
  words = tuple(pairs.words_of(() if split.captions is None else split.captions))
  written = run.source.texts_of("test")
  # With a text tower, the partner of an image is its text.
  partners = None
  if split.partners and not all(methods.of(x.config).captions for x in opened):
    partners = split.partners(np.arange(len(ids)), np.random.default_rng(0))
  sides = tuple(
    _side(x, label, ids, sepin, (split.captions, words), partners)
    for x, label in zip(opened, labels(opened), strict=True)
  )
  page = explorer.Exploration(
    title=f"{run.source.title}: {' and '.join(side.label for side in sides)}",
    images=split.pictures(thumbnails.SIDE) if partners is None else split.images,
    labels=split.labels,
    class_names=run.source.class_names,
    sides=sides,
    threshold=run.config.eval.threshold,
    note=note,
    captions=split.captions,
    words=words if any(side.words is not None for side in sides) else (),
    partners=partners,
    texts=tuple(written[i] for i in ids) if written else (),
    files=tuple(split.files.names()) if split.files else (),
  )
  return explorer.write(out or run.path / "explorer.html", page)


def open_runs(
  workdir: str | pathlib.Path,
  versus: str | pathlib.Path | None,
  step: int | None = None,
) -> list[Run]:
  """A run, after the one that it is compared with, if any."""
  run = open_run(workdir, step)
  if not versus:
    return [run]
  other = open_run(versus, source=run.source)
  seen, theirs = (x.config.data.to_dict() for x in (run, other))
  # The same set may lie in two places.
  if workdir_lib.recorded_data(run.path) == workdir_lib.recorded_data(other.path) != {}:
    theirs = theirs | {"source": seen["source"]}
  if seen != theirs:
    raise InputError(
      f"the runs are of different data: {seen} in {run.path}, {theirs} in {other.path};"
      " allowed: two runs of the same"
    )
  return [other, run]


def labels(opened: Sequence[Run]) -> list[str]:
  """What tells the runs apart: the methods or, if they are the same, the places."""
  names = [run.config.method.upper() for run in opened]
  if len(set(names)) == len(names):
    return names
  return [
    f"{name} {run.path.parent.name}/{run.path.name}, step {run.step}"
    for name, run in zip(names, opened, strict=True)
  ]


def _side(
  run: Run,
  label: str,
  ids: np.ndarray,
  sepin: bool,
  texts: tuple[np.ndarray | None, tuple[str, ...]],
  partners: np.ndarray | None,
) -> explorer.Side:
  """A run's features of the images, and of what is paired with them."""
  more: dict[str, Any] = {}
  if run.config.model.backbone in models.VITS:
    maps = features.attention(run.variables, run.source, "test", run.network())
    more |= {"attention": maps[ids], "seen": run.config.augment.eval_crop}
  if methods.of(run.config).captions:
    # As trained: whole captions. And words alone, as they name what a dimension is.
    for name, rows in zip(("captions", "words"), texts, strict=True):
      if rows is not None and len(rows):
        more[name] = embedding.embed_texts(run, rows)
  elif partners is not None:
    more["partners"] = embedding.embed_images(run, partners)
  scores = sepin_lib.dimensions(run) if sepin else None
  return explorer.Side(label, run.layer("f", "test")[ids], scores, **more)
