"""Two towers: texts as bytes, a small transformer, images and texts in one space."""

from ncl_jax.towers.text import PixelText, TextTransformer
from ncl_jax.towers.tokens import cut, decode, encode
from ncl_jax.towers.two import TwoTowers

__all__ = ["PixelText", "TextTransformer", "TwoTowers", "cut", "decode", "encode"]
