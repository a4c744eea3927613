"""Losses of feature arrays: functions of the global batch, without mesh or model."""

from ncl_jax.losses.barlow_twins import barlow_twins
from ncl_jax.losses.byol import byol
from ncl_jax.losses.clip import clip
from ncl_jax.losses.cross_entropy import cross_entropy, scores
from ncl_jax.losses.dino import dino, dino_centre
from ncl_jax.losses.moco_v3 import moco_v3
from ncl_jax.losses.nt_xent import nt_xent
from ncl_jax.losses.similarities import PRECISIONS
from ncl_jax.losses.spectral import spectral
from ncl_jax.losses.supervised import sup_con, supervised_nt_xent
from ncl_jax.losses.vicreg import vicreg
from ncl_jax.numerics import l2_normalize

__all__ = [
  "PRECISIONS",
  "barlow_twins",
  "byol",
  "clip",
  "cross_entropy",
  "dino",
  "dino_centre",
  "l2_normalize",
  "moco_v3",
  "nt_xent",
  "scores",
  "spectral",
  "sup_con",
  "supervised_nt_xent",
  "vicreg",
]
