# make demo   train on the digits and draw some, in a few minutes on two CPU cores
# make test   every test but the slow ones
#
# Needs only make and Python >= 3.11; everything else goes into .venv. Another interpreter:
# make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Two processes of one thread each use two cores better than one process of two threads, and
# threads that spin while they wait would slow the other process down a hundredfold.
TEST_PROCESSES ?= 2
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n $(TEST_PROCESSES)

.PHONY: help setup demo test test-slow lint format docs wheel clean

help:
	@echo 'make demo       train on the digits and draw some'
	@echo 'make test       every test but the slow ones'
	@echo 'make test-slow  the slow ones'
	@echo 'make lint       ruff and basedpyright'
	@echo 'make format     let ruff rewrite the files'
	@echo 'make docs       build the documentation into docs/_build/html'
	@echo 'make wheel      build the package into dist/'
	@echo 'make clean      remove .venv and everything built'

setup: $(READY)

# The file is written last, so that an interrupted set-up starts over. The build tools are
# installed first and used as they are: pip's own build environments would ignore the constraints.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'bfn needs Python 3.11 or newer: try  make PYTHON=python3.12' >&2; exit 1; }
	@echo 'Setting up $(VENV): a minute or two, once'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo 'could not create $(VENV): on Debian and Ubuntu, install python3-venv' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/bfn demo --out demo --force

test: $(READY)
	$(PYTEST) -m 'not slow'

# pytest answers 5 when no test is marked slow: nothing to run is no failure.
test-slow: $(READY)
	$(PYTEST) -m slow || test $$? -eq 5

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# -W: a warning is a mistake.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo 'open docs/_build/html/index.html'

wheel: $(READY)
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) build dist demo docs/_build
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
