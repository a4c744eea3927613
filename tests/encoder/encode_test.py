"""launch.encode: files in, files out, its table, and wrong inputs."""

import numpy as np
import pytest
import scipy.sparse
from programs import ROOT, call
from sklearn.neighbors import NearestNeighbors

from ncl_jax.encoder import NonNegativeEncoder

CONFIG = ROOT / "configs" / "embeddings.py"
SMALL = ("n_components=16", "n_active=3", "epochs=1", "batch_size=32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A file of embeddings, an encoder trained on it, and its codes."""
  folder = tmp_path_factory.mktemp("encode")
  rng = np.random.default_rng(0)
  x = rng.normal(size=(200, 5)).astype(np.float32)
  labels = rng.integers(0, 3, 200)
  np.savez(
    folder / "x.npz", embeddings=x, labels=labels, pairs=x[:100].reshape(50, 2, 5)
  )
  np.save(folder / "x.npy", x)
  np.save(folder / "wide.npy", np.ones((20, 6)))
  np.save(folder / "same.npy", np.ones((20, 5)))
  np.save(folder / "one.npy", x[:1])
  np.save(folder / "nan.npy", np.where(x == x[3, 1], np.nan, x))
  code, out, err = call(
    "encode",
    f"--config={CONFIG}",
    f"--input=arrays:{folder / 'x.npz'}",
    f"--encoder={folder / 'e.safetensors'}",
    f"--out={folder / 'codes.npz'}",
    *(f"--config.{setting}" for setting in SMALL),
  )
  assert code == 0, err
  (folder / "out.txt").write_text(out)
  return folder


def test_codes_are_those_of_the_encoder(folder):
  encoder = NonNegativeEncoder.load(folder / "e.safetensors")
  x = np.load(folder / "x.npy")
  codes = scipy.sparse.load_npz(folder / "codes.npz")
  np.testing.assert_array_equal(codes.toarray(), encoder.transform(x))
  assert encoder.n_components == 16 and encoder.loss_curve_.shape == (1,)


def test_the_table_says_what_codes_are_like(folder):
  """The recall by scikit-learn's search, the rest from the codes as written."""
  lines = [line.split() for line in (folder / "out.txt").read_text().splitlines()]
  assert lines[0] == [
    *("dims", "active", "most", "active_dims", "all_zero", "bytes", "recall@10")
  ]
  assert [line[0] for line in lines[1:]] == ["16", "8", "4", "2"]
  x = np.load(folder / "x.npy")
  codes = scipy.sparse.load_npz(folder / "codes.npz").toarray()
  held = np.random.default_rng(0).permutation(200)[:20]
  rest = np.setdiff1d(np.arange(200), held)
  encoder = NonNegativeEncoder.load(folder / "e.safetensors")
  np.testing.assert_allclose(encoder.scaling_.mean, x[rest].mean(0), atol=1e-6)
  found = []
  for rows in (x - x[rest].mean(0), codes):
    search = NearestNeighbors(n_neighbors=10, metric="cosine").fit(rows[rest])
    found.append(search.kneighbors(rows[held], return_distance=False))
  hits = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(*found, strict=True)])
  active = np.sum(codes > 0, axis=1)
  shown = dict(zip(lines[0], map(float, lines[1]), strict=True))
  assert shown["active"] == pytest.approx(active.mean(), rel=5e-3)
  assert shown["most"] == active.max() <= 3
  assert shown["active_dims"] == np.sum(codes.any(0))
  assert shown["all_zero"] == np.sum(active == 0)
  assert shown["bytes"] == pytest.approx(8 * active.mean(), rel=5e-3)
  assert shown["recall@10"] == pytest.approx(hits, abs=0.006)


def test_an_encoder_is_used_again_shortened_and_dense(folder):
  code, out, err = call(
    "encode",
    f"--input={folder / 'x.npy'}",
    f"--encoder={folder / 'e.safetensors'}",
    f"--out={folder / 'short.npz'}",
    "--dims=4",
    "--dense",
  )
  assert code == 0, err
  assert out == (folder / "out.txt").read_text()
  short = NonNegativeEncoder.load(folder / "e.safetensors").shorten(4)
  with np.load(folder / "short.npz") as file:
    np.testing.assert_array_equal(
      file["codes"], short.transform(np.load(folder / "x.npy"))
    )


def test_an_encoder_from_another_package_has_one_line(folder):
  """Its columns are not sorted, so there are no shorter codes."""
  made = NonNegativeEncoder.load(folder / "e.safetensors")
  made.to_sentence_transformers(folder / "module")
  other = NonNegativeEncoder.from_sentence_transformers(folder / "module")
  other.save(folder / "other.safetensors")
  code, out, err = call(
    "encode",
    f"--input={folder / 'x.npy'}",
    f"--encoder={folder / 'other.safetensors'}",
  )
  assert code == 0, err
  assert [line.split()[0] for line in out.splitlines()] == ["dims", "16"]


