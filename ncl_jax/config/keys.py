"""Fields by their dotted names; configs as JSON, and how two of them differ."""

import difflib
import json
from typing import Any

from ml_collections import ConfigDict

from ncl_jax.config.fields import defaults
from ncl_jax.errors import InputError

# Names of fields before version 0.3.
RENAMED = {
  "loss.map": "loss.transform",
  "loss.scale": "loss.logit_scale",
  "loss.momentum": "loss.ema_decay",
  "eval.activity": "eval.activation_rate",
  "optimizer.clip": "optimizer.trust_clip",
  "train.accumulate": "train.grad_cache_chunks",
}
# May differ when a run goes on: they change what is written or where, not what.
FREE_ON_RESUME = (
  "expected",
  "train.log_every_steps",
  "train.checkpoint_every_epochs",
  "train.checkpoint_every_minutes",
  "train.keep_checkpoints",
  "train.cpu_devices",
  "train.steps_per_call",
  "data.on_device_mib",
  "data.decoded_cache",
  "eval.transfer",
  "eval.ood",
)


def to_json(config: ConfigDict) -> str:
  """Canonical JSON: sorted keys, tuples as lists."""
  return json.dumps(config.to_dict(), indent=2, sort_keys=True, allow_nan=False) + "\n"


def from_json(text: str) -> ConfigDict:
  """The inverse of `to_json`.

  Raises:
    InputError: if it is no JSON object, or a field is unknown here or of another type.
  """
  try:
    values = json.loads(text)
  except json.JSONDecodeError as error:
    raise InputError(f"config.json is not JSON: {error}") from error
  if not isinstance(values, dict):
    raise InputError("config.json is JSON, but not an object of fields")
  config = defaults()
  expected = values.pop("expected", {})
  config.expected = ConfigDict(expected if isinstance(expected, dict) else {})
  for key, value in flat(values).items():
    try:
      put(config, key, tuple(value) if isinstance(value, list) else value)
    except InputError as error:
      raise InputError(f"config.json: {error}") from error
  return config


def overrides(recipe: ConfigDict, given: ConfigDict) -> dict[str, Any]:
  """The fields in which a config is not its recipe: dotted name -> its value."""
  usual = flat(recipe)
  return {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in flat(given).items()
    if key not in usual or usual[key] != value
  }


def differences(stored: ConfigDict, given: ConfigDict) -> list[str]:
  """The fields in which two configs differ in a way that changes results.

  Returns:
    Lines "KEY: STORED there, GIVEN here"; empty if the run may go on.
  """
  a, b = flat(stored), flat(given)
  return [
    f"{key}: {a.get(key)!r} there, {b.get(key)!r} here"
    for key in sorted(a.keys() | b.keys())
    if a.get(key) != b.get(key)
    and not any(key == free or key.startswith(free + ".") for free in FREE_ON_RESUME)
  ]


def get(config: ConfigDict, key: str) -> Any:
  """A field by its dotted name."""
  for part in key.split("."):
    config = config[part]
  return config


def put(config: ConfigDict, key: str, value: Any) -> None:
  """Sets a field by its dotted name.

  Raises:
    InputError: for an unknown field, or a value of another type.
  """
  *sections, field = key.split(".")
  place = config
  for section in sections:
    place = place.get(section) if isinstance(place, ConfigDict) else None
  if not isinstance(place, ConfigDict) or field not in place:
    near = nearest_key(key)
    hint = f": did you mean {near}?" if near else ""
    raise InputError(f"unknown config field {key!r}{hint}")
  try:
    place[field] = value
  except TypeError as error:
    raise InputError(f"{key} = {value!r}: {error}") from error


def known_keys() -> list[str]:
  """Every field, dotted ("loss.temperature")."""
  return list(flat(defaults()))


def nearest_key(key: str) -> str | None:
  """The known field that looks most like `key` ("loss.temprature"), if any does."""
  if key in RENAMED:
    return RENAMED[key]
  known = known_keys()
  near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
  if near:
    return near[0]
  # The last part may be right and the section wrong or missing.
  leaf = key.rsplit(".", 1)[-1]
  by_leaf = {name.rsplit(".", 1)[-1]: name for name in known}
  near = difflib.get_close_matches(leaf, list(by_leaf), n=1, cutoff=0.6)
  return by_leaf[near[0]] if near else None


def flat(config: ConfigDict | dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """Dotted keys to values as JSON would give them back."""
  found: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, ConfigDict | dict):
      found.update(flat(value, f"{prefix}{key}."))
    else:
      found[prefix + key] = list(value) if isinstance(value, tuple) else value
  return found
