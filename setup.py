"""What pyproject.toml cannot say: programs and recipes are parts of the package.

In a checkout they are `launch/` and `configs/`, installed `ncl_jax.launch` and
`ncl_jax.configs`: site-packages gets no folder of such a common name. The command `ncl`
runs the files; nothing imports them by these names.
"""

import pathlib

from setuptools import find_packages, setup

OF_TFDS = ("tensorflow-datasets", "importlib_resources")  # see pyproject.toml's extra
LINES = (pathlib.Path(__file__).parent / "requirements.txt").read_text().splitlines()
NEEDED = [requirement for line in LINES if (requirement := line.split("#")[0].strip())]

setup(
  packages=[*find_packages(include=["ncl_jax*"]), "ncl_jax.launch", "ncl_jax.configs"],
  package_dir={"ncl_jax.launch": "launch", "ncl_jax.configs": "configs"},
  install_requires=[x for x in NEEDED if not x.startswith(OF_TFDS)],
)
