"""What pyproject.toml cannot say: programs and recipes are parts of the package.

In a checkout they are `launch/` and `configs/`, installed `ncl_jax.launch` and
`ncl_jax.configs`. site-packages gets no folder of such a common name.
"""

from setuptools import find_packages, setup

setup(
  packages=[*find_packages(include=["ncl_jax*"]), "ncl_jax.launch", "ncl_jax.configs"],
  package_dir={"ncl_jax.launch": "launch", "ncl_jax.configs": "configs"},
)
