# The verbs of this project. Everything is made inside the checkout: .venv (Python), .tools (nginx, wrk, Redis).
# None needs root, and once set up none needs the network.
#   PYTHON=...  the interpreter to build .venv with (default: the newest of 3.13 to 3.11 that is found)
#   ARGS=...    handed to the command behind `run`, `test`, `bench` and `soak`
# SPDX-License-Identifier: Apache-2.0

.DEFAULT_GOAL := help
.PHONY: help run test check bench chaos soak docs fix lock clean setup setup-dev setup-tools

BIN := .venv/bin
TOOLS := nginx wrk redis-server
CODE := src tests bench tools

run: setup ## start the gateway on 127.0.0.1:8080, with a simulated Kimi unless MOONSHOT_API_KEY is set
	@exec $(BIN)/moongate serve --embedded $(ARGS)

test: setup-dev setup-tools ## set up what the tests need, then run them all (ARGS="tests/core -k sse" for some)
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/python -m pytest $(ARGS)

check: setup-dev ## lint, format, types, layers, budgets, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/python -m pytest -q tests/meta tests/docs

bench: setup-dev setup-tools ## measure CPU a call, a chunk and a stream against nginx; table and JSON in bench/results
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/python bench/run.py $(ARGS)

chaos: setup-dev ## random faults, departures and kills against the books (RUNS=500 SEED=1; one seed again: RUNS=1)
	@$(BIN)/python -m tests.chaos --runs $(or $(RUNS),500) --seed $(or $(SEED),1) $(ARGS)

soak: setup-dev setup-tools ## thousands of random exchanges with faults and leavers, then the at-rest invariants
	@if [ -d tests/soak ]; then PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/python -m pytest tests/soak $(ARGS); \
	else echo "make soak: not yet; the soak tests come with a later version."; exit 1; fi

docs: setup-dev ## check that every setting, fault, header, metric and verb is documented
	$(BIN)/python -m pytest -q tests/docs

fix: setup-dev ## let the linter and the formatter mend what they can
	$(BIN)/ruff check --fix --unsafe-fixes .
	$(BIN)/ruff format .

lock: setup-dev ## write the locks anew from pyproject.toml (needs a package index)
	@BIN=$(BIN) sh tools/lock.sh

clean: ## remove everything that was made: environments, tools, caches, state
	rm -rf .venv .tools .moongate build dist bench/results .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name '*.egg-info' -prune -exec rm -rf {} +

help: ## list the verbs
	@grep -hE '^[a-z]+: .*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup:
	@sh tools/venv.sh run

setup-dev:
	@sh tools/venv.sh dev

setup-tools:
	@sh tools/unpack.sh $(TOOLS)
