"""Names of dimensions: against a loop from the definition, and on planted words."""

import numpy as np
import pytest
import scipy.sparse

from ncl_jax.encoder import InvertedIndex, NonNegativeEncoder, names
from ncl_jax.errors import InputError


def planted(items=400, seed=0):
  """Codes [items, 4] and texts: dimension 0 gives "dog" or "cat", 1 mostly "tax"."""
  random = np.random.default_rng(seed)
  active = random.random((items, 4)) < [0.3, 0.2, 0.25, 0]
  texts = []
  for row in active:
    words = list(random.choice(["the", "of", "one", "two"], 2))
    words += [random.choice(["dog", "cat"])] if row[0] else []
    words += ["tax"] if row[1] and random.random() < 0.9 else []
    texts.append(" ".join(words))
  return active * random.random((items, 4)), texts


def loops(codes, has, order):
  """(attributes, score) of each dimension, from the definition."""
  half = len(order) // 2
  chooses, scores = order[:half], order[half:]

  def phi(a, b):
    return (
      0.0
      if a.all() or b.all() or not (a.any() and b.any())
      else np.corrcoef(a, b)[0, 1]
    )

  found = []
  for active in (codes > 0).T:
    each = [phi(active[chooses], column[chooses]) for column in has.T]
    words, best = [], 0
    for word in sorted(range(len(each)), key=lambda i: -each[i])[: names.CANDIDATES]:
      value = phi(active[chooses], has[chooses][:, [*words, word]].any(1))
      if len(words) < names.WORDS and value > best + 1e-12:
        words, best = [*words, word], value
    found.append((words, phi(active[scores], has[scores][:, words].any(1))))
  return found


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_names_are_those_of_the_definition(form):
  codes, texts = planted()
  words = names.of_texts(texts)
  has = words.has.toarray()
  for i, text in enumerate(texts):
    assert {words.names[j] for j in np.flatnonzero(has[i])} == set(text.split())
  found = names.separating(form(codes), words, seed=3)
  random = np.random.default_rng(3)
  order = random.permutation(len(codes))
  expected = loops(codes, has, order)
  assert found.words == tuple(
    tuple(words.names[i] for i in best) for best, _ in expected
  )
  np.testing.assert_allclose(found.score, [s for _, s in expected], atol=1e-12)
  shuffled = loops(codes[random.permutation(len(codes))], has, order)
  np.testing.assert_allclose(found.chance, [s for _, s in shuffled], atol=1e-12)


def test_planted_words_are_found_and_hold_on_other_items():
  codes, texts = planted(2000)
  found = names.separating(codes, names.of_texts(texts))
  assert set(found.words[0][:2]) == {"dog", "cat"} and found.words[1][0] == "tax"
  assert found.score[0] > 0.5 < found.score[1]
  assert np.abs(found.chance).max() < 0.1 > abs(found.score[2])
  assert found.words[3] == () and found.score[3] == 0
  assert found.labels()[3] == "3" and found.labels()[1].startswith("1: tax")


def test_a_query_takes_the_dimensions_of_its_word():
  found = names.Names(
    (("tax", "law"), ("dog",), ("law",), ()), np.array([3.0, 1, 4, 0]), None
  )
  np.testing.assert_allclose(found.query("law").toarray(), [[0.6, 0, 0.8, 0]])
  words, values = found.table()
  assert words == ("dog", "law", "tax")
  np.testing.assert_array_equal(values, [[0, 1, 0, 0], [3, 0, 4, 0], [3, 0, 0, 0]])
  with pytest.raises(InputError, match="'lav'.* law"):
    found.query("lav")


