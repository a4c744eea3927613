"""Supervised training with class weights: CE, and the paper's NCE."""

from ncl_jax.methods.record import FRACTION, NOT_NEGATIVE, POSITIVE, Method, Setting


def _set_up(config, variant):
  """SGD on one view of each image, cropped and flipped as the config has it."""
  config.model.projector = variant.endswith("_projector")
  config.data.pair_factors = ()
  config.optimizer.update(name="sgd", learning_rate=0.1, weight_decay=5e-4)
  config.augment.update(jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0)


METHODS = (
  Method(
    name="cross_entropy",
    loss=None,
    variants=(("ce", "nce"), ("ce_projector", "nce_projector")),
    views=1,
    labels=True,
    settings=(
      Setting("loss.logit_scale", 1.0, POSITIVE),  # factor of the logits
      # Probability that is spread over all classes.
      Setting("loss.label_smoothing", 0.0, FRACTION),
      # a of Beta(a, a), from which the weight of either image is drawn; 0: no mixing
      Setting("loss.mixup", 0.0, NOT_NEGATIVE),
      Setting("model.projector", True),  # False: z is h
    ),
    set_up=_set_up,
  ),
)
