# The house's commands. `make help` lists them; each sets up what it needs and is quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST ?= $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help setup check format test demo bench clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(READY) ## make .venv with everything pinned, and look for the system packages that tests use

$(READY): pyproject.toml constraints.txt scripts/setup
	PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

check: $(READY) ## format, lint, types, import contracts, generated files, sizes, Python 3.9 worker, the wheel
	scripts/check $(BIN)

format: $(READY) ## write the format that `make check` wants
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

test: $(READY) ## set up and run all tests
	$(BIN)/python scripts/test.py

demo: $(READY) ## an elastic PyTorchJob on the laptop cluster: scaled up, a worker killed, trained to its end
	$(BIN)/python examples/demo/demo.py

bench: $(READY) ## every benchmark, one after the other
	@for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f || exit 1; done

clean: ## remove what the commands above made
	rm -rf $(VENV) .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