def test_classes_are_attributes():
  found = names.of_labels(["b", "a", "b"])
  assert found.names == ("a", "b")
  np.testing.assert_array_equal(found.has.toarray(), [[0, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize(
  ("labels", "expected"),
  [
    (np.array([3, 0, 3, -1]), ("0", "3")),
    (np.array([3.0, 0.0, 3.0, np.nan]), ("0", "3")),
    (["b", "a", "b", ""], ("a", "b")),
    (["b", "a", "b", None], ("a", "b")),
    (np.array([b"b", b"a", b"b", b""]), ("a", "b")),
  ],
)
def test_an_item_without_a_class_has_none(labels, expected):
  found = names.of_labels(labels)
  assert found.names == expected
  assert found.known.tolist() == [True, True, True, False]
  np.testing.assert_array_equal(found.has.toarray(), [[0, 1], [1, 0], [0, 1], [0, 0]])


def test_missing_texts_are_no_words():
  found = names.of_texts([*["a dog"] * 5, *[None] * 5, *[np.nan] * 5, ""])
  assert found.names == ("dog",)
  assert found.known.tolist() == 5 * [True] + 10 * [False] + [True]


def test_items_whose_attributes_are_unknown_do_not_count():
  codes, _ = planted()
  labels = np.where(codes[:, 0] > 0, "dog", "cat")
  more = np.concatenate([codes, codes[:, ::-1]])
  found, alone = (
    names.separating(rows, names.of_labels(given))
    for rows, given in ((more, [*labels, *[None] * 400]), (codes, labels))
  )
  assert found.words == alone.words and found.score[0] == pytest.approx(1)
  np.testing.assert_array_equal(found.score, alone.score)
  np.testing.assert_array_equal(found.chance, alone.chance)
  with pytest.raises(InputError, match="number of items = 3"):
    names.separating(codes[:5], names.of_labels(["a", "b", "a", None, None]))
  with pytest.raises(InputError, match="-1 and 1 alone"):
    names.of_labels([-1, 1, 1, -1])


def test_other_numbers_of_items_are_refused():
  codes, texts = planted()
  with pytest.raises(InputError, match="399 codes for 400 items"):
    names.separating(codes[:399], names.of_texts(texts))
  with pytest.raises(InputError, match="number of items = 3"):
    names.separating(codes[:3], names.of_labels([0, 1, 0]))


@pytest.fixture
def topics():
  """Embeddings [400, 6] of four topics, and a text with a word of the topic."""
  random = np.random.default_rng(0)
  topic = np.arange(400) % 4
  x = 3 * np.eye(6)[topic] + 0.3 * random.normal(size=(400, 6))
  words = np.array(["dog", "tax", "ship", "song"])[topic]
  others = random.choice(["it", "us"], 400)
  return x, [f"{word} of {other}" for word, other in zip(words, others, strict=True)]


def test_an_encoder_names_its_dimensions(tmp_path, topics):
  x, texts = topics
  made = NonNegativeEncoder(8, n_active=1, epochs=10, batch_size=64, random_state=0)
  made.fit(x[:300])
  plain = made.get_feature_names_out()
  with pytest.raises(InputError, match="name_dimensions first"):
    made.query("dog")
  made.set_output(transform="pandas").name_dimensions(x[:300], texts=texts[:300])
  named = made.get_feature_names_out()
  assert len(set(named)) == 8 and list(named) != list(plain)
  made.set_output(transform="default").set_params(sparse_output=True)
  index = InvertedIndex(made.transform(x[300:]))
  for word in ("dog", "tax", "ship", "song"):
    found = index.nearest(made.query(word), 10)[0]
    assert all(texts[300 + i].startswith(word) for i in found)
  # Names go with their columns into files and shortened copies.
  made.save(tmp_path / "a.safetensors")
  for other in (NonNegativeEncoder.load(tmp_path / "a.safetensors"), made.shorten(8)):
    assert list(other.get_feature_names_out()) == list(named)
    np.testing.assert_array_equal(
      other.query("dog").toarray(), made.query("dog").toarray()
    )
  assert list(made.shorten(2).get_feature_names_out()) == list(named[:2])
  # A new fit forgets them.
  assert list(made.fit(x).get_feature_names_out()) == list(plain)
  made.name_dimensions(x, labels=np.arange(400) % 4)
  assert {word for words in made.names_.words for word in words} == set("0123")
  for given in ({}, {"texts": texts, "labels": texts}):
    with pytest.raises(InputError, match="give texts or labels"):
      made.name_dimensions(x, **given)
