# Every target sets up what it needs by itself, once. PYTHON chooses the interpreter (3.10 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# As many processes as there are cores, and eight at most: each takes a gigabyte or two.
WORKERS := --numprocesses logical --maxprocesses 8 --dist worksteal

# Once more without our compiled code: the rooms that have a twin in C for most of what they do.
WITHOUT_C := tests/capture tests/store

# Some processors announce AMX and stop a process that uses it; see CONTRIBUTING.md.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# Hundreds of processes import us and torch; each would compile all of it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-without-c types check score tolerances bench docs clean

help:
	@echo "make demo   set up, then show the main job on a built-in example"
	@echo "make test   set up, then run all tests"
	@echo "make check  format, lint, types, tests, and some once more without C: what CI runs"
	@echo "make score  ask blame about all pairs; says which answers a change of the code has changed"
	@echo "make tolerances   renew the table of docs/tolerances.md"
	@echo "make bench  run the benchmarks and print their table"
	@echo "make docs   build the documentation into site/"
	@echo "make clean  remove everything that these targets made"

$(STAMP): pyproject.toml compat/pyproject.toml setup.py constraints.txt $(wildcard src/tensorprobe/_*.[ch] src/tensorprobe/*/_*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]' --editable ./compat
	touch $@

demo: $(STAMP)
	$(BIN)/python -m tensorprobe.demo demo-output

test: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS)

test-without-c: $(STAMP)
	TENSORPROBE_NO_KERNEL=1 $(BIN)/python -m pytest $(WORKERS) -m 'not same_without_c' $(WITHOUT_C)

types: $(STAMP)
	$(BIN)/mypy

# The types, which one core is enough for, beside the tests; these one after the other.
check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory --jobs=2 types tests-twice

.PHONY: tests-twice
tests-twice:
	$(MAKE) --no-print-directory --jobs=1 test
	$(MAKE) --no-print-directory --jobs=1 test-without-c

# Pairs are made once; faultbench is taken from ../shared, or the few pairs of tests/data.
PAIRS := benchmarks/data/pairs
$(PAIRS): | $(STAMP)
	rm -rf $@.part
	$(BIN)/python benchmarks/blame_pairs.py $@.part --set first
	mv $@.part $@

score: $(PAIRS)
	$(BIN)/python benchmarks/blame.py $(PAIRS) --since benchmarks/data/answers.json

tolerances: $(STAMP)
	$(BIN)/python -m tensorprobe.rounding.tolerance_table docs/tolerances.md

bench: $(STAMP)
	$(BIN)/python benchmarks/open_dump.py
	$(BIN)/python benchmarks/array_statistics.py
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/pair_metrics.py
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/capture_data.py
	$(BIN)/python benchmarks/precheck.py
	$(BIN)/python benchmarks/online.py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) build compat/build dist site demo-output benchmarks/data .mypy_cache .ruff_cache .hypothesis
	find . -name '*.egg-info' -o -name '__pycache__' -o -name '_*.abi3.so' | xargs rm -rf
