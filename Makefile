PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# what measures times must have the machine for itself
SIDE_BY_SIDE := tests/cache tests/coder tests/plans
ALONE := tests/evaluator tests/search

.PHONY: demo test lint setup clean

demo: $(STAMP)
	$(BIN)/kerntree demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest $(ALONE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kerntree needs Python 3.11 or later; call make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs
