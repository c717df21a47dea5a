# Fresh clone, Python 3.11 and make: `make run` tries the product, `make test` checks it, `make check` in a minute what is quick.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: run test check test-oldest lint types unit docs release clean

run: $(VENV)/.installed
	$(BIN)/pmal fit --out runs/sample

test: lint types unit

check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# The oldest libraries that are promised: what runs of the CPU tests without the extras.
OLDEST := build/oldest
test-oldest: $(OLDEST)/.installed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 tests/geometry tests/mining tests/optimization \
		tests/rejection tests/estimator tests/data/test_targets.py

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip --disable-pip-version-check install --quiet -c constraints-oldest.txt -e . \
		pytest pytest-xdist hypothesis
	touch $@

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site: build/site/index.html

release: $(VENV)/.installed-dev
	rm -rf dist build/wheel build/tried
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m venv build/wheel
	build/wheel/bin/pip --disable-pip-version-check install --quiet -c constraints.txt dist/*.whl
	cd build && wheel/bin/pmal --version && wheel/bin/pmal fit --out tried --epochs 1 --no-report

$(VENV)/.installed: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null && $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(PIP) -e '.[report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