@pytest.mark.parametrize(
  ("positives", "array", "rows"),
  [("labels", "embeddings", 200), ("pairs", "pairs", 100)],
)
def test_labels_and_pairs_come_from_the_file(
  folder, tmp_path, monkeypatch, positives, array, rows
):
  """What reaches the encoder, without the rows that are held out."""
  seen, fit = {}, NonNegativeEncoder.fit

  def spy(self, X, y=None, *, pairs=None):
    seen.update(X=X, y=y, pairs=pairs)
    return fit(self, X, y, pairs=pairs)

  monkeypatch.setattr(NonNegativeEncoder, "fit", spy)
  code, _, err = call(
    "encode",
    f"--config={CONFIG}",
    f"--config.positives={positives}",
    f"--array={array}",
    f"--input={folder / 'x.npz'}",
    f"--encoder={tmp_path / 'e.safetensors'}",
    f"--out={tmp_path / 'codes.npz'}",
    *(f"--config.{setting}" for setting in SMALL),
    "--config.epochs=0",
  )
  assert code == 0, err
  assert scipy.sparse.load_npz(tmp_path / "codes.npz").shape == (rows, 16)
  with np.load(folder / "x.npz") as file:
    x, labels = file[array], file["labels"]
  rest = np.sort(np.random.default_rng(0).permutation(len(x))[len(x) // 10 :])
  if positives == "labels":
    np.testing.assert_array_equal(seen["X"], x[rest])
    np.testing.assert_array_equal(seen["y"], labels[rest])
  else:
    np.testing.assert_array_equal(seen["X"], x[rest, 0])
    np.testing.assert_array_equal(seen["pairs"], x[rest, 1])


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ([], "--input is missing"),
    (["--input=none.npy"], "--encoder is missing"),
    (["--input={f}/none.npy", "--encoder={f}/e.safetensors"], "no file "),
    (["--input={f}/e.safetensors", "--encoder={f}/e.safetensors"], "no .npy or .npz"),
    (["--input={f}/x.npz", "--encoder={f}/none.safetensors"], "no such file"),
    (["--input={f}/x.npz", "--encoder={f}/e.npz"], "must end in .safetensors"),
    (["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--array=h"], "no array 'h'"),
    (
      ["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--array=labels"],
      "allowed: [N, E] or pairs",
    ),
    (
      ["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--out={f}/codes.npz"],
      "exists already",
    ),
    (
      ["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--out=a.npz", "--dims=17"],
      "dims = 17",
    ),
    (["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--dims=4"], "dims = 4"),
    (["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--out=a.csv"], "in .npz"),
    (["--input={f}/wide.npy", "--encoder={f}/e.safetensors"], "X has 6 features"),
    (
      ["--input={f}/nan.npy", "--encoder={f}/e.safetensors"],
      "1 of 200 rows of embeddings in",
    ),
    (
      ["--config={c}", "--input={f}/same.npy", "--encoder={f}/new.safetensors"],
      "all 5 column(s)",
    ),
    (
      ["--config={c}", "--input={f}/one.npy", "--encoder={f}/new.safetensors"],
      "1 sample(s)",
    ),
    (
      ["--input={f}/x.npz", "--encoder={f}/e.safetensors", "--config={c}"],
      "leave --config out to use it",
    ),
    (
      ["--config={c}", "--config.n_actives=3", "--input=a", "--encoder=b"],
      "unknown config field 'n_actives'",
    ),
    (
      [
        "--config={c}",
        "--config.positives=pairs",
        "--input={f}/x.npz",
        "--encoder={f}/new.safetensors",
      ],
      "embeddings in {f}/x.npz: positives = 'pairs' and no pairs are given",
    ),
    (
      [
        "--config={c}",
        "--config.positives=labels",
        "--labels=classes",
        "--input={f}/x.npz",
        "--encoder={f}/new.safetensors",
      ],
      "needs an array 'classes' of 200 labels",
    ),
  ],
)
def test_wrong_input_exits_with_one_message(folder, flags, message):
  filled = [flag.format(f=folder, c=CONFIG) for flag in flags]
  code, _, err = call("encode", *filled)
  assert code == 2 and message.format(f=folder) in err, err
  assert len(err.strip().splitlines()) == 1


def test_config_and_class_have_the_same_settings():
  from configs_by_name import load

  own = NonNegativeEncoder().get_params()
  assert set(load("embeddings").get_config()) == own.keys() - {"sparse_output"}
