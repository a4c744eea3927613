"""Speed and memory of evaluation on cached features, compared with plain methods.

  python -m benchmarks.evaluate --json=evaluate.json

All features are synthetic. `suite` measures consistency, sparsity, correlation and
retrieval P@10 of 10,000 x 256 features with 10 classes. They are compared with direct
loops over samples, dimensions or pairs of them (a part, scaled up) and with vectorised
numpy and scikit-learn; times are CPU seconds of all threads, the best of --repeats,
taken in turns. `sepin` takes a batch of 256 images with 2,048 dimensions. `memory` is
XLA's plan for temporaries of retrieval and nearest neighbours among 50,000 x 2,048
features. `probe` is the linear probe on 50,000 x 512 against scikit-learn's
LogisticRegression. All take some ten minutes on two cores; --only=suite,sepin runs a
part.
"""

import os
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

from benchmarks import measure
from ncl_jax import metrics
from ncl_jax.evaluators import logistic_regression

EPS = 1e-5


def main() -> None:
  """Prints a line for each measurement."""
  parser = measure.arguments(__doc__)
  parser.set_defaults(repeats=3)
  parser.add_argument("--only", default="suite,sepin,memory,probe")
  parser.add_argument("--images", type=int, default=10_000, help="of the suite")
  parser.add_argument("--bank", type=int, default=50_000, help="rows of memory, probe")
  flags = parser.parse_args()
  rows = []
  for part in flags.only.split(","):
    for row in PARTS[part](flags):
      rows.append({"part": part} | row)
  measure.finish(
    "Evaluation on cached features",
    rows,
    flags.json,
    f"suite: {flags.images:,} x 256 features, 10 classes, best CPU seconds. Loops run "
    "over samples, dimensions or pairs; a part of each was timed and scaled up. sepin: "
    "a batch of 256 images, 2,048 dimensions. memory: a search in "
    f"{flags.bank:,} x 2,048 features, whose bank takes "
    f"{flags.bank * 2048 * 4 / 2**20:.0f} MiB. probe: {flags.bank:,} x 512 features, "
    '10 classes, seven fits after compilation; "vectorised" is scikit-learn.',
  )


