# Everything here works on a machine with Python 3.11 (or newer) and nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types contracts generated reference lock demo-model test-models clean

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

# An environment of another Python than PYTHON, or of one that is gone, is made anew.
OTHER_PYTHON := $(shell test "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" || echo other-python)
.PHONY: other-python

# Pinned with hashes; the project itself is installed in place.
$(VENV)/.run: requirements/base.txt pyproject.toml $(OTHER_PYTHON)
	$(PYTHON) -c 'import sys; sys.exit("batchgen needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -z "$(OTHER_PYTHON)" || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/base.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.run
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/test.txt
	touch $@

demo: $(VENV)/.run ## run labelled orders through the whole stack on the shipped model
	$(BIN)/batchgen demo

test: $(VENV)/.test ## run the tests
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: lint types contracts generated ## ruff, mypy, import contracts, generated pages

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

contracts: $(VENV)/.test
	$(BIN)/lint-imports --no-cache

generated: $(VENV)/.test
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python -m api.openapi --check

reference: $(VENV)/.test ## write the generated pages in docs/reference anew
	$(BIN)/python scripts/reference.py
	$(BIN)/python -m api.openapi

lock: $(VENV)/.test ## pin the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install --quiet pip-tools
	cd requirements && for set in base test; do \
	  extra=$$(test $$set = test && echo '--extra test'); \
	  ../$(BIN)/pip-compile --quiet --upgrade --allow-unsafe --generate-hashes --strip-extras --no-header \
	    --no-annotate --no-emit-index-url --no-emit-find-links --extra openvino $$extra \
	    -o $$set.txt ../pyproject.toml base.in || exit 1; done

demo-model: ## train and export the demo models anew (minutes; an environment of its own)
	sh scripts/demo-model.sh

test-models: ## make the tiny models of random weights in tests/models anew
	RECIPE=batchgen.demo.recipe.random_models sh scripts/demo-model.sh --out tests/models

clean: ## remove the environments and what they left
	rm -rf $(VENV) .venv-export build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
