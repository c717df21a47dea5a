# Fresh clone, Python 3.11 and make: `make run` tries the product, `make test` checks it, `make check` in a minute what is quick.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONPATH # or pip takes a source folder in it for an installed package
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: run test check test-oldest lint types unit docs release audit clean

run: $(VENV)/.installed
	$(BIN)/pmal fit --out runs/sample

test: lint types unit

check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src docs README.md CHANGELOG.md CONTRIBUTING.md

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

# What is published: both archives, the wheel tried in an empty environment in which every package has the
# checksum that requirements.txt names, the list of all packages, checksums.
RELEASE_PIP := build/release/bin/pip --disable-pip-version-check install --quiet
release: $(VENV)/.installed-dev
	rm -rf dist build/release
	$(PIP) 'build>=1.2'
	$(BIN)/python -m build --quiet
	$(BIN)/python -m venv build/release
	$(RELEASE_PIP) --dry-run --ignore-installed --report build/release/report.json -c constraints.txt dist/*.whl
	$(BIN)/python scripts/pin_hashes.py build/release/report.json > dist/requirements.txt
	$(RELEASE_PIP) --require-hashes --requirement dist/requirements.txt
	$(RELEASE_PIP) --no-deps dist/*.whl
	cd build/release && OMP_NUM_THREADS=1 bin/pmal fit --epochs 1 --out sample --no-report
	$(PIP) 'cyclonedx-bom>=5' && $(BIN)/cyclonedx-py environment build/release -o dist/sbom.json || \
	  echo 'no list of packages: cyclonedx-bom cannot be installed here'
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

# pip-audit asks a server for known faults.
audit: $(VENV)/.installed-dev
	$(PIP) 'bandit>=1.8' 'pip-audit>=2.7'
	-$(BIN)/bandit --quiet --recursive --severity-level medium src
	-$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

$(VENV)/.installed: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null && $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(PIP) -e '.[report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
