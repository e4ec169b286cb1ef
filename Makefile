# Two commands do everything on a fresh machine:  make demo   and   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= auto

.PHONY: setup demo test test-slow test-studies test-torch test-browser lint format types docs evidence instructions posteriors bench bench-peers reproduce dist same-bits test-pythons clean

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

# coverage of printed intervals and ranks of posterior draws: most of an hour, goes on where it was stopped
evidence: setup
	$(BIN)/python -m benchmarks.evidence coverage
	$(BIN)/python -m benchmarks.evidence ranks
	$(BIN)/python -m benchmarks.evidence page

# instructions per step of the compiled kernels beside stored figures; needs valgrind
instructions: setup
	$(BIN)/python benchmarks/instructions.py

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
	cd build && ../$(BIN)/mypy --strict --python-executable wheel-env/bin/python ../tests/consumer.py \
	  && wheel-env/bin/python ../tests/consumer.py

# one seeded run on every Python at hand, in empty environments with the same packages: the same bits
same-bits:
	$(PYTHON) tests/bits.py --build 3.11 3.12 3.13

# that, and the same suite on every other Python at hand
test-pythons: same-bits
	@for version in 3.12 3.13; do \
	  python=$$($(PYTHON) tests/bits.py --find $$version); \
	  if [ -n "$$python" ]; then \
	    echo "== $$python" && $(MAKE) --no-print-directory setup VENV=.venv-$$version PYTHON=$$python \
	      && .venv-$$version/bin/pytest -n $(WORKERS) --dist loadgroup -m "not slow and not study" -p no:cacheprovider || exit 1; \
	  else echo "== Python $$version is not here: skipped"; fi; \
	done

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache build dist out site
