# Two commands do everything on a fresh machine:  make demo   and   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= auto

.PHONY: setup demo test test-slow test-studies test-torch test-browser lint format types docs coverage-study posteriors bench bench-peers reproduce dist test-pythons clean

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
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow and not study"

test-slow: setup
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m slow

test-studies: setup
	$(BIN)/pytest -n $(WORKERS) -m study

test-torch: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[torch]"
	$(BIN)/pytest -m torch tests

# needs Chromium (Debian: apt install chromium); without one the tests are skipped, with that reason
test-browser: setup
	$(BIN)/pytest -m browser -rs tests

docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/mkdocs build --strict --quiet

coverage-study: setup
	$(BIN)/python benchmarks/interval_coverage.py
	$(BIN)/python benchmarks/cluster_coverage.py

posteriors: setup
	$(BIN)/python benchmarks/posteriors.py

bench-peers: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check blackjax numpyro posteriors

bench: setup
	$(BIN)/python benchmarks/run.py

reproduce: setup
	$(BIN)/equipoise reproduce all $(if $(GERMAN_CSV),--german-csv $(GERMAN_CSV))

# what is published: built, checked, installed into an empty environment and tried there
dist: setup
	rm -rf dist build/wheel-env
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build && wheel-env/bin/python -c "import numpy, pandas; x = numpy.arange(500) % 7; \
	  pandas.DataFrame({'x': x, 'y': numpy.random.default_rng(0).poisson(1 + x)}).to_csv('counts.csv', index=False)" \
	  && wheel-env/bin/equipoise fit counts.csv "y ~ x" --family poisson --report counts.html

# the same suite on every other Python at hand
PYTHONS ?= python3.12 python3.13
test-pythons:
	@for python in $(PYTHONS); do \
	  if $$python -c "" 2>/dev/null; then \
	    echo "== $$python" && $(MAKE) --no-print-directory setup VENV=.venv-$$python PYTHON=$$python \
	      && .venv-$$python/bin/pytest -n $(WORKERS) --dist loadgroup -m "not slow and not study" -p no:cacheprovider || exit 1; \
	  else echo "== $$python is not here: skipped"; fi; \
	done

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache build dist out site
