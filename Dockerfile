# The programs with jax for CPU, or for an accelerator:
#   docker build --build-arg EXTRA=tpu --tag ncl_jax:tpu .     (EXTRA=cuda, or none;
#   tpu,tfds for data of TensorFlow Datasets)
#   docker run ncl_jax:tpu ncl train --config=... --workdir=...
FROM python:3.12-slim
ARG EXTRA=
WORKDIR /ncl_jax
# What seldom changes first: the layer with the packages is then kept.
COPY requirements.txt constraints.txt pyproject.toml setup.py README.md LICENSE ./
COPY ncl_jax/__init__.py ncl_jax/__init__.py
RUN mkdir launch configs && \
    pip install --no-cache-dir --constraint constraints.txt ".[${EXTRA}]" && \
    pip uninstall --yes ncl_jax
COPY . .
RUN pip install --no-cache-dir --no-deps --editable .
CMD ["ncl", "check"]
