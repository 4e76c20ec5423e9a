# Two commands to know: `make demo` and `make test`. Both set up .venv by themselves (tools/install.py).

.DEFAULT_GOAL := help
SHELL := /bin/sh
SECONDS ?= 600
BIN := .venv/bin

# The first Python that is new enough. Evaluated only by the targets that use it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test test-full near check bench docs mutants screenshots soak clean have-python

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: have-python ## see a fleet of workers survive kill -9, on a local directory (installs the core and SQL)
	@$(PYTHON) tools/install.py demo
	@$(BIN)/limpet demo

test: have-python ## everything that must hold before a commit, with the time budget
	@$(PYTHON) tools/budget.py test

test-full: have-python ## `test` plus the tests marked full, and many on other Pythons: more servers, more minutes
	@$(PYTHON) tools/budget.py test-full

near: have-python ## the tests nearest to FILE=src/limpet/...: its own, those that name it, and its planted bugs
	@test -n "$(FILE)" || { echo "say which file: make near FILE=src/limpet/queue/decide.py" >&2; exit 2; }
	@$(PYTHON) tools/install.py dev
	@$(BIN)/python tools/near.py $(FILE)

check: have-python ## lint and types only
	@$(PYTHON) tools/budget.py check

bench: have-python ## our store against bare calls; our queue, durable tasks, index and catalog against their peers
	@$(PYTHON) tools/install.py bench
	@$(BIN)/python bench/kernel.py
	@$(BIN)/python bench/queue.py
	@$(BIN)/python bench/durable.py
	@$(BIN)/python bench/index.py
	@$(BIN)/python bench/catalog.py

docs: have-python ## the documentation as a static site in build/site, every link checked
	@$(PYTHON) tools/install.py docs
	@$(BIN)/python tools/make_site.py

mutants: have-python ## change the decision modules in 1,000 ways, and see whether the tests notice
	@$(PYTHON) tools/install.py test
	@$(BIN)/python tools/mutate.py --all

screenshots: have-python ## take the pictures of the dashboard in docs/img again
	@$(PYTHON) tools/install.py screenshots
	@$(BIN)/python tools/screenshots.py

soak: have-python ## simulate new seeds for SECONDS=600, then damage stored objects for a quarter of that
	@$(PYTHON) tools/install.py dev
	@$(BIN)/python -m sim soak --seconds $(SECONDS)
	@$(BIN)/python tests/fuzz/run.py --seconds $$(($(SECONDS) / 4)) --seed $$(date +%s)

clean: ## remove the venv, caches and build output
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist src/*.egg-info
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

have-python:
	@test -n "$(PYTHON)" || { echo "limpet needs Python 3.11 or newer with venv, and found none: install it, or say make PYTHON=/path/to/python3" >&2; exit 1; }
