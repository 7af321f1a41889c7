# make lab    creates the environment and opens JupyterLab on the first notebook
# make test   creates the environment and runs all tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
EXTRAS ?= test
BIN = $(VENV)/bin

.PHONY: lab test lint house benchmarks lock clean
lab: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/workbench lab

test: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/mypy

# The structure of the package in numbers; fails where one is beyond its limit.
house:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tools.house

benchmarks: $(VENV)/.installed-$(EXTRAS)
	for name in measurement overhead simulator physics kills periods power_profile recurring clocks frontier cluster sharing; do $(BIN)/python -m benchmarks.$$name || exit 1; done

$(VENV)/.installed-$(EXTRAS): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip==26.3
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[$(EXTRAS)]'
	touch $@

# The versions that a fresh environment gets tomorrow; run it to move on.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[test,peers,cluster]'
	build/lock/bin/python -m pip freeze --exclude gpu-energy-workbench | grep -v '@' > requirements.lock

clean:
	rm -rf $(VENV) build dist
