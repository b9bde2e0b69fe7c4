# make build | demo | test | test-all | lint | docs | wheels | cross | versions | clean
# Needs python3 >= 3.11 with venv, g++ and make; everything else comes from PyPI. PYTHON=... chooses
# the interpreter.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
DEPS := $(VENV)/.installed
OPS := build/ops/libmirage_onnx_ops.so
OPS_SOURCES := $(wildcard cpp/ort_custom_ops/*)
MODELS := $(addprefix models/,$(addsuffix .onnx,bert llama_decode lora rmsnorm_linear))
JOBS ?= 2
# Tests of a file share what they make; the longest files come first (tests/support/longest_files.py).
DEALT := --dist loadfile --no-loadscope-reorder

export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes: with this set, as some containers have it, each compiles all modules anew.
export PYTHONDONTWRITEBYTECODE :=
# As workers have it (mirage_onnx/worker_process.py): many tests search in their own process.
export MALLOC_TRIM_THRESHOLD_ := 134217728
export MALLOC_MMAP_THRESHOLD_ := 33554432

.PHONY: build demo test test-all lint format golden docs wheels cross versions clean
.DELETE_ON_ERROR:

build: $(DEPS) $(OPS) $(MODELS)

$(DEPS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11: apt-get install python3, or make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 && test -x $(BIN)/pip; } || \
	  { rm -rf $(VENV); echo "error: $(PYTHON) -m venv failed: apt-get install python3-venv" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "error: there is no g++: apt-get install g++" >&2; exit 1; }
	@command -v cmake >/dev/null || $(BIN)/pip install -q -c constraints.txt cmake
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/pip install -q -e '.[cpu,dev]' \
	  --config-settings=wheel.cmake=false --config-settings=editable.mode=inplace
	# For its protobuf messages only: what it requires beside them wants an older ml_dtypes.
	$(BIN)/pip install -q --no-deps tritonclient==2.73.0
	@touch $@

$(OPS): $(OPS_SOURCES) | $(DEPS)
	cmake -S cpp/ort_custom_ops -B build/ops -DCMAKE_BUILD_TYPE=Release --log-level=WARNING
	cmake --build build/ops --parallel $(JOBS) -- -s
	@touch $@

# The models are committed without their weights, which are made from their names.
models/%.onnx: models/architectures/graphs.tar.xz | $(DEPS)
	$(BIN)/python models/packed.py $*
	@touch $@

demo: build
	$(BIN)/python scripts/demo.py

test: build
	$(BIN)/python -m pytest -q -n $(JOBS) $(DEALT) -m "not slow and not gpu"

test-all: build
	$(BIN)/python -m pytest -q -n $(JOBS) $(DEALT) --durations 40 -m "not gpu"

lint: $(DEPS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/support/stand_ins.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/write_error_docs.py --check

format: $(DEPS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: build
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not gpu" --update-golden

# The site, in build/site, every link checked; its tools are in an environment of their own.
docs:
	@test -x build/docs/bin/mkdocs || { $(PYTHON) -m venv build/docs && \
	  build/docs/bin/pip install -q mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 \
	    mkdocstrings-python==2.0.11 ruff==0.17.6; }
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build -q

# A wheel for manylinux_2_28 and an sdist, in dist.
wheels:
	PYTHON=$(PYTHON) bash scripts/build_wheels.sh

# The library for other systems, in build/cross, by GNU's cross compilers (scripts/cross_build.py names them).
cross: build
	$(BIN)/python scripts/cross_build.py

# One model in many releases of onnxruntime.
versions: build
	$(BIN)/python scripts/ort_versions.py

clean:
	rm -rf build out $(MODELS)
