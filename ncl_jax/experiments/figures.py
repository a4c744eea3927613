"""Every figure of two runs, from their work directories."""

import pathlib
from collections.abc import Sequence

from ncl_jax.errors import InputError
from ncl_jax.evaluators.run import open_run
from ncl_jax.host import paths
from ncl_jax.report import figures
from ncl_jax.report.comparison import Comparison, Method
from ncl_jax.report.explorer import thumbnails
from ncl_jax.report.figures import classifiers, drawing, runs
from ncl_jax.runtime import jsonl


def draw(
  workdir: str | pathlib.Path,
  versus: str | pathlib.Path,
  out: str | pathlib.Path | None = None,
) -> list[pathlib.Path]:
  """Draws, as PNG and as SVG, what the newest checkpoints and the logs allow.

  Args:
    versus: of the run it is compared with, on the same data.
    out: the folder; None for WORKDIR/figures.

  Raises:
    FileNotFoundError: if a directory has no config or no checkpoint.
    InputError: if the two runs are not of the same data.
  """
  method = open_run(workdir)
  baseline = open_run(versus, source=method.source)
  if method.config.data.to_dict() != baseline.config.data.to_dict():
    raise InputError(
      f"{method.path} and {baseline.path} are runs of different data; allowed: of the"
      " same"
    )
  source = method.source
  methods, layers = [], []
  for key, run in (("baseline", baseline), ("method", method)):
    test, f = run.extract("test"), run.layer("f", "test")
    label = run.config.method.upper()
    if method.config.method == baseline.config.method:
      label = f"{label} {run.path.parent.name}/{run.path.name}"
    curve = tuple(jsonl.read(run.path / "metrics.jsonl"))
    methods.append(Method(key, label, {}, curve, f))
    layers += [(f"{label}: h", test.h), (f"{label}: f", f)]
  split = source.split("test")
  comparison = Comparison(
    title=source.title,
    facts=(),
    remarks=(),
    metrics=(),
    methods=tuple(methods),
    chance={},
    expected={},
    seeds=(method.config.seed,),
    labels=test.labels,
    images=split.pictures(thumbnails.SIDE),
    class_names=source.class_names,
    texts=tuple(source.texts_of("test")),
    threshold=method.config.eval.threshold,
  )
  rows = [
    jsonl.read(run.path / "eval" / "selection.jsonl") for run in (baseline, method)
  ]
  results = [row[-1] if row else None for row in rows]
  tested = {method.label: [classifiers.points(method.curve)] for method in methods}
  pictures = [
    *figures.draw(comparison),
    runs.activations(comparison),
    runs.maps(comparison, layers, method.config.seed),
    runs.selection_curve(comparison, results),
    classifiers.draw({source.title: tested})
    if all(map(any, tested.values()))
    else None,
  ]
  folder = paths.absolute(out or method.path / "figures")
  return _written([x for x in pictures if x is not None], folder)


def _written(
  pictures: Sequence[drawing.Picture], folder: pathlib.Path
) -> list[pathlib.Path]:
  """The PNG and the SVG of each picture."""
  paths.make(folder)
  files = []
  for picture in pictures:
    png = folder / pathlib.Path(picture.wide.file).name
    jsonl.replace(png, picture.wide.png)
    svg = png.with_suffix(".svg")
    jsonl.replace(svg, drawing.as_svg(picture))
    files += [png, svg]
  return files
