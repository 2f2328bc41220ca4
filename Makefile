# Everything a newcomer needs: `make demo`, `make test`. Each target makes its own virtual environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-all test-papers lint bench docs notebooks clean

help:
	@echo "make demo   train on the digits graph and compare: isolated, fedavg, fedgcn, central; three seeds each"
	@echo "make test   lint, types, and the tests that answer in minutes"
	@echo "make test-all     and those on real data (GRAPHFED_DATA), of deployments, kills and what else is slow"
	@echo "make test-papers  those that take hours, and every benchmark"
	@echo "make lint   ruff and mypy only"
	@echo "make docs   build the documentation: build/docs/index.html"
	@echo "make notebooks    execute the notebooks of examples/notebooks and write their outputs: minutes"
	@echo "make bench  the benchmarks, as ratios: about ten minutes (FULL=1: every size)"
	@echo "make clean  remove the virtual environment and every cache (runs/ stays)"

demo: $(READY)
	@$(BIN)/graphfed compare isolated fedavg fedgcn central --data digits --seeds 0,1,2

PYTEST := $(BIN)/python -m pytest -rs --dist loadfile --no-loadscope-reorder

# The tiers of tests to run. Deployments of the second tier wait more than they compute, and the first tier
# computes meanwhile.
TIER ?= 1

test: lint
	@$(PYTEST) -n $(if $(findstring 2,$(TIER)),3,logical --maxprocesses 4) --tier $(TIER)

test-all:
	@$(MAKE) --no-print-directory test TIER=1,2

test-papers: $(READY)
	@$(PYTEST) -n 2 --tier 3

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: $(READY)
	@$(BIN)/python benchmarks/run_all.py $(if $(FULL),--full)

docs: $(READY)
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

notebooks: $(READY)
	@$(BIN)/python scripts/notebooks.py

clean:
	rm -rf $(VENV) *.egg-info build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_tutorial docs/_notebooks docs/_plots docs/sg_execution_times.rst
	find graphfed tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is made last, so an installation that was cut short starts again.
# The build tools are installed first, so that they too come from constraints.txt.
$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is missing or older than Python 3.11; name another one:" \
	       "make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "setting up $(VENV) from constraints.txt (once; a few minutes)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --editable '.[dev]'
	@touch $@
