"""The sparse autoencoder: its losses by a loop, dead units, sentence-transformers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from ncl_jax.encoder import NonNegativeEncoder, autoencoder, training
from ncl_jax.errors import InputError

N, E, D, K = 7, 5, 12, 2
SMALL_AUXILIARY = 3


@pytest.fixture
def drawn():
  """Parameters of a tied network, and rows."""
  rng = np.random.default_rng(0)
  shapes = {"kernel": (E, D), "bias": (D,), "pre_bias": (E,)}
  return {k: rng.normal(size=s) for k, s in shapes.items()}, rng.normal(size=(N, E))


def kept(values, count):
  """A row with all but the `count` largest entries, the first of equals, set to 0."""
  order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
  return np.array([v if i in order else 0 for i, v in enumerate(values)])


def test_codes_keep_the_largest_also_where_equals_compete():
  z = np.random.default_rng(1).integers(0, 4, (50, 7)).astype(np.float32)
  for count, rows in zip((3, 5, 0, 9), autoencoder.top_k(z, (3, 5, 0, 9)), strict=True):
    expected = [kept(row, count if 0 < count < 7 else 7) for row in z]
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("dead", [0, 2, 6])  # none, all at once, the largest of them
@pytest.mark.parametrize("tied", [True, False])
def test_the_losses_are_their_definition(drawn, monkeypatch, dead, tied):
  monkeypatch.setattr(autoencoder, "AUXILIARY", SMALL_AUXILIARY)
  params, x = drawn
  if not tied:
    params["decoder"] = np.random.default_rng(2).normal(size=(D, E))
  silent = np.full(D, autoencoder.DEAD_AFTER)
  silent[:dead] += 1
  network = autoencoder.Autoencoder(D, K, tied=tied)
  with jax.enable_x64(True):
    scores = network.scores(params, x)
    losses, z = autoencoder.reconstruction(network, params, x, scores, silent)

  back = params.get("decoder", params["kernel"].T)
  sums, codes, spares, residuals = {"k": 0.0, "4k": 0.0}, [], [], []
  for row in x:
    s = np.maximum((row - params["pre_bias"]) @ params["kernel"] + params["bias"], 0)
    for name, count in (("k", K), ("4k", 4 * K)):
      error = row - kept(s, count) @ back - params["pre_bias"]
      sums[name] += error @ error / (N * E)
      if name == "k":
        codes.append(kept(s, count))
        residuals.append(error)
    spare = np.where(np.arange(D) < dead, s, 0)
    spares.append(kept(spare, SMALL_AUXILIARY) @ back)
  e = np.array(residuals)
  sums["auxiliary"] = np.sum((spares - e) ** 2) / np.sum((e - e.mean(0)) ** 2)
  np.testing.assert_allclose(z, codes, rtol=1e-12)
  assert losses.keys() == sums.keys()
  for name, value in losses.items():
    np.testing.assert_allclose(value, sums[name], rtol=1e-12, err_msg=name)


def test_the_auxiliary_loss_reaches_dead_units_alone(drawn):
  """Its gradient in the encoder is 0 in the columns of living units."""
  params, x = drawn
  silent = np.where(np.arange(D) < 4, autoencoder.DEAD_AFTER + 1, 0)
  network = autoencoder.Autoencoder(D, K)

  def auxiliary(kernel):
    own = params | {"kernel": kernel}
    scores = network.scores(own, x)
    return autoencoder.reconstruction(network, own, x, scores, silent)[0]["auxiliary"]

  with jax.enable_x64(True):
    gradient = np.abs(jax.grad(auxiliary)(params["kernel"])).sum(0)
  assert (gradient[:4] > 1e-3).all() and (gradient[4:] == 0).all()


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_auxiliary_loss_revives_dead_units(beta):
  """Units with tiny weights are in no code, and stay so without the loss."""
  rng = np.random.default_rng(3)
  atoms = rng.normal(size=(64, 16))
  rows = [atoms[rng.choice(64, 2, replace=False)].sum(0) for _ in range(500)]
  x = np.array(rows, np.float32)
  recipe = training.Recipe(
    network=autoencoder.Autoencoder(64, 2),
    objective="reconstruction",
    beta=beta,
    gamma=0.0,
    temperature=1.0,
    noise=0.0,
    dropout=0.0,
    learning_rate=0.01,
    weight_decay=0.0,
    steps=400,
    labelled=False,
  )
  params, opt_state, silent = training.start(
    jax.random.key(0), np.ones(16, bool), recipe
  )
  params["kernel"] *= np.where(np.arange(64) < 32, 1, 1e-3)[None]
  batches = x[rng.integers(0, 500, (400, 50))][:, :, None]
  data = {"x": batches, "deviation": x.std(0)}
  state = (params, opt_state, silent)
  state, _, _ = training.updates(state, jax.random.key(0), jnp.int32(0), data, recipe)
  used = np.asarray(recipe.network.codes(state[0], x) > 0).any(0)
  assert used[:32].sum() > 16
  assert (used[32:].sum() > 8) == bool(beta), used[32:].sum()


@pytest.fixture
def fitted():
  x = np.random.default_rng(4).normal(size=(200, E)) * 3 + 7
  x[:, 1] = 2  # a constant column
  settings = {"epochs": 2, "batch_size": 50, "random_state": 0, "normalize": False}
  return NonNegativeEncoder(D, n_active=K, **settings).fit(x), x


def test_a_module_goes_out_and_back(tmp_path, fitted):
  encoder, x = fitted
  encoder.to_sentence_transformers(tmp_path)
  tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
  assert {name: tensor.shape for name, tensor in tensors.items()} == {
    "decoder.linear.weight": (D, E),
    "latent_bias": (D,),
    "pre_bias": (E,),
    "stats_last_nonzero": (D,),
  }
  again = NonNegativeEncoder.from_sentence_transformers(tmp_path)
  again.set_params(normalize=False)
  x[:, 1] += 1  # ignored in both
  codes = encoder.transform(x)
  scale = encoder.scaling_.scale
  np.testing.assert_allclose(again.transform(x), scale * codes, rtol=1e-4, atol=1e-4)
  decoded = encoder.inverse_transform(codes)
  np.testing.assert_allclose(again.inverse_transform(scale * codes), decoded, rtol=1e-4)
  again.save(tmp_path / "e.safetensors")
  third = NonNegativeEncoder.load(tmp_path / "e.safetensors")
  np.testing.assert_array_equal(third.transform(x), again.transform(x))
  with pytest.raises(InputError, match="not sorted"):
    third.shorten(2)
  with pytest.raises(InputError, match="exists already"):
    encoder.to_sentence_transformers(tmp_path)
  # One file that is there already: the other is not written.
  (tmp_path / "part").mkdir()
  (tmp_path / "part" / "config.json").write_text("{}")
  with pytest.raises(InputError, match="exists already"):
    encoder.to_sentence_transformers(tmp_path / "part")
  assert [file.name for file in (tmp_path / "part").iterdir()] == ["config.json"]


def test_what_is_no_such_module_is_refused(tmp_path, fitted):
  encoder, x = fitted
  free = NonNegativeEncoder(**encoder.get_params() | {"tied": False}).fit(x)
  for setting in (False, True):  # the weights decide
    with pytest.raises(InputError, match="tied = False"):
      free.set_params(tied=setting).to_sentence_transformers(tmp_path / "new")
  read = NonNegativeEncoder.from_sentence_transformers
  with pytest.raises(FileNotFoundError, match=r"config\.json"):
    read(tmp_path)
  encoder.to_sentence_transformers(tmp_path)
  file = tmp_path / "config.json"
  config = json.loads(file.read_text())
  for changed, message in (
    ({"normalize": True}, "normalize = true"),
    ({"k": 0}, "k = 0"),
    ({"hidden_dim": D + 1}, "has shape"),
  ):
    file.write_text(json.dumps(config | changed))
    with pytest.raises(InputError, match=message):
      read(tmp_path)
  file.write_text("{")
  with pytest.raises(InputError, match="not JSON"):
    read(tmp_path)


def test_it_is_the_module_of_sentence_transformers(tmp_path, drawn, fitted):
  """Codes, losses and gradients of the package itself, and its files both ways."""
  torch = pytest.importorskip("torch", exc_type=ImportError)
  package = pytest.importorskip("sentence_transformers.sparse_encoder.losses")
  models = pytest.importorskip("sentence_transformers.sparse_encoder.modules")
  params, x = drawn
  # Every unit counts as dead, because the module's 4k codes are of dead units alone.
  made = models.SparseAutoEncoder(E, D, k=K, k_aux=SMALL_AUXILIARY, dead_threshold=-1)
  made = made.double()
  with torch.no_grad():
    made.encoder.weight.copy_(torch.tensor(params["kernel"].T))
    made.latent_bias.copy_(torch.tensor(params["bias"]))
    made.pre_bias.copy_(torch.tensor(params["pre_bias"]))
  out = made({"sentence_embedding": torch.tensor(x)})
  theirs = package.csr.CSRReconstructionLoss(None, beta=1 / 32)
  parts = theirs.compute_loss_from_embeddings([out])
  sum(parts.values()).backward()

  network = autoencoder.Autoencoder(D, K)

  def total(own):
    scores = network.scores(own, x)
    silent = jnp.full(D, autoencoder.DEAD_AFTER + 1)
    losses, z = autoencoder.reconstruction(network, own, x, scores, silent)
    return losses["k"] + losses["4k"] / 8 + losses["auxiliary"] / 32, z

  with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
    patch.setattr(autoencoder, "AUXILIARY", SMALL_AUXILIARY)
    (value, z), gradient = jax.value_and_grad(total, has_aux=True)(params)
  np.testing.assert_allclose(z, out["sentence_embedding"].detach().numpy(), rtol=1e-12)
  np.testing.assert_allclose(value, sum(parts.values()).item(), rtol=1e-12)
  pairs = {
    "kernel": made.encoder.weight.grad.T,
    "bias": made.latent_bias.grad,
    "pre_bias": made.pre_bias.grad,
  }
  for name, expected in pairs.items():
    np.testing.assert_allclose(gradient[name], expected, rtol=1e-9, err_msg=name)

  encoder, rows = fitted
  encoder.to_sentence_transformers(tmp_path / "ours")
  read = models.SparseAutoEncoder.load(str(tmp_path / "ours"))
  (tmp_path / "theirs").mkdir()
  read.save(str(tmp_path / "theirs"))
  again = NonNegativeEncoder.from_sentence_transformers(tmp_path / "theirs")
  again.set_params(normalize=False)
  with torch.inference_mode():
    codes = read({"sentence_embedding": torch.tensor(np.float32(rows))})
  codes = codes["sentence_embedding"].numpy()
  np.testing.assert_allclose(again.transform(rows), codes, rtol=1e-4, atol=1e-4)
  scale = encoder.scaling_.scale
  np.testing.assert_allclose(
    encoder.transform(rows) * scale, codes, rtol=1e-4, atol=1e-4
  )
