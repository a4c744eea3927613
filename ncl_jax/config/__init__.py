"""The settings of a run: defaults, checks, JSON, and what they build.

Every field exists in `fields.py` with its default; a file in `configs/` changes some of
them, and what the data fill in is what `config.json` records.
"""

from ncl_jax.config.build import (
  augmentation,
  model,
  negatives,
  predictor,
  texts_cut,
  views,
  widths,
)
from ncl_jax.config.fields import CHOICES, defaults, set_method
from ncl_jax.config.keys import (
  differences,
  from_json,
  get,
  known_keys,
  nearest_key,
  overrides,
  put,
  to_json,
)
from ncl_jax.config.resolution import resolve
from ncl_jax.config.validation import validate

__all__ = [
  "CHOICES",
  "augmentation",
  "defaults",
  "differences",
  "from_json",
  "get",
  "known_keys",
  "model",
  "nearest_key",
  "negatives",
  "overrides",
  "predictor",
  "put",
  "resolve",
  "set_method",
  "texts_cut",
  "to_json",
  "validate",
  "views",
  "widths",
]
