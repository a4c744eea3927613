"""Parts that the recipes of several methods share.

Source: scripts/pretrain of solo-learn, da Costa et al. 2022 (JMLR 23, 21-1155), for
ResNet-18: 1,000 epochs on CIFAR, 400 on ImageNet-100.
"""

# Weaker than CL's. Of two views there, one is inverted with probability 0.2 and one
# never (VICReg: both with 0.1): views are drawn alike here, with the mean.
COLOURS = {
  "augment.brightness": 0.4,
  "augment.contrast": 0.4,
  "augment.saturation": 0.2,
  "augment.hue": 0.1,
  "augment.solarize": 0.1,
}
EPOCHS, EPOCHS_PHOTOGRAPHS = 1000, 400


def projector_batch_norm(config, variant: str) -> None:
  """The projector's hidden layers get BatchNorm; widths stay as the config has them."""
  config.model.projector_batch_norm = True
