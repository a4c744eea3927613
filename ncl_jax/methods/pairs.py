"""Methods that contrast the views of an image with other images of the batch."""

from ncl_jax import losses
from ncl_jax.methods import implementations
from ncl_jax.methods.record import LEARN_TEMPERATURE, PAIR_SETTINGS, Method

NT_XENT = Method(
  name="nt_xent",
  loss=implementations.nt_xent,
  variants=(("cl", "ncl"),),
  negatives=(
    "each view has {twice} negatives, both views of the other images of the batch"
  ),
  candidates=lambda batch_size: 2 * batch_size - 1,
  released=True,
  settings=(*PAIR_SETTINGS, LEARN_TEMPERATURE),
  projector_alone=True,
  implementation=implementations.choose,
)
METHODS = (
  NT_XENT,
  Method(
    name="sup_con",
    loss=implementations.sup_con,
    variants=(("supcon", "supcon_ncl"),),
    negatives=(
      "each view has {candidates} other views of the batch as candidates; those of its "
      "class are positives"
    ),
    labels=True,
    released=True,
    settings=(*PAIR_SETTINGS, LEARN_TEMPERATURE),
  ),
  # Its configs are of the methods "cl" and "ncl".
  Method(
    name="clip",
    loss=implementations.clip,
    negatives=(
      "each image has {others} texts as negatives, each text {others} images of the "
      "batch"
    ),
    candidates=lambda batch_size: batch_size,
    views=1,
    captions=True,
    settings=(*PAIR_SETTINGS, LEARN_TEMPERATURE),
  ),
  Method(
    name="spectral",
    loss=lambda given: losses.spectral(given.f, precision=given.settings.precision),
    variants=(("spectral", "spectral_ncl"),),
    negatives=(
      "each view has {others} negatives, the other views of other images of the batch"
    ),
    settings=PAIR_SETTINGS,
  ),
)
