"""The explorer of a run's test images, alone or next to another run's."""

import dataclasses
import pathlib
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
  run = open_run(workdir, step)
  opened = [run]
  if versus:
    other = open_run(versus, source=run.source)
    seen, theirs = (x.config.data.to_dict() for x in (run, other))
    # The same set may lie in two places.
    if (
      workdir_lib.recorded_data(run.path) == workdir_lib.recorded_data(other.path) != {}
    ):
      theirs = theirs | {"source": seen["source"]}
    if seen != theirs:
      raise InputError(
        f"the runs are of different data: {seen} in {run.path}, {theirs} in"
        f" {other.path}; allowed: two runs of the same"
      )
    opened.insert(0, other)
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
    dataclasses.replace(
      _side(x, label, ids, sepin), **_others(x, split.captions, words, partners)
    )
    for x, label in zip(opened, _labels(opened), strict=True)
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


def _labels(opened: list[Run]) -> list[str]:
  names = [run.config.method.upper() for run in opened]
  if len(set(names)) == len(names):
    return names
  return [
    f"{name} {run.path.parent.name}/{run.path.name}, step {run.step}"
    for name, run in zip(names, opened, strict=True)
  ]


def _side(run: Run, label: str, ids: np.ndarray, sepin: bool) -> explorer.Side:
  f = run.layer("f", "test")
  scores = sepin_lib.dimensions(run) if sepin else None
  side = explorer.Side(label, f[ids], scores)
  if run.config.model.backbone not in models.VITS:
    return side
  maps = features.attention(run.variables, run.source, "test", run.network())
  seen = run.config.augment.eval_crop
  return dataclasses.replace(side, attention=maps[ids], seen=seen)


def _others(
  run: Run,
  captions: np.ndarray | None,
  words: tuple[str, ...],
  partners: np.ndarray | None,
) -> dict[str, Any]:
  """Features of what is paired with the images, by the run's other tower."""
  if methods.of(run.config).captions:
    # As trained: whole captions. And words alone, as they name what a dimension is.
    texts = {"captions": captions, "words": words}
    return {
      name: embedding.embed_texts(run, rows)
      for name, rows in texts.items()
      if rows is not None and len(rows)
    }
  if partners is None:
    return {}
  return {"partners": embedding.embed_images(run, partners)}
