"""The recipe refuses what cannot work and takes what JSON makes of it."""

import dataclasses
import json

import pytest

from ncl_jax.augment import AugmentConfig
from ncl_jax.errors import InputError

GOOD = {"size": 32, "mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}


@pytest.mark.parametrize(
  "wrong, allowed",
  [
    ({"size": 0}, "at least 1"),
    ({"size": 1.5}, "whole number"),
    ({"size": "32"}, "a finite number"),
    ({"flip": 1.1}, "at least 0 and at most 1"),
    ({"jitter": -0.1}, "at least 0 and at most 1"),
    ({"grayscale": float("nan")}, "at least 0 and at most 1"),
    ({"blur": True}, "at least 0 and at most 1"),
    ({"solarize": "a"}, "at least 0 and at most 1"),
    ({"brightness": -1}, "at least 0"),
    ({"contrast": float("inf")}, "at least 0"),
    ({"saturation": None}, "at least 0"),
    ({"hue": 0.6}, "at least 0 and at most 0.5"),
    ({"crop_scale": (0, 1)}, "above 0 and at most 1"),
    ({"crop_scale": (0.5, 1.2)}, "above 0 and at most 1"),
    ({"crop_scale": (0.9, 0.1)}, "in order"),
    ({"crop_scale": 0.5}, "2 numbers"),
    ({"crop_ratio": (1, 2, 3)}, "2 numbers"),
    ({"crop_ratio": (0, 1)}, "above 0"),
    ({"blur_radius": (-1, 1)}, "at least 0"),
    ({"blur_radius": (2, 1)}, "in order"),
    ({"mean": (0.5, 0.5)}, "1 or 3"),
    ({"mean": ("a",)}, "a finite number"),
    ({"std": (0.2,)}, "3 numbers"),
    ({"std": (0.2, 0, 0.2)}, "above 0"),
    ({"eval_crop": 0}, "above 0 and at most 1"),
  ],
)
def test_wrong_value_is_named_with_what_is_allowed(wrong, allowed):
  (name, value), *_ = wrong.items()
  with pytest.raises(InputError) as error:
    AugmentConfig(**GOOD | wrong)
  message = str(error.value)
  assert name in message and repr(value) in message and allowed in message


def test_json_round_trip_gives_an_equal_and_hashable_recipe():
  config = AugmentConfig(**GOOD)
  again = AugmentConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
  assert again == config and hash(again) == hash(config)


def test_whole_numbers_stand_for_floats():
  config = AugmentConfig(**GOOD | {"size": 32.0, "jitter": 1, "crop_scale": [1, 1]})
  assert config == AugmentConfig(**GOOD, jitter=1.0, crop_scale=(1.0, 1.0))
  assert isinstance(config.size, int) and isinstance(config.jitter, float)
