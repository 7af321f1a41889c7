# make lab    creates the environment, with nothing but the lab, and opens JupyterLab on the first notebook
# make test   creates the environment and runs the tests, in parallel; `make test-all` adds slow tests and benchmarks' tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
EXTRAS ?= test
# Further options of `make lab`, as in LAB="--no-browser --ip 127.0.0.1 --port 8899".
LAB ?=
BIN = $(VENV)/bin
# Much of the suite waits for processes and clocks: more workers than two cores.
WORKERS ?= 4
# Further options of pytest, after our own: PYTEST="-k limits", PYTEST="-m slow" for the slow ones only.
PYTEST ?=
# Files are compiled once: each worker, and hundreds of processes that the tests start, import them.
RUN_PYTEST = $(BIN)/python -m compileall -q -j 2 -x node_modules workbench kernels_ext benchmarks tools && \
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# Node lints, tests and bundles the views' JavaScript; where it is missing all else goes on without.
NPM := $(shell PATH="$(abspath $(BIN)):$$PATH" command -v npm)
IN_JS = cd tools/js && PATH="$(abspath $(BIN)):$$PATH"
NO_NODE = @echo "JavaScript is left out: Node and npm are not here"

.PHONY: lab test test-all test-environments lint bundle house docs tutorials package benchmarks lock clean
lab: $(VENV)/.installed-lab
	$(BIN)/workbench lab $(LAB)

# A browser test needs axe-core, which npm installs; where npm is missing it is skipped.
test test-all: $(VENV)/.installed-$(EXTRAS) $(if $(NPM),tools/js/node_modules)
	$(if $(NPM),$(IN_JS) npm test --silent,$(NO_NODE))
	$(RUN_PYTEST) $(SELECTED) $(PYTEST)
test: SELECTED = -m "not slow"
# The slow tests too, and those of the benchmarks' code, which no user runs.
test-all: SELECTED = tests benchmarks/tests

# `make test` in a fresh clone, without npm, without Chromium, without PostgreSQL, and with all of them.
test-environments:
	$(PYTHON) -m tools.environments

lint: $(VENV)/.installed-$(EXTRAS) $(if $(NPM),tools/js/node_modules)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tools.writing
	$(if $(NPM),$(IN_JS) npm run --silent lint && npm run --silent check,$(NO_NODE))

# The views as a wheel carries them, in build/js.
bundle: tools/js/node_modules
	$(IN_JS) npm run --silent bundle -- $(CURDIR)/build/js

# The structure of the package in numbers; fails where one is beyond its limit.
house:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tools.house

# The documentation site, in build/docs, without a network; a warning is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -b html -E -j 2 -W --keep-going -q docs build/docs

# The notebooks with their outputs, as the site shows them.
tutorials: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/python -m tools.tutorials

benchmarks: $(VENV)/.installed-$(EXTRAS)
	for name in measurement overhead simulator physics kills bad_inputs periods power_profile recurring limits clocks truth recordings frontier cluster sharing; do $(BIN)/python -m benchmarks.$$name || exit 1; done

# "lab" has nothing but what users have; any other name is an extra of pyproject.toml, or several, with commas.
# What is downloaded has the hashes of requirements.lock, from its parts "build", "plain" and those of the extras.
$(VENV)/.installed-%: pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m tools.lock --parts build,plain,$(filter-out lab,$*) > $(VENV)/locked.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/locked.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

tools/js/node_modules: tools/js/package-lock.json
	$(IN_JS) npm ci --ignore-scripts --no-audit --no-fund
	touch $@

# The newest versions that fit, with the hashes of their files; KEEP=--keep keeps those that are there already.
KEEP ?=
lock:
	test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/python -m pip install --quiet uv; }
	build/lock/bin/python -m tools.lock $(KEEP)

# sdist and wheel in dist/, checked, and tried in an environment that has nothing else.
package: $(VENV)/.installed-package
	rm -rf dist && $(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tools.try_package dist/*.whl

clean:
	rm -rf $(VENV) build dist
