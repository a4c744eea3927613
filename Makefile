# make demo   CL against NCL on handwritten digits, with a report; no download of data
# make test   the tests (minutes);  make test-all  with the slow ones, and test-lowest:
#             some with the oldest packages allowed
# make lint   style and types;      make format    mends the style
# Everything is installed on first use into .venv, and again only when the requirements
# change. PYTHON=python3.12 chooses the interpreter, VENV=DIR another place.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
  $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
  2>/dev/null && echo $$p && break; done)
BIN = $(VENV)/bin
LOWEST = $(VENV)-lowest
WORKDIR ?= runs/digits
SEEDS ?= 1

.PHONY: demo test test-all test-lowest lint format install
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '/^# /s/^# //p' Makefile

install: $(VENV)/installed

$(VENV)/installed: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "ncl_jax needs Python 3.11, 3.12 or 3.13 with venv" \
	  "(Debian: python3-venv); none was found. Set PYTHON=/path/to/python."; exit 2; }
	@echo "Installing into $(VENV) with $(PYTHON) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/ncl compare --config=digits --workdir=$(WORKDIR) --seeds=$(SEEDS) \
	  --evaluators=feature_stats,knn,linear_probe,retrieval --controls=untrained

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow'

test-all: install test-lowest
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-lowest: install
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  --editable .
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python pytest hypothesis
	$(LOWEST)/bin/python -m pytest -m 'not slow' -W default tests/losses tests/metrics \
	  tests/models tests/encoder tests/report tests/runtime/checkpoint_test.py \
	  tests/training/loop_test.py tests/evaluators/evaluators_test.py

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
