# `make demo` and `make test` set up all they need, in .venv, from a machine that has only Python.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all lint bench gpu studies clean

demo: $(READY)
	$(BIN)/wildtta demo --out runs/demo

test: $(READY) lint
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY) lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Cost of the losses and of a step: tables, no judgement.
bench: $(READY)
	$(BIN)/python benchmarks/cost.py

# All that docs/speed.md shows of a GPU, in about ten minutes on an H200; it goes on where it stopped.
gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py --out docs/data/speed $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/speed_page.py --docs

# The paper's studies on the embedded set; the page is runs/studies/index.html.
studies: $(READY)
	$(BIN)/wildtta study all --out runs/studies --threads 2

# torch, torchvision and timm are resolved together: a CPU-only torch does not fit the torchvision on the package index.
$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