def rectified(rows, dimensions, classes, seed=0):
  """Sparse unit features in which every class has its own dimensions, and labels."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, classes, rows)
  centres = rng.normal(size=(classes, dimensions))
  z = 0.5 * centres[labels] + rng.normal(size=(rows, dimensions)) - 1
  f = np.maximum(z, 0).astype(np.float32)
  norms = np.linalg.norm(f, axis=1, keepdims=True)
  return np.divide(f, norms, out=np.zeros_like(f), where=norms > 0), labels


def seconds(*functions, repeats=1):
  """CPU seconds and results of each, best of `repeats` taken in turns."""
  best, results = [np.inf] * len(functions), [None] * len(functions)
  for _ in range(repeats):
    for i, function in enumerate(functions):
      start = time.process_time()
      results[i] = jax.block_until_ready(function())
      best[i] = min(best[i], time.process_time() - start)
  return best, results


def suite(flags):
  """Ours, loops, and vectorised numpy or scikit-learn, for each metric and in total."""
  classes, k = 10, 10
  f, labels = rectified(flags.images, 256, classes)
  device_f, device_labels = jnp.asarray(f), jnp.asarray(labels)
  ours = {
    "consistency": jax.jit(
      lambda f, y: metrics.class_consistency(f, y, classes, threshold=EPS)[0]
    ),
    "sparsity": jax.jit(lambda f, y: metrics.sparsity(f, EPS)),
    "correlation": jax.jit(lambda f, y: metrics.orthogonality(f)),
    "retrieval": lambda f, y: metrics.retrieval(f, y, k)[0],
  }
  total = np.zeros(3)
  for name, function in ours.items():
    jax.block_until_ready(function(device_f, device_labels))  # compiled once
    (fast, plain), results = seconds(
      lambda function=function: function(device_f, device_labels),
      lambda name=name: VECTORISED[name](f, labels),
      repeats=flags.repeats,
    )
    (slow,), (share,) = seconds(lambda name=name: LOOPS[name](f, labels))
    slow *= share
    means = [float(np.nanmean(x)) for x in results]
    assert abs(means[0] - means[1]) < 1e-4, (name, means)
    total += (fast, plain, slow)
    yield timings(name, fast, plain, slow)
  yield timings("all", *map(float, total))


def timings(name, fast, plain, slow):
  """One row of the suite."""
  return {
    "what": name,
    "CPU s": fast,
    "vectorised CPU s": plain,
    "loops CPU s": slow,
    "vectorised / ours": plain / fast,
    "loops / ours": slow / fast,
  }


def vectorised_consistency(f, labels):
  """[D] by one product."""
  counts = (np.abs(f) > EPS).astype(np.float32).T @ np.eye(10, dtype=np.float32)[labels]
  with np.errstate(invalid="ignore"):
    return counts.max(1) / counts.sum(1)


def vectorised_correlation(f, labels):
  """Mean |C - I|."""
  norms = np.linalg.norm(f, axis=0)
  unit = np.divide(f, norms, out=np.zeros_like(f), where=norms > 0)
  return np.abs(unit.T @ unit - np.diag(norms > 0)).sum() / (norms > 0).sum() ** 2


def vectorised_retrieval(f, labels):
  """[N] P@10 by scikit-learn, without the query itself."""
  search = NearestNeighbors(n_neighbors=10, metric="cosine", algorithm="brute").fit(f)
  index = search.kneighbors(return_distance=False)
  return (labels[index] == labels[:, None]).mean(1)


VECTORISED = {
  "consistency": vectorised_consistency,
  "sparsity": lambda f, labels: np.mean(np.abs(f) < EPS),
  "correlation": vectorised_correlation,
  "retrieval": vectorised_retrieval,
}


def looped_consistency(f, labels):
  """Loops over samples in each of 16 dimensions."""
  rates = []
  for column in f.T[:16]:
    counts = [0] * 10
    for value, label in zip(column, labels, strict=True):
      if abs(value) > EPS:
        counts[label] += 1
    rates.append(max(counts) / sum(counts))
  return f.shape[1] / len(rates)


def looped_sparsity(f, labels):
  """Loops over a sixteenth of the samples, and over dimensions."""
  part = f[::16]
  for row in part:
    sum(abs(value) < EPS for value in row)
  return len(f) / len(part)


def looped_correlation(f, labels):
  """Loops over pairs of dimensions, for 16 of them."""
  for one in f.T[:16]:
    for other in f.T:
      one @ other / (np.linalg.norm(one) * np.linalg.norm(other))
  return f.shape[1] / 16


def looped_retrieval(f, labels):
  """Loops over pairs of samples and sorts, for 20 queries."""
  for query in range(20):
    cosine = [float(f[query] @ other) for other in f]
    cosine[query] = -2.0
    near = sorted(range(len(f)), key=lambda n, s=cosine: -s[n])[:10]
    sum(labels[n] == labels[query] for n in near)
  return len(f) / 20


LOOPS = {
  "consistency": looped_consistency,
  "sparsity": looped_sparsity,
  "correlation": looped_correlation,
  "retrieval": looped_retrieval,
}


def sepin(flags):
  """Wall and CPU seconds of all leave-one-out losses of a batch."""
  rng = np.random.default_rng(0)
  a, b = (jnp.maximum(x, 0) for x in rng.normal(size=(2, 256, 2048)).astype("float32"))

  def run():
    return metrics.sepin(a, b, temperature=0.2)

  jax.block_until_ready(run())
  start = time.perf_counter()
  (cpu,), _ = seconds(run)
  wall = time.perf_counter() - start
  yield {"what": "SEPIN of all dimensions", "CPU s": cpu, "wall s": wall}


def memory(flags):
  """Temporaries in MiB as compiled, without the bank itself."""
  f = jax.ShapeDtypeStruct((flags.bank, 2048), jnp.float32)
  labels = jax.ShapeDtypeStruct((flags.bank,), jnp.int32)
  programs = {
    "retrieval P@10 in itself": lambda f, y: metrics.retrieval(f, y, 10),
    "knn k=20": lambda f, y: metrics.knn_predict(f, y, f, 100, 20),
    "knn grid, k up to 200": lambda f, y: metrics.knn_predict_grid(
      f, y, f, 100, (20, 200), (0.07, 0.1)
    ),
  }
  for name, program in programs.items():
    plan = jax.jit(program).lower(f, labels).compile().memory_analysis()
    yield {"what": name, "temp MiB": plan.temp_size_in_bytes / 2**20}


def probe(flags):
  """The probe as evaluators run it: six penalties on four fifths, the best on all."""
  rng = np.random.default_rng(1)
  count = flags.bank + 10_000
  labels = rng.integers(0, 10, count)
  x = 0.12 * rng.normal(size=(10, 512))[labels] + rng.normal(size=(count, 512))
  x = x.astype(np.float32)
  train, test = slice(flags.bank), slice(flags.bank, None)

  def ours():
    return logistic_regression.choose(x[train], labels[train], num_classes=10)

  def theirs(penalty):
    fitting = slice(round(0.8 * flags.bank))
    model = LogisticRegression(max_iter=1000, warm_start=True)
    for strength in sorted(logistic_regression.REGULARIZATIONS, reverse=True):
      model.set_params(C=1 / (fitting.stop * strength)).fit(x[fitting], labels[fitting])
    model.set_params(C=1 / (flags.bank * penalty))
    return model.fit(x[train], labels[train])

  ours()  # compiles
  (taken,), ((head, found),) = seconds(ours)
  (vectorised,), (model,) = seconds(lambda: theirs(found["regularization"]))
  predicted = np.argmax(x[test] @ head["kernel"] + head["bias"][None], axis=1)
  yield {
    "what": f"seven fits by L-BFGS, {found['iterations']} iterations in the last",
    "CPU s": taken,
    "vectorised CPU s": vectorised,
    "vectorised / ours": vectorised / taken,
    "accuracy %": 100 * float(np.mean(predicted == labels[test])),
    "vectorised accuracy %": 100 * float(model.score(x[test], labels[test])),
  }


PARTS = {"suite": suite, "sepin": sepin, "memory": memory, "probe": probe}


if __name__ == "__main__":
  main()
