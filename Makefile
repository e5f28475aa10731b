# The two commands are `make demo` and `make test`; everything they make lies in .venv/ and var/.
#
#   make demo [PORT=8000] [BASE_MODEL=/path/to/hf-directory-or-file.gguf]
#   make test [TESTS="tests/tenants -k admit"] [BESIDE=1]    so many processes beside each other, 2 unless said
#   make kernels-check    compiles every GPU kernel, without a GPU
#   make bench-kernels, make bench-gpu    on a machine with a CUDA device; docs/benchmarks.md
#   make check   make bench [BENCH="--quick"]   make wheel   make clean
#
# TORCH: what to install as torch. PyTorch's own index has CPU builds; where the default one brings CUDA and that is
# not wanted, name the other with PIP_INDEX_URL or PIP_EXTRA_INDEX_URL for the first run.

PYTHON ?= python3
TORCH ?= torch==2.13.0
PORT ?= 8000
# Test processes, each with servers of its own. Most tests wait for processes: two halve the time on two cores.
BESIDE ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check kernels-check bench bench-kernels bench-gpu wheel clean install

install: $(STAMP)

# Again only when the dependencies may have changed. The editable install needs no repeat when sources do.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "loraplex needs Python 3.11 or later; say which with PYTHON=python3.11.")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@PORT='$(PORT)' LORAPLEX_BASE_MODEL='$(or $(BASE_MODEL),$(LORAPLEX_BASE_MODEL))' exec $(BIN)/python manage.py up --demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(BESIDE) --dist loadfile --no-loadscope-reorder $(TESTS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

kernels-check: $(STAMP)
	PYTHONPATH=kernels $(BIN)/python -W ignore::UserWarning -m kernelcheck $(KERNELS)

bench: $(STAMP)
	$(BIN)/python tests/bench/run.py $(BENCH)

bench-kernels: $(STAMP)
	$(BIN)/python tests/bench/kernels.py $(BENCH)

bench-gpu: $(STAMP)
	$(BIN)/python tests/bench/engine_gpu.py $(BENCH)

wheel: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
