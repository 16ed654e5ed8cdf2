# Everything starts from a clone with python3 (3.11 or newer), make and git.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SEEDS  ?= 1000
# Programs that tests run, each in an environment of its own: requirements-NAME.txt says why.
APART  := schemathesis cassandra-driver cqlsh

.DEFAULT_GOAL := help
.PHONY: help run test pytest check bench soak studies format clean install-dev $(APART:%=install-%)

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

# The stamp is newer than the files that say what to install, or the environment is made anew.
$(READY): pyproject.toml setup.py src/maitred/routing/_tokens.c requirements-dev.txt $(APART:%=requirements-%.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maitred needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@echo "setting up $(VENV) (once; takes about a minute)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(MAKE) --no-print-directory -j 4 install-dev $(APART:%=install-%)
	@touch $@

# These fill all environments at once. Of those apart, the tests compile the little that they import.
PIP     := $(BIN)/python -m pip
OPTIONS := --quiet --disable-pip-version-check

install-dev:
	@$(PIP) install $(OPTIONS) -r requirements-dev.txt
	@$(PIP) install $(OPTIONS) --no-deps --no-build-isolation -e .

$(APART:%=install-%): install-%:
	@$(PYTHON) -m venv --without-pip $(VENV)/$*
	@$(PIP) --python $(VENV)/$* install $(OPTIONS) --no-compile -r requirements-$*.txt

run: $(READY) ## start a node with a gateway and example workers; options: make run UP="--port 5000"
	@$(BIN)/maitred up --example $(UP)

test: $(READY) ## lint, types, and every test
	@$(MAKE) --no-print-directory -j 2 check pytest

# Four more at a time than there are cores, since most wait for processes most of their time. Whoever is done
# takes from who has most left: portions would leave one of them with the long ones at the end.
pytest: $(READY)
	@PYTEST_XDIST_AUTO_NUM_WORKERS=$$($(BIN)/python -c 'import os; print(len(os.sched_getaffinity(0)) + 4 if hasattr(os, "sched_getaffinity") else os.cpu_count())') \
		$(BIN)/python -m pytest -n auto --dist worksteal

check: $(READY) ## ruff and strict typing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(READY) ## the benchmarks, each a ratio against a peer in the same run
	@$(BIN)/python -m benchmarks

soak: $(READY) ## the simulated world under SEEDS seeds: make soak SEEDS=100000
	@$(BIN)/maitred simulate soak --seeds $(SEEDS)

# Tests that read MAITRED_THOROUGH: see tests/thorough.py.
studies: $(READY) ## the tests of studies and models under all their seeds; make test tries a few
	@MAITRED_THOROUGH=1 $(BIN)/python -m pytest -n auto $$(grep -rl tests.thorough tests --include='test_*.py')

format: $(READY) ## let ruff format and fix what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove what the build and the tests made
	@rm -rf $(VENV) maitred-data .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info src/maitred/routing/*.so
