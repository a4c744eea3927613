"""Losses on feature arrays: they see the global batch and know no mesh and no model."""

from ncl_jax.losses.clip import clip
from ncl_jax.losses.cross_entropy import cross_entropy, scores
from ncl_jax.losses.nt_xent import nt_xent
from ncl_jax.losses.similarities import PRECISIONS
from ncl_jax.losses.spectral import spectral
from ncl_jax.losses.supervised import sup_con, supervised_nt_xent
from ncl_jax.numerics import l2_normalize

__all__ = [
  "PRECISIONS",
  "clip",
  "cross_entropy",
  "l2_normalize",
  "nt_xent",
  "scores",
  "spectral",
  "sup_con",
  "supervised_nt_xent",
]
