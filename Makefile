# Two commands do everything on a fresh machine:  make demo   and   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= auto

.PHONY: setup demo test test-slow test-torch test-browser lint format types docs coverage-study posteriors bench bench-peers reproduce clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow"

test-slow: setup
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m slow

test-torch: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[torch]"
	$(BIN)/pytest -m torch tests

test-browser: setup
	$(BIN)/pytest -m browser tests

docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/mkdocs build --quiet

coverage-study: setup
	$(BIN)/python benchmarks/interval_coverage.py

posteriors: setup
	$(BIN)/python benchmarks/posteriors.py

bench-peers: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check blackjax numpyro posteriors

bench: setup
	$(BIN)/python benchmarks/run.py

reproduce: setup
	$(BIN)/equipoise reproduce all $(if $(GERMAN_CSV),--german-csv $(GERMAN_CSV))

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist out
