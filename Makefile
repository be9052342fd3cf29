# What each tier of the tests proves, and how long it takes: docs/testing.md. Words for pytest go into ARGS: make broker ARGS='-k mended'.
.DEFAULT_GOAL := help
PYTEST = .venv/bin/python -m pytest $(ARGS)
TIERS = broker spark cluster exhaustive

.PHONY: help test jvm lint ci $(TIERS)

help: # this list
	@grep -E "^[a-z ]+:.*# " $(MAKEFILE_LIST) | sed -E "s/^([a-z ]+):[^#]*# /\1\t/" | expand -t 24

test: .venv/bin/pytest # what `python -m pytest` runs
	$(PYTEST)

broker spark cluster: .venv/bin/pytest # real brokers, Spark on this machine, Spark on clusters
	$(PYTEST) -m '$@ and not exhaustive'

jvm: .venv/bin/pytest # these three at once
	$(PYTEST) -m '(broker or spark or cluster) and not exhaustive'

exhaustive: .venv/bin/pytest # the cases that the other tiers have representatives of
	$(PYTEST) -m exhaustive
	$(PYTEST) -m 'hypothesis and not broker' --hypothesis-profile=thorough

lint: .venv/bin/pytest # ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict

ci: # all but exhaustive, on a copy of the tracked files, in an environment of its own
	.ci/run

.venv/bin/pytest:
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[test]'
# make wheel, make zipapp: what goes onto other hosts, in dist/. Both need cargo; the rest comes from packaging/requirements.lock.
PYTHON ?= python3
TOOLS := build/tools

.PHONY: wheel zipapp

wheel: $(TOOLS) # a wheel with the compiled kernel, in dist/
	$(TOOLS)/bin/python packaging/build_wheel.py $(WHEEL) dist

zipapp: wheel # one file that needs Python 3.11 alone, in dist/
	$(TOOLS)/bin/python packaging/build_zipapp.py dist

$(TOOLS): packaging/requirements.lock
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --require-hashes -r packaging/requirements.lock
	touch $@

# What CI installs. pyproject.toml and packaging/requirements.txt have the ranges, constraints.txt the versions of the base.
LOCK := build/uv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
  --custom-compile-command "make lock" --quiet $(ARGS)

.PHONY: lock

lock: build/uv # pin the packages of CI with their hashes; ARGS=--upgrade takes the newest that fit
	$(LOCK) pyproject.toml --extra test --constraint constraints.txt --output-file .ci/requirements.lock
	$(LOCK) packaging/requirements.txt --output-file packaging/requirements.lock

build/uv:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet uv
