"""Non-negative Contrastive Learning (Wang et al., ICLR 2024) in JAX and Flax."""

__version__ = "0.3.0"
