"""Features of texts, and of images that are not in a run's data set."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from ncl_jax import config as config_lib
from ncl_jax import features
from ncl_jax.data.source import Split
from ncl_jax.evaluators.run import FeatureSource, Run
from ncl_jax.models import byte_tokenizer


def embed_texts(run: Run, texts: Sequence[str] | np.ndarray) -> np.ndarray:
  """Features f [N, D] of texts by the text tower, in evaluation mode.

  Args:
    run: of two towers, `loss.name` "clip".

  Raises:
    FloatingPointError: if a feature is NaN or infinite.
  """
  config = run.config
  tokens = byte_tokenizer.encode(texts, config.text.length)
  size, model = config.eval.batch_size, config_lib.model(config)
  padded = np.pad(tokens, ((0, -len(tokens) % size), (0, 0)))
  parts = [
    features.embed(_embed_texts(model, run.variables, rows), config.loss.transform)
    for rows in padded.reshape(-1, size, tokens.shape[1])
  ]
  found = np.concatenate(parts)[: len(tokens)]
  features.check_finite("f", found, range(len(found)), "text")
  return found


def embed_images(run: FeatureSource, images: np.ndarray) -> np.ndarray:
  """Features f [N, D] of other images than the source's, such as partners.

  Args:
    images: uint8 [N, H, W, C].
  """
  split = Split(images, np.full(len(images), -1, np.int32))
  swapped = dataclasses.replace(run.source, splits=run.source.splits | {"test": split})
  return run.on(swapped).layer("f", "test")


@functools.partial(jax.jit, static_argnums=0)
def _embed_texts(model, variables, tokens):
  with jax.default_matmul_precision("float32"):
    return model.apply(variables, tokens, method="embed_text")[2]
