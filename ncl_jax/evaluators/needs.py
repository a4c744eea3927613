"""What a program needs of the data, and an error at once where they have it not."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from ncl_jax import evaluators
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError


def applicable(config: ConfigDict, source: Source) -> tuple[str, ...]:
  """The programs that a run's data allow: keys of `evaluators.PROGRAMS`."""
  return evaluators.applicable(
    bool(source.num_classes), source.texts, paired(config, source)
  )


def paired(config: ConfigDict, source: Source) -> bool:
  """Whether a run has two of each thing that can be asked to find each other."""
  # Partners that are drawn anew in each step are no pairs to be found again.
  drawn = bool(config.data.pair_factors)
  partners = source.split("test").partners is not None and not drawn
  return config.loss.name == "clip" or partners


def check(programs: Sequence[str], config: ConfigDict, source: Source) -> None:
  """Stops before any training where a program would say nothing afterwards.

  Args:
    programs: keys of `evaluators.PROGRAMS`, others are left alone.
    config: of the runs.
    source: their data.

  Raises:
    InputError: naming the first such program.
  """
  for name in programs:
    if name not in evaluators.PROGRAMS:
      continue
    if name not in evaluators.WITHOUT_LABELS:
      need_labels(source, name)
    if name in evaluators.CHANGE_IMAGES:
      need_images(source, name)
    if name in evaluators.NEED_PAIRS and not paired(config, source):
      raise InputError(
        f"{source.name} with loss.name={config.loss.name} has no pairs and {name} "
        "needs them: captions with loss.name=clip, or partners, from pairs:FILE.npz"
      )


def need_images(source: Source, program: str) -> None:
  """Stops a program that changes images where the data are texts.

  Raises:
    InputError: if they are.
  """
  if source.texts:
    allowed = [x for x in evaluators.PROGRAMS if x not in evaluators.CHANGE_IMAGES]
    raise InputError(
      f"{source.name} holds texts and {program} changes images: "
      f"{', '.join(allowed)} take texts"
    )


def need_labels(source: Source, program: str) -> None:
  """Stops a program that means nothing without labels.

  Raises:
    InputError: if the data have none.
  """
  if not source.num_classes:
    test = source.split("test")
    pairs = test.partners is not None or test.captions is not None
    allowed = evaluators.applicable(False, source.texts, pairs)
    raise InputError(
      f"{source.name} has no labels and {program} needs them: "
      f"{', '.join(allowed)} work without"
    )
