"""What a report says of trainings that were too short, against known curves."""

import math

import numpy as np
import pytest
from ml_collections import ConfigDict

from ncl_jax.config import recipes
from ncl_jax.experiments import training_notes

CONFIG = ConfigDict({"loss": {"name": "nt_xent"}, "train": {"batch_size": 16}})
CHANCE = math.log(31)  # 32 views, of which one is the view itself


def notes(losses, name="nt_xent"):
  config = ConfigDict(CONFIG.to_dict())
  config.loss.name = name
  return training_notes.of("CL", [{"loss": float(x)} for x in losses], config)


@pytest.mark.parametrize("rows", [1, 3, 40, 1000])
def test_a_loss_at_chance_is_hardly_trained(rows):
  (note,) = notes(np.linspace(1.01, 0.97, rows) * CHANCE)
  assert "CL is hardly trained" in note and "ln 31 = 3.43" in note


@pytest.mark.parametrize(
  ("curve", "steep"),
  [
    (lambda t: 3 - 2 * t, True),  # as fast as ever
    (lambda t: 1 + 2 * math.exp(-8 * t), False),  # settled
    (lambda t: 2 + np.cos(np.pi * t), False),  # slows down, as a cosine schedule does
    (lambda t: 1 + t, False),  # rises: another fault, which the curve shows
  ],
)
def test_a_loss_that_still_falls(curve, steep):
  losses = [curve(t) for t in np.linspace(0, 1, 200)]
  assert len(notes(losses)) == steep
  assert not steep or "not trained to the end" in notes(losses)[0]


def test_where_nothing_is_guessed_there_is_no_chance_level():
  assert notes([CHANCE] * 20, "spectral") == ()
  assert notes([]) == ()


def test_fewer_epochs_than_the_recipe_are_told():
  config = recipes.load("digits")
  assert not training_notes.shortened(config)
  config.train.epochs = 2
  (note,) = training_notes.shortened(config)
  assert "2 of the recipe's 36 epochs" in note
  config.name = "my own"
  assert not training_notes.shortened(config)
  config.name = ""
  assert not training_notes.shortened(config)
