# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The default torch for Linux brings CUDA, 5.7 GB. The CPU build of the same version comes from your
# own index where it has one, and otherwise from PyTorch's. For CUDA: make TORCH=torch demo
TORCH ?= torch==$(shell sed -n 's/^torch==//p' constraints.txt)+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test lint types unit docs clean

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)" 2>/dev/null || \
		$(BIN)/pip install --quiet -c constraints.txt --extra-index-url $(TORCH_INDEX) torch
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

# Train on the embedded dataset, evaluate it and show the result; a second call shows it again.
demo: $(VENV)/.core
	$(BIN)/pbrl train --run-dir runs/demo --resume

# Lint, types and the tests; make test SLOW=1 also runs those marked slow.
test: $(VENV)/.dev lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile $(if $(SLOW),,-m "not slow")

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build site .pytest_cache .mypy_cache .ruff_cache
