# Everything here sets itself up: it needs python3 (3.11 or newer), make and pip's registry, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LIGHT := $(VENV)/.installed-demo
COLLECTOR := $(VENV)/.installed-collector
DEMO := demo
CAPTURES := data/captures
PEERS := $(VENV)/peers
LOWEST := $(VENV)/lowest
WHEELS := $(VENV)/wheels
SPARK_TESTS := spark
TW := $(BIN)/tw -w $(DEMO)/warehouse

# So that modules are compiled once, and not in every process that the tests start, where an environment forbids it.
unexport PYTHONDONTWRITEBYTECODE

# What `make quick` runs of the tests: the rules of ingest and of the definitions, the cases of all metrics, and what a
# query may do.
QUICK := tests/ingest/capture tests/ingest/collectives tests/ingest/columns tests/ingest/devices tests/ingest/hlo \
  tests/ingest/lake tests/ingest/readers/xplane tests/sql/test_cases.py tests/tracewarehouse/definitions \
  tests/tracewarehouse/queries/test_read_only.py tests/tracewarehouse/queries/test_tables_read.py \
  tests/tracewarehouse/queries/test_output.py tests/tracewarehouse/queries/test_text_table.py

.PHONY: help venv demo test quick lint format types pytest spark lowest bench study docs clean

help:
	@echo "make demo            record a tiny Llama on 4 virtual devices, ingest it, sum it up, draw the page"
	@echo "make demo OFFLINE=1  the same from the captures in data/, without JAX"
	@echo "make test            lint, types, layers and all tests"
	@echo "make quick           lint, types and the fast tests, in about two minutes: what to run while working"
	@echo "make spark           the tests that need Spark; installs pyspark first (500 MB), and needs Java 17"
	@echo "make lowest          all tests but the collector's, with the lowest versions that pyproject.toml allows"
	@echo "make study           predict the study of docs/study on TPU slices that need not exist: hours, but it can be stopped"
	@echo "make lint | types | format | docs | clean"
	@echo "make bench           ingest beside its peers; more with BENCH='--megabytes 10 100 1000 --rounds 5 --write-table'"

venv: $(INSTALLED)

# mlc-chakra is Chakra's own reader, axe-playwright-python brings axe-core, which judges pages, and DuckDB's extensions
# read Iceberg in the command line of their version: tests need these, and none of their dependencies, such as pandas,
# plotly, playwright and an older DuckDB.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[polars]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps mlc-chakra==1.0.0 axe-playwright-python==0.1.8
	@$(BIN)/python -m pip install --quiet --no-deps duckdb-extension-avro==1.5.5 duckdb-extension-iceberg==1.5.5 \
	  || echo "DuckDB's extensions for Iceberg cannot be installed here: their test will skip"
	@touch $@

# The demo needs the package and jax, and neither what compiles for TPUs nor what develops.
$(LIGHT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . $(if $(OFFLINE),,jax)
	@$(if $(OFFLINE),,touch $@)

# The collector's torch and torch_xla are large and exist for Linux only; without them, and without jax, its tests skip.
$(COLLECTOR): $(INSTALLED)
	@echo "installing torch, torch_xla and jax for the collector (large; once)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt jax
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[collect]' \
	  && $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch_xla") is None)' \
	  || echo "torch_xla cannot be installed here: its tests will skip"
	-@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[jax]' \
	  || echo "libtpu cannot be installed here: nothing is compiled for TPUs in the tests"
	@touch $@

demo: $(LIGHT)
ifdef OFFLINE
	$(TW) ingest $(CAPTURES)
else
	$(TW) collect --model llama --mesh tp=4 --input-length 16 --output-length 17 -o $(DEMO)/captures
	$(TW) ingest $(DEMO)/captures $(CAPTURES)/llama-tp4-b4-i16-o17
endif
	$(TW) build
	$(TW) report -o $(DEMO)/report.html
	@echo
	@$(TW) show "$$($(TW) query "SELECT name FROM runs WHERE name LIKE 'llama-tp4-b%' ORDER BY name DESC LIMIT 1" --csv | tail -1)"
	@echo
	@echo "The bar above is where a step goes. All runs beside each other, as a page:"
	@echo
	@echo "  file://$(abspath $(DEMO))/report.html"
	@echo
	@echo "Go on with these:"
	@echo
	@echo "  export PATH=\"$(abspath $(BIN)):\$$PATH\" TRACEWAREHOUSE=$(abspath $(DEMO))/warehouse"
	@echo "  tw compare llama-tp4-b4-i16-o17-jax llama-tp4-b4-i16-o17    why JAX and torch_xla differ"
	@echo "  tw serve                                                    all runs in a browser"
	@echo "  tw shell                                                    SQL over all tables and metrics"
	@echo
	@echo "docs/README.md leads on; docs/tutorial.md takes fifteen minutes."

test: $(INSTALLED) $(COLLECTOR) lint types pytest

quick: $(INSTALLED) lint types
	$(BIN)/pytest -q -n 2 -m "not slow" $(QUICK)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/sqlfluff lint --disable-progress-bar tracewarehouse/sql

# Beside the collector's installation types would be of packages that are half there.
types: $(INSTALLED) $(if $(filter test,$(MAKECMDGOALS)),$(COLLECTOR))
	$(BIN)/mypy

# By file, so that what the tests of a file share is made once.
pytest: $(INSTALLED) $(COLLECTOR)
	$(BIN)/pytest -n 2 --dist loadfile -m "not spark"

# pyspark comes as a large source archive, so only these tests wait for it; continuous integration builds its wheel beside
# the collector's installation. One process: Spark itself uses the cores.
$(WHEELS): $(INSTALLED)
	-@$(BIN)/python -m pip wheel --quiet --no-deps -c constraints.txt -w $@ pyspark
	@mkdir -p $@

spark: $(INSTALLED) $(WHEELS)
	@$(BIN)/python -m pip install --quiet --find-links $(WHEELS) -c constraints.txt -e '.[spark]' \
	  || echo "pyspark cannot be installed here: its tests will skip"
	$(BIN)/pytest -m "$(SPARK_TESTS)" tests/spark

# Everything else runs with the versions of constraints.txt, which say nothing about the bounds.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[polars]' --group dev
	$(LOWEST)/bin/pytest -n 2 --dist loadfile -m "not spark" --ignore tests/collect

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What ingest is compared with lives apart, so that it cannot change what is tested; what does not install is left out.
$(PEERS)/.installed:
	$(PYTHON) -m venv $(PEERS)
	-$(PEERS)/bin/python -m pip install --quiet -c constraints.txt xprof
	-$(PEERS)/bin/python -m pip install --quiet 'jax[cpu]'
	-$(PEERS)/bin/python -m pip install --quiet HolisticTraceAnalysis
	@touch $@

bench: $(INSTALLED) $(PEERS)/.installed
	$(BIN)/python tests/benchmarks/bench.py --peers $(PEERS)/bin/python $(BENCH)

# Hours on two cores; it goes on where it was stopped. STUDY='--hours 2' stops it in time.
study: $(COLLECTOR)
	$(BIN)/python docs/study/study.py $(STUDY)

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(DEMO) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
