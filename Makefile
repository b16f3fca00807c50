# Two commands do everything: `make demo` and `make test`. Each makes its own .venv first.
PYTHON ?= python3
VENV := .venv
WORKERS ?= 2
BIN := $(VENV)/bin

.PHONY: demo test check results clean

demo: $(VENV)/.installed
	$(BIN)/prosmin demo --out runs/demo

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile  # of one thread each

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# RESULTS.md with its figure, and the tables of README.md and docs/, from the files in benchmarks/results/.
results: $(VENV)/.installed-test
	$(BIN)/python benchmarks/results.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prosmin needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $@ $(VENV)/.installed

# The environment and caches; what a user trained stays.
clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
