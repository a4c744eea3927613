"""Every figure of two runs, from their work directories."""

import pathlib

from ncl_jax.experiments import explorer
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
  opened = explorer.open_runs(workdir, versus)
  run = opened[-1]
  source, config, test = run.source, run.config, run.extract("test")
  methods, layers = [], []
  for key, x, label in zip(
    ("baseline", "method"), opened, explorer.labels(opened), strict=True
  ):
    curve = tuple(jsonl.read(x.path / "metrics.jsonl"))
    methods.append(Method(key, label, {}, curve, x.layer("f", "test")))
    layers += [
      (f"{label}: h", x.extract("test").h),
      (f"{label}: f", methods[-1].features),
    ]
  split = source.split("test")
  comparison = Comparison(
    title=source.title,
    facts=(),
    remarks=(),
    metrics=(),
    methods=tuple(methods),
    chance={},
    expected={},
    seeds=(config.seed,),
    labels=test.labels,
    images=split.pictures(thumbnails.SIDE),
    class_names=source.class_names,
    texts=tuple(source.texts_of("test")),
    threshold=config.eval.threshold,
  )
  rows = [jsonl.read(x.path / "eval" / "selection.jsonl") for x in opened]
  results = [row[-1] if row else None for row in rows]
  tested = {method.label: [classifiers.points(method.curve)] for method in methods}
  pictures = [
    *figures.draw(comparison),
    runs.activations(comparison),
    runs.maps(comparison, layers, config.seed),
    runs.selection_curve(comparison, results),
    classifiers.draw({source.title: tested})
    if all(map(any, tested.values()))
    else None,
  ]
  folder = paths.absolute(out or run.path / "figures")
  paths.make(folder)
  files = []
  for picture in pictures:
    if picture is not None:
      png = folder / pathlib.Path(picture.wide.file).name
      jsonl.replace(png, picture.wide.png)
      jsonl.replace(png.with_suffix(".svg"), drawing.as_svg(picture))
      files += [png, png.with_suffix(".svg")]
  return files
