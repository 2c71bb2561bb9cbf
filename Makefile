# Tailrace. Needs Python 3.11 or later, make, a JDK 17 or 21 for Spark, and Maven for the tests: every target sets up what
# else it uses.
#
#   make demo      three months of flights through two services: run, killed, started again, replayed, drawn
#                  (YEAR=1: the whole year; LOG=kafka: on a Kafka broker that it starts; LOG=kafka://host:9092: on one that runs)
#   make test      lint, types, and the tests on every supported Python
#
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

# The first of these that is found runs everything; the others, where found, run the tests.
PYTHONS := 3.11 3.12 3.13 3.14

# Seeds of each property test: on the main Python, on the others, and in `make fuzz`.
SEEDS ?= 100
SEEDS_OTHERS ?= 10
SEEDS_FUZZ ?= 20000

# For how long `make soak` and `make soak-kafka` begin new rounds.
MINUTES ?= 5

BIN := .venv/bin
LOCK := requirements/dev.txt requirements/extras.txt requirements/data.txt
# Absent names fall out, so that the checks work while a room is still empty.
TYPED := $(wildcard framework services schemas tests benchmarks) .ci/suite.py .ci/pip_settings.py
SOURCES := $(wildcard framework services schemas tests benchmarks docs) .ci

.PHONY: help
help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1	/p' Makefile | expand -t 14

.PHONY: demo
demo: .venv/installed java browser $(if $(filter kafka,$(LOG)),kafka)  ## three months of flights (YEAR=1: a year) through two services: a kill, a replay, a picture in out/
	PYTHONDONTWRITEBYTECODE= $(if $(filter kafka,$(LOG)),$(BIN)/python -m tests.kafka.broker) $(BIN)/python -m services.demo flights \
	    $(if $(YEAR),--year) $(if $(LOG),--log '$(if $(filter kafka,$(LOG)),kafka://{broker},$(LOG))')

.PHONY: test
test: .venv/installed java kafka chromium promtool  ## lint, types, and the tests on each Python found
	@$(BIN)/python .ci/suite.py --seeds $(SEEDS) --seeds-others $(SEEDS_OTHERS) $(PYTHONS)

.PHONY: nightly
nightly: .venv/installed java kafka chromium promtool containers  ## what takes long and seldom fails: all tests on each Python, images, long soaks
	@$(BIN)/python .ci/suite.py --nightly --seeds $(SEEDS) --seeds-others $(SEEDS_OTHERS) $(PYTHONS)
	$(BIN)/python -m tests.mutants --number 120 --seed $(or $(SEED),$(shell date +%j))

.PHONY: quick
quick: .venv/installed  ## core, library, state, log, history, laws, command line: what computes and starts no processes, few seeds: a minute and a half
	$(BIN)/python .ci/suite.py --quick --seeds 5

.PHONY: lint lint-format lint-rules lint-imports
lint: lint-format lint-rules lint-imports  ## format, lint rules, direction of imports
lint-format: .venv/installed
	$(BIN)/ruff format --check --quiet $(SOURCES)
lint-rules: .venv/installed
	$(BIN)/ruff check $(SOURCES)
lint-imports: .venv/installed
	$(BIN)/lint-imports

.PHONY: types types-mypy types-pyright
types: types-mypy types-pyright  ## mypy and pyright, both strict
types-mypy: .venv/installed
	$(BIN)/mypy $(TYPED)
types-pyright: .venv/installed
	$(BIN)/basedpyright --warnings

.PHONY: format
format: .venv/installed  ## format and mend what ruff can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: docs
docs: .venv/installed  ## the documentation as a site in out/docs, with the API reference; its links
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs out/docs
	$(BIN)/python -m pytest -q tests/test_documentation.py

.PHONY: bench
bench: .venv/installed  ## measure, and print target beside measured
	$(BIN)/python -m benchmarks.run

.PHONY: bench-spark
bench-spark: .venv/installed java  ## measure rebuilds, by Spark and without it, and snapshots
	$(BIN)/python -m benchmarks.run --spark

.PHONY: bench-kafka
bench-kafka: .venv/installed java kafka  ## measure services on Kafka, with a broker of their own
	$(BIN)/python -m benchmarks.run --kafka

.PHONY: fuzz
fuzz: .venv/installed  ## property tests, many seeds (SEEDS_FUZZ=20000, FIRST_SEED=0)
	TAILRACE_SEEDS=$(SEEDS_FUZZ) TAILRACE_FIRST_SEED=$(or $(FIRST_SEED),0) \
	    $(BIN)/python -m pytest -n 2 --dist worksteal -q -m property

.PHONY: soak
soak: .venv/installed  ## real processes under kills, stops and full disks (MINUTES=5, FIRST_SEED=0)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(or $(FIRST_SEED),0)

.PHONY: soak-kafka
soak-kafka: .venv/installed java kafka  ## the same on Kafka: zombies, lost brokers, strangers in the group (MINUTES=5, SEED=0)
	$(BIN)/python -m tests.kafka.soak --minutes $(MINUTES) --seed $(or $(SEED),0)

.PHONY: java
java:  ## a JDK for Spark: checked for, and installed on Debian as root
	@.ci/java

.PHONY: browser
browser:  # a demo without a picture of the page is one, too
	@.ci/chromium 2>/dev/null || true

.PHONY: chromium
chromium:  ## a Chromium for the tests of the page: checked for, and installed on Debian as root
	@.ci/chromium

.PHONY: containers
containers:  ## what builds and runs an image without an engine, for its tests: installed on Debian as root
	@.ci/containers

.PHONY: promtool
promtool:  ## promtool, for the tests of the alert rules: checked for, and taken from Debian's package as root
	@.ci/promtool

.PHONY: kafka
kafka: .venv/installed java  ## the jars of the tests' Kafka broker and schema registry: fetched once by Maven, which is installed on Debian as root
	@.ci/kafka $(BIN)/python

.PHONY: lock
lock: .venv-uv/installed  ## resolve the dependencies anew
	$(call compile,runtime) --extra kafka --extra http --extra parquet pyproject.toml
	$(call compile,extras) -c requirements/runtime.txt -c requirements/constraints.in --all-extras pyproject.toml
	$(call compile,dev) -c requirements/extras.txt pyproject.toml requirements/dev.in
	$(call compile,data) -c requirements/extras.txt --no-deps requirements/data.in
	$(call compile,uv) requirements/uv.in

# The tools give way to the extras (dev after extras), so that one environment can hold both.
compile = .venv-uv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
    --no-emit-find-links --custom-compile-command "make lock" -o requirements/$(1).txt

.PHONY: clean
clean:  ## remove environments, caches and reports
	rm -rf .venv .venv-3.* .venv-uv .python-3.* .reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: environments
environments: .venv/installed $(patsubst %,.venv-%/installed,$(wordlist 2,9,$(PYTHONS)))  ## those of all Pythons

# .venv is made with the first Python found, .venv-X.Y with that one; .venv-uv has what installs into them.
.venv/installed: $(LOCK) pyproject.toml .ci/environment | .venv-uv/installed
	.ci/environment .venv $(PYTHONS)

.venv-uv/installed: requirements/uv.txt
	.ci/environment --uv .venv-uv $(PYTHONS)

.venv-%/installed: $(LOCK) pyproject.toml .ci/environment | .venv-uv/installed
	.ci/environment .venv-$* $*
