# `make demo` and `make test` set up all they need, in .venv, from a machine that has only Python.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all test-oldest lint bench studies gpu docs package clean

demo: $(READY)
	$(BIN)/wildtta demo --out runs/demo

test: $(READY) lint
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY) lint
	$(BIN)/python -m pytest

# The oldest Python and torch that are supported, in an environment of their own (OLDEST=python3.10 or a path).
OLDEST ?= python3.10
test-oldest:
	$(OLDEST) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet "torch==2.6.0" torchvision timm pytest hypothesis --editable .
	.venv-oldest/bin/python -m pytest -m "not slow" tests/core tests/test_properties.py tests/test_parity.py README.md

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Cost of the losses and of a step: tables, no judgement.
bench: $(READY)
	$(BIN)/python benchmarks/cost.py

# The paper's studies on the embedded set; the page is runs/studies/index.html.
studies: $(READY)
	$(BIN)/wildtta study all --out runs/studies --threads 2

# All that docs/speed.md shows of a GPU, in about ten minutes on an H200; it goes on where it stopped.
gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py --out docs/data/speed $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/speed_page.py --docs

# The documentation as a site, in site/: open site/index.html. A warning is an error.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Wheel and source distribution in dist/, checked.
package: $(READY)
	$(BIN)/python -m pip install --quiet build twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# torch, torchvision and timm are resolved together: a CPU-only torch does not fit the torchvision on the package index.
$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
