PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install check test faults bench demo docs screenshots clean

help: ## Show what each target does
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter; ARGS='...' is passed on by test, faults, bench, demo and screenshots."

install: $(STAMP) ## Create .venv and install everything for development

# The stamp is made last, so an install that failed half-way is tried again.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Walkback needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)"; \
	  echo "Choose another one with: make PYTHON=/path/to/python3.11 ..."; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[postgresql,test,check]'
	@touch $@

check: $(STAMP) ## Formatting, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP) ## Run the tests, on real SQLite and real PostgreSQL
	$(BIN)/python -m pytest $(ARGS)

faults: $(STAMP) ## Run the fault tests and the random histories at full length
	WALKBACK_FAULTS=long $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/faults tests/store/test_stateful.py $(ARGS)

bench: $(STAMP) ## Run the benchmarks and write bench/results.json
	$(BIN)/python -m bench $(ARGS)

demo: $(STAMP) ## Kill workers at the worst moment, then open the console on what is left of it
	$(BIN)/python -m examples.story $(ARGS)

docs: $(STAMP) ## Write docs/state-machine.md from the code
	$(BIN)/python -m walkback_store.machine.document docs/state-machine.md

screenshots: $(STAMP) ## Write screenshots/ anew, from real runs
	$(BIN)/python -m screenshots.make $(ARGS)

clean: ## Remove everything that was made here
	rm -rf $(VENV) .venv-peers demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
