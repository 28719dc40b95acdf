# The house's commands. `make help` lists them; each sets up what it needs and is quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
SITE := $(VENV)/.site
PYTEST ?= $(BIN)/pytest
# A cluster is many processes, and each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-fast test-full test-heavy sim demo docs horovod release bench bench-controller bench-rescale bench-rendezvous clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(READY) $(TOOLS) ## make .venv with everything pinned, and look for the system programs that tests use

$(READY): pyproject.toml constraints.txt scripts/setup
	PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

$(TOOLS): scripts/setup-tests | $(READY)
	scripts/setup-tests
	@touch $@

check: $(READY) ## format, lint, types, import contracts, generated files, links, spelling, prose, sizes, Python 3.9 worker and engine, the wheel
	scripts/check $(BIN)

format: $(READY) ## write the format that `make check` wants
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

test: $(READY) $(TOOLS) ## set up and run the tests
	$(BIN)/python scripts/test.py

test-fast: $(READY) ## the tests of plan, engine, API and laws, in under a minute; ARGS="-x -k budget" goes to pytest
	$(BIN)/python scripts/test_fast.py $(ARGS)

test-full: $(READY) $(TOOLS) ## the tests, those of second environments too, 1,000 simulated lives and the heavy frameworks
	$(BIN)/python scripts/test.py --full
	$(MAKE) sim
	HEAVY_BOX_S=5400 $(BIN)/python scripts/test_heavy.py --full

test-heavy: $(READY) $(TOOLS) ## train with the frameworks that are big to install, inside a time box (HEAVY_BOX_S=780)
	$(BIN)/python scripts/test_heavy.py

sim: $(READY) ## simulated lives of jobs under faults: SEEDS=1000 of them, others FROM=5000 on, or SEED=17 once more
	SEEDS=$(or $(SEEDS),1000) FROM=$(or $(FROM),0) SEED=$(SEED) $(PYTEST) -q -n auto tests/sim$(if $(SEED),/test_sim_lives.py)

demo: $(READY) ## an elastic PyTorchJob on the laptop cluster: scaled up, a worker killed, trained to its end
	$(BIN)/python examples/demo/demo.py

docs: $(SITE) ## build the documentation with search into build/site; open build/site/index.html
	$(BIN)/python scripts/docs.py

$(SITE): $(READY)
	$(BIN)/python scripts/waiting.py "installing mkdocs into $(VENV)" -- $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

horovod: $(READY) $(TOOLS) ## build Horovod for our torch into .cache/frameworks/horovod; some minutes the first time
	scripts/frameworks horovod

bench: $(READY) ## every benchmark, one after the other
	@for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python -m benchmarks.$$(basename $$f .py) || exit 1; done

bench-controller: $(READY) ## what the controller costs; ARGS="--jobs 1000 --waiting 32"; on a real API server too where KUBEBUILDER_ASSETS names one
	$(BIN)/python -m benchmarks.controller $(ARGS)

bench-rendezvous: $(READY) ## what the rendezvous server bears: 10,000 agents at rest, 2,000 in one round
	$(BIN)/python -m benchmarks.rendezvous

bench-rescale: $(READY) $(TOOLS) ## seconds until training goes on after any change, against stock torchrun; renews docs/rescale.md
	PATH="$(CURDIR)/.cache/etcd/usr/bin:$$PATH" $(BIN)/python -m benchmarks.rescale --runs 3 --write

release: $(READY) ## wheel, sdist, Helm chart, manifests, bill of materials and checksums in dist/, and the image if a container engine runs
	rm -rf dist
	$(BIN)/python scripts/release.py dist

clean: ## remove what the commands above made
	rm -rf $(VENV) .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
