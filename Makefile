# Brindle: `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PYTEST := $(BIN)/pytest -q
# A file's tests stay in one process, so what a module sets up is set up once.
PARALLEL := $(PYTEST) -n auto --maxprocesses 4 --dist loadfile
CODE := libcalico ipam felix bgp confd cni typha controllers calicoctl deploy tests

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

bootstrap: ## install what is missing (Debian packages as root, then the virtual environment)
	@deploy/bootstrap

bootstrap-runtimes:
	@deploy/bootstrap --runtimes

lab: bootstrap ## a three-node routed network in namespaces, with a demonstration; leaves it running (root)
	@deploy/lab/lab up
	@deploy/lab/lab demo

lab-down: ## remove the lab: processes, namespaces, files (root)
	@deploy/lab/lab down

test: export REQUIRE_ALL = 1
test: bootstrap-runtimes check ## everything: check, then properties, etcd, kernel, BGP, container runtimes, the lab (root)
	@deploy/require-root "make test"
	$(PARALLEL) tests/property tests/etcd tests/component
	$(PARALLEL) tests/netns
	$(PYTEST) tests/peers  # sessions with hold times of seconds: alone
	$(PYTEST) tests/runtimes
	$(PYTEST) tests/e2e

check: bootstrap ## format, lint, types, import contract, style ratchet, unit tests; no root needed
	$(BIN)/ruff format --check -q $(CODE)
	$(BIN)/ruff check -q $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PY) tests/style/check_style.py
	$(PYTEST) tests/unit tests/sequences

bench: bootstrap ## every figure beside its baseline; ONLY=name,name for some (root)
	@deploy/require-root "make bench"
	$(PY) -m tests.bench $(if $(ONLY),--only $(ONLY))

truth-table: bootstrap ## policy by evaluator, rules and real packets, case by case; CASES=20000 SEED=0 (root)
	@deploy/require-root "make truth-table"
	TRUTH_TABLE_CASES=$(or $(CASES),20000) TRUTH_TABLE_SEED=$(or $(SEED),0) $(PYTEST) -s tests/netns/test_truth_table.py

fuzz: bootstrap ## 100,000 mutilated BGP messages through the table and the codec tool
	BRINDLE_FUZZ_CASES=100000 $(PYTEST) tests/property/test_bgp_wire.py tests/unit/bgp/test_codec.py

hunt: bootstrap ## property tests, random and deep, until stopped
	HYPOTHESIS_PROFILE=hunt $(PYTEST) tests/property

format: ## rewrite the sources in the house format
	$(BIN)/ruff format -q $(CODE)
	$(BIN)/ruff check -q --fix $(CODE)

wheel: bootstrap ## build/brindle-*.whl, for installing on hosts
	$(BIN)/pip wheel -q --no-deps --no-build-isolation -w build .

.PHONY: help bootstrap bootstrap-runtimes lab lab-down test check bench truth-table fuzz hunt format wheel
