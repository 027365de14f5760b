# make demo   install, ingest the sample traces, print what they say
# make test   install what tests need, run them
# make check  formatter, linter, types
# make fuzz   mutated traces, by the hundred thousand
# make bench  speed and memory on a 1 GB trace (docs/performance.md)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-store

.PHONY: demo test check bench fuzz package-test clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	@rm -rf $(DEMO)
	$(BIN)/traceanalyzer ingest sample_traces/pytorch --store $(DEMO) --run proxy
	@echo
	$(BIN)/traceanalyzer query $(DEMO) timeline
	@echo
	$(BIN)/traceanalyzer query $(DEMO) kernel_summary --rank 0
	@echo
	@$(BIN)/python sample_traces/compare.py $(DEMO)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m 'not packaging'

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

package-test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m packaging -n 0

# BENCH_TRACE, BENCH_ROCPROFV3: real traces to repeat; BENCH_BYTES: how large to make them
BENCH_TRACE ?= ../shared/traces/kineto-mi300-xdit-sd35/trace.json.gz
BENCH_BYTES ?= 1e9
BENCH_ROCPROFV3 ?= ../shared/traces/rocprofv3-mi350x-train/trace.json.gz
bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/run.py --source $(BENCH_TRACE) --bytes $(BENCH_BYTES)
	$(BIN)/python benchmarks/run_rocprofv3.py --source $(BENCH_ROCPROFV3) --bytes $(BENCH_BYTES)
	$(BIN)/python benchmarks/run_rocm_trace_lite.py

# FUZZ: how many mutated traces to throw at the reader
FUZZ ?= 100000
fuzz: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/fuzz.py $(FUZZ)

clean:
	rm -rf $(VENV) $(DEMO) build dist benchmarks/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
