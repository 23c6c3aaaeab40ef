# Every target installs what it needs into $(VENV) first; a second run finds its stamps and goes on
# at once. `make` alone prints what there is.

VENV   ?= .venv
PYTHON ?= python3
# Installed before anything else, so that the extension is built against the torch that runs it.
# Where pip would pick a CUDA build and you want the small CPU one:
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH  ?= torch==2.13.0

BIN     := $(VENV)/bin
OLDEST  := $(VENV)-oldest
NEWCOMERS := .venv-newcomers
# -qq: errors only
PIP     := $(BIN)/python -m pip install -qq --disable-pip-version-check
SOURCES := $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h csrc/*/*.cu csrc/*/*.cuh)
# Two stamps, so that a build without a compiler is done again when there is one.
BUILT   := $(VENV)/.stamp-build$(if $(shell command -v $${CXX:-c++} || command -v g++),,-reference)
PYTHONS := pybeam triton_kernels packages pybeam_search.py tests benchmarks docs examples release setup.py
# every extra that a command of README.md needs
EXTRAS  := corpus,documents,grammars,graph,onnx,otel,serve,speech,study,vad
PAGE    := examples/onnx/page

# Threads that spin while they wait make everything many times slower when others need the cores.
demo test test-all test-newcomers test-ray test-oldest test-arm64 edge docs sanitize fuzz soak mutate: export OMP_WAIT_POLICY ?= passive

# `make docs-look` fetches it; without it, tests of barriers are skipped.
test test-all: export PYBEAM_AXE ?= $(abspath $(wildcard $(VENV)/package/axe.min.js))

# Tests start many processes: each module is compiled once for all of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-newcomers test-ray test-oldest test-arm64 edge build wheel wheel-test release-check data bench bench-kernels kernel stale docs docs-links docs-look \
        lint fmt clean launches gpu-build gpu-pack gpu-test gpu-bench gpu-e2e gpu-profile

help:
	@echo "make demo      translate a few sentences with three algorithms (under 5 minutes the first time)"
	@echo "make test      run the tests, without those marked slow"
	@echo "make test-all  run all tests, in a random order; SEED=N repeats one"
	@echo "make test-newcomers  type README, docs/start, docs/howto and docs/coming-from as somebody does who has pip and no clone"
	@echo "make test-ray  run the tests on clusters of Ray alone; installs Ray, Spark and datatrove (half a gigabyte)"
	@echo "make test-oldest  run the smoke tests with the oldest packages that pyproject.toml allows (Python 3.11)"
	@echo "make test-arm64  run tests of kernels and laws on ARM64 under emulation; installs qemu, a compiler and torch (1.5 GB)"
	@echo "make edge      run the programs of examples/onnx, in C++ and in a page, and compare them with pybeam; needs npm, cmake,"
	@echo "               Chromium and its driver; ONNXRUNTIME=FOLDER is an unpacked archive of ONNX Runtime"
	@echo "make build     install pybeam into $(VENV), compiling the C++ kernels"
	@echo "make wheel     build source distributions and wheels into dist/, and audit them; make wheel-test tries the wheel beside"
	@echo "               several versions of torch (TORCHES=\"2.11.0 ...\") and Python (VERSIONS=\"3.11 ...\"), gigabytes each"
	@echo "make release-check  say what a release still lacks; CHECKS=\"NAME ...\" for some of the checks alone"
	@echo "make data      download the public corpora of the benchmarks into .data; FROM=\"FILE ...\" takes files instead"
	@echo "make bench     measure speed beside CTranslate2 and transformers (an hour); needs make data"
	@echo "make bench-kernels  measure every kernel beside torch's, with one thread; ONLY=\"-k select\" some of them"
	@echo "make kernel NAME=smooth  write the stubs of a new operator, its tests, which fail, and its benchmark"
	@echo "make stale     list the measurements that are older than the code that they measure"
	@echo "make docs      run every example and notebook of the documentation, build its site in docs/_build/html and"
	@echo "               check its links;"
	@echo "               make docs-look looks at every page, the server's too, in Chromium, with axe (npm);"
	@echo "               make docs-links asks the network whether links to other sites still lead somewhere"
	@echo "make gpu-pack  compile what a run on a GPU needs into build/gpu-pack, to be taken along; WHEELS=\"FILE ...\" of peers"
	@echo "make gpu-test  run the tests of a GPU, with the torch that is installed; make gpu-bench times the kernels,"
	@echo "               make gpu-e2e DATA=.data ONLY=\"CASE ...\" times whole translations, make gpu-profile the phases"
	@echo "               and the kernels of a step; none takes more than 9 minutes"
	@echo "make launches  count the kernels of a step on a GPU, by phase, without one; fails above a budget"
	@echo "make lint      check style and types (ruff, clang-format, mypy); make fmt repairs what can be repaired"
	@echo "make tidy      look for mistakes in the C++ with clang-tidy (two minutes)"
	@echo "make sanitize  run the tests of kernels, state and laws on kernels that check addresses and undefined behaviour, and"
	@echo "               decodes in threads on kernels that look for races; builds both in build/ (10 minutes)"
	@echo "make fuzz      attack files, calls, kernels and searches at random, MINUTES=15 each; TARGETS=\"NAME ...\", SEED=N and CASES=1"
	@echo "               repeat what failed"
	@echo "make soak      send 1,000,000 requests through one stream, or as many as MINUTES=N allow"
	@echo "make mutate    change the core one small thing at a time and look whether a test notices, for MINUTES=60; goes on"
	@echo "               where it ended; MODULES=\"FILE ...\" for some of them"
	@echo "make clean     remove $(VENV) and everything built"

demo: build
	@$(BIN)/python examples/demo.py

test: build $(VENV)/.extra-test
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow"

ORDER := $(or $(SEED),$(shell date +%s))

# In a random order, which the seed repeats. Modules stay together, as they share what they have loaded.
# Clusters come last and alone: Ray lowers the priority of its workers, so beside other tests they starve.
test-all: build $(VENV)/.extra-test $(VENV)/.extra-ray $(VENV)/.extra-test-ray
	@# without a network, newcomers install nothing; a wheel that cannot be built is a failure
	@$(MAKE) $(VENV)/.extra-release $(NEWCOMERS)/.stamp-torch || { rm -f $(NEWCOMERS)/.stamp; exit 0; }; \
	$(MAKE) dist/.stamp || exit 1; $(MAKE) $(NEWCOMERS)/.stamp || true
	@echo "SEED=$(ORDER)"
	@$(BIN)/python -m pytest -q -n auto --dist worksteal --ignore tests/ray --random-order --random-order-seed=$(ORDER); \
	others=$$?; $(MAKE) test-ray; clusters=$$?; exit $$((others + clusters))

test-newcomers: build $(VENV)/.extra-test $(NEWCOMERS)/.stamp
	@$(BIN)/python -m pytest -q -n auto --dist worksteal tests/newcomers

# Clusters on the loopback address, one after another: each is a dozen processes.
test-ray: build $(VENV)/.extra-test $(VENV)/.extra-ray $(VENV)/.extra-test-ray
	@$(BIN)/python -m pytest -q tests/ray

# The kernels are those of `make build`: the same torch, and packages as old as they may be.
test-oldest: build $(OLDEST)/.stamp
	@PYTHONPATH=$(CURDIR) PYBEAM_EXPECT_NATIVE=1 $(OLDEST)/bin/python -m pytest -q -m "not slow" $$(cat release/smoke.txt)

# The same kernels for another kind of CPU; CPU=neoverse-n1 is an older one, ARGS="FILE ..." are pytest's.
test-arm64: build
	@$(BIN)/python -m release.arm64 $(if $(CPU),--cpu $(CPU)) $(ARGS)

# Neither program needs Python, but pybeam says what they should find.
edge: build $(VENV)/.extra-test $(PAGE)/node_modules/.stamp
	@PYBEAM_EXPECT_EDGE=1 CMAKE_PREFIX_PATH=$(ONNXRUNTIME) \
	    $(BIN)/python -m pytest -q tests/examples/test_onnx_programs.py

wheel: $(VENV)/.stamp-tools $(VENV)/.extra-release
	@$(BIN)/python -m release.wheel
	@touch dist/.stamp

wheel-test:
	@$(PYTHON) -m release.wheel_test $(if $(TORCHES),--torch $(TORCHES)) $(if $(VERSIONS),--python $(VERSIONS))

release-check: build $(VENV)/.extra-release
	@$(BIN)/python -m release.check $(CHECKS)

data: build
	@$(BIN)/python -m benchmarks.tools.data $(if $(FROM),--from $(FROM))

bench: build $(VENV)/.extra-bench
	@$(BIN)/python -m benchmarks readme
	@$(BIN)/python -m benchmarks one-request
	@$(BIN)/python -m benchmarks e2e
	@$(BIN)/python -m benchmarks.plots

bench-kernels: build $(VENV)/.extra-bench
	@$(BIN)/python -m pytest benchmarks/kernels --benchmark-only --journal $(or $(OUT),benchmarks/results) $(ONLY)

# All warnings are errors; -n: a link to a name that does not exist is one.
SPHINX = $(BIN)/python -m sphinx -q -n -W --keep-going

kernel:
	@PYTHONPATH=.:tests $(PYTHON) -m support.new_kernel $(NAME)

# Needs no more than git.
stale:
	@$(PYTHON) -m benchmarks.stale

docs: build $(VENV)/.extra-test $(VENV)/.extra-docs
	@$(BIN)/python -m pytest -q -n auto --dist worksteal tests/project/test_pages.py
	@$(BIN)/python -m pytest -q --nbmake --nbmake-timeout=600 docs/notebooks
	@$(SPHINX) -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# PYBEAM_AXE is another copy of what npm has
AXE := $(VENV)/package/axe.min.js

docs-look: docs $(VENV)/.extra-look $(if $(PYBEAM_AXE),,$(AXE))
	@PYBEAM_AXE=$(or $(PYBEAM_AXE),$(AXE)) $(BIN)/python docs/look.py
	@PYBEAM_AXE=$(or $(PYBEAM_AXE),$(AXE)) $(BIN)/python -m pytest -q -rs tests/server/test_page_tools_in_browser.py

$(AXE): | $(VENV)/.stamp-python
	@cd $(VENV) && tar xzf $$(npm pack --silent axe-core@4.14.1)

docs-links: build $(VENV)/.extra-docs
	@$(SPHINX) -b linkcheck docs docs/_build/links

# mypy reads the types of the packages that pybeam needs
lint: build $(VENV)/.extra-lint
	@$(BIN)/ruff check $(PYTHONS)
	@$(BIN)/ruff format --check $(PYTHONS)
	@$(if $(SOURCES),$(BIN)/clang-format --dry-run -Werror $(SOURCES))
	@$(BIN)/mypy

# The kernels of one instruction set stand for those of all.
TIDY_SOURCES = $(filter-out csrc/cuda/% csrc/cpu/a%,$(filter %.cpp,$(SOURCES)))

tidy: build $(VENV)/.extra-lint
	@$(BIN)/clang-tidy --quiet $(TIDY_SOURCES) -- $$($(BIN)/python -c 'import setup; print(*setup.tidy_flags())')

.PHONY: tidy sanitize sanitize-threads fuzz soak mutate

# Each build has a folder of its own, which stands before the working tree. The sanitizer and C++'s own
# library are loaded before Python, which knows neither.
SANITIZED = build/$(1)/lib
SANITIZE  = PYBEAM_SANITIZE=$(1) $(BIN)/python setup.py -q build --build-base build/$(1) --build-lib $(SANITIZED)
FILE_OF   = $$($${CXX:-c++} -print-file-name=$(1).so)
RUN_WITH  = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(SANITIZED):$(CURDIR):$(CURDIR)/tests \
    LD_PRELOAD="$(call FILE_OF,$(2)) $(call FILE_OF,libstdc++)" $(BIN)/python -m pytest -q --capture=sys -p no:cacheprovider

# Python and torch leave memory to the system when they end, so leaks are not looked for.
sanitize: build $(VENV)/.extra-test
	@$(call SANITIZE,address)
	@ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 $(call RUN_WITH,address,libasan) \
	    -n auto --dist worksteal -m "not slow" tests/ops tests/state tests/kvcache tests/engine tests/misuse
	@$(MAKE) sanitize-threads

# One library of torch unlocks mutexes that another has locked, so misuse of mutexes is not looked for.
sanitize-threads: build $(VENV)/.extra-test
	@$(call SANITIZE,thread)
	@TSAN_OPTIONS=report_mutex_bugs=0:suppressions=$(CURDIR)/tests/misuse/thread_sanitizer.txt $(call RUN_WITH,thread,libtsan) \
	    tests/misuse/test_threads.py

MINUTES ?=

fuzz: build $(VENV)/.extra-test
	@PYBEAM_POISON=1 PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -W ignore -m fuzz $(TARGETS) \
	    $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES))

soak: build $(VENV)/.extra-test
	@mkdir -p build
	@PYBEAM_POISON=1 PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -W ignore -m fuzz.soak --output build/soak.json \
	    $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# One thread, as all runs at the lowest priority beside other work.
mutate: build $(VENV)/.extra-test $(VENV)/.extra-mutate
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR):$(CURDIR)/tests nice -n 10 $(BIN)/python -W ignore -m fuzz.mutants \
	    $(MODULES) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(SECONDS),--seconds $(SECONDS))

fmt: $(VENV)/.extra-lint
	@$(BIN)/ruff check --fix --exit-zero $(PYTHONS)
	@$(BIN)/ruff format $(PYTHONS)
	@$(if $(SOURCES),$(BIN)/clang-format -i $(SOURCES))

build: $(BUILT)

launches: build $(VENV)/.extra-test
	@$(BIN)/python -m benchmarks.gpu.launches

# On a GPU machine: no virtual environment and no network, everything is built in place against the
# torch of $(PYTHON). Results go to $OUT if it is set, else to benchmarks/results/<gpu>/.
GPU     = $(shell nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1 | tr "A-Z " "a-z-")
GPU_OUT = $(or $(OUT),benchmarks/results/$(or $(GPU),no-gpu))
# Stops it in time with SIGINT, upon which the benchmarks and the tests write what they have.
RUN_FOR = set -o pipefail; PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 timeout -s INT -k 20

gpu-test gpu-bench gpu-e2e gpu-profile: SHELL := bash

# What `make gpu-pack` has made elsewhere is used as far as it fits.
gpu-test gpu-bench gpu-e2e gpu-profile: export TRITON_CACHE_DIR ?= $(CURDIR)/build/triton-cache
gpu-test gpu-bench gpu-e2e gpu-profile: export PYTHONPATH := $(CURDIR)/build/gpu-packages:$(PYTHONPATH)
GPU_PACK = build/gpu-pack
GPU_DATA = $(or $(DATA),$(wildcard $(GPU_PACK)/data))

gpu-pack: build $(VENV)/.extra-test
	@$(BIN)/python -m benchmarks.gpu.pack --output $(GPU_PACK) $(if $(WHEELS),--wheel $(WHEELS))

gpu-build:
	@mkdir -p $(GPU_OUT)
	@# a copy of the tree may lack links
	@test -e pybeam/triton_kernels || ln -s ../triton_kernels pybeam/triton_kernels
	@$(PYTHON) -m benchmarks.gpu.unpack $(GPU_PACK) || \
	PYBEAM_CUDA=1 $(PYTHON) setup.py build_ext --inplace > $(GPU_OUT)/gpu-build.log 2>&1 || { \
	    tail -n 60 $(GPU_OUT)/gpu-build.log; echo "the CUDA kernels do not build; going on without"; \
	    $(PYTHON) setup.py build_ext --inplace >> $(GPU_OUT)/gpu-build.log 2>&1; }

# Kernels first, so that a broken machine shows at once; graphs last, because a failed capture may break what follows.
# A machine with a GPU may lack what other tests import.
GPU_PYTEST = $(PYTHON) -m pytest -q --device cuda --maxfail 20 -W default -p no:cacheprovider --continue-on-collection-errors

gpu-test: gpu-build
	@$(RUN_FOR) 240 $(GPU_PYTEST) --minutes $(or $(MINUTES),3) -m "not slow and not graphs" \
	    $$($(PYTHON) -c "import xdist" 2> /dev/null && printf -- '-n 8 --maxschedchunk 1') \
	    --junitxml=$(GPU_OUT)/gpu-test.xml 2>&1 | tee $(GPU_OUT)/gpu-test.log; kernels=$$?; \
	$(RUN_FOR) 120 $(GPU_PYTEST) --minutes 1.5 -m graphs tests/engine \
	    --junitxml=$(GPU_OUT)/gpu-test-graphs.xml 2>&1 | tee $(GPU_OUT)/gpu-test-graphs.log && exit $$kernels

gpu-bench: gpu-build
	@$(RUN_FOR) 440 $(PYTHON) -m benchmarks.gpu --minutes 6.5

gpu-e2e: gpu-build
	@$(RUN_FOR) 440 $(PYTHON) -m benchmarks e2e --device cuda --minutes 6.5 \
	    $(if $(GPU_DATA),--data $(GPU_DATA)) $(if $(ONLY),--only $(ONLY))
	-@$(PYTHON) -m benchmarks.plots $(GPU_OUT)/e2e-gpu.json

# A table for each search; the trace is of one.
GPU_PROFILE = $(RUN_FOR) 90 $(PYTHON) -m pybeam profile --device cuda --model $(or $(MODEL),examples/models/bible-es-en)

gpu-profile: gpu-build
	@for search in "fixed --width 5" "greedy" "fixed --width 5 --lines 1" \
	    "variable --width 50 --threshold 2.0 --max-candidates 3 --schedule streaming"; do \
	    echo "--algorithm $$search"; $(GPU_PROFILE) --algorithm $$search || true; \
	done 2>&1 | tee $(GPU_OUT)/gpu-profile.log
	-@$(GPU_PROFILE) --algorithm fixed --width 5 --repeats 1 --trace $(GPU_OUT)/gpu-trace.json
	-@$(RUN_FOR) 60 $(PYTHON) -m benchmarks.gpu.kernels_of_a_step --minutes 0.7

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWCOMERS) docs/_build $(PAGE)/node_modules $(PAGE)/dist build dist *.egg-info pybeam/_C*.so .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(VENV)/.stamp-python:
	@echo "[1/4] creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pybeam needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-torch: $(VENV)/.stamp-python
	@echo "[2/4] installing $(TORCH) (one or two minutes, depending on the network)"
	@$(PIP) $(TORCH)
	@touch $@

$(VENV)/.stamp-tools: $(VENV)/.stamp-torch
	@echo "[3/4] installing the build tools: ninja setuptools wheel numpy"
	@$(PIP) ninja "setuptools>=77" wheel numpy
	@touch $@

$(BUILT): $(VENV)/.stamp-tools pyproject.toml $(wildcard packages/*/pyproject.toml) $(wildcard setup.py) $(SOURCES)
	@echo "[4/4] compiling the C++ kernels and installing pybeam (one to four minutes)"
	@$(PIP) -e ".[$(EXTRAS)]" --no-build-isolation
	@$(PIP) -e packages/client -e packages/examples --no-build-isolation
	@$(BIN)/pybeam info
	@touch $@

$(OLDEST)/.stamp: pyproject.toml release/oldest.py
	@echo "[oldest] installing $(TORCH) and the oldest packages that pyproject.toml allows"
	@$(PYTHON) release/oldest.py > /dev/null
	@$(PYTHON) -m venv --clear $(OLDEST)
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check $$($(PYTHON) release/oldest.py)
	@touch $@

# The wheels of this tree, as they would come from PyPI. Each page installs its extras beside them.
PACKAGED := $(wildcard pyproject.toml setup.py MANIFEST.in README.md pybeam_search.py) $(SOURCES) \
    $(wildcard $(shell git ls-files --stage pybeam triton_kernels packages examples/models examples/speech \
        2> /dev/null | grep -v ^120000 | cut -f 2))

dist/.stamp: $(PACKAGED)
	@$(MAKE) wheel

$(NEWCOMERS)/.stamp-torch:
	@echo "[newcomers] installing $(TORCH) into $(NEWCOMERS)"
	@$(PYTHON) -m venv --clear $(NEWCOMERS)
	@$(NEWCOMERS)/bin/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@touch $@

$(NEWCOMERS)/.stamp: dist/.stamp | $(NEWCOMERS)/.stamp-torch
	@rm -f $@
	@echo "[newcomers] installing the wheel into $(NEWCOMERS)"
	@$(NEWCOMERS)/bin/python -m pip uninstall -qqy pybeam-search
	@$(NEWCOMERS)/bin/python -m pip install -qq --disable-pip-version-check dist/pybeam_search-*.whl
	@touch $@

# The extras of pyproject.toml, without building pybeam a second time.
$(VENV)/.extra-%: pyproject.toml | $(VENV)/.stamp-python
	@echo "[$*] installing what \`make $*\` needs beside pybeam"
	@$(BIN)/python -c 'import sys, tomllib; \
	    extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	    print(*extras[sys.argv[1]], sep="\n")' $* > $(VENV)/extra-$*.txt
	@$(PIP) -r $(VENV)/extra-$*.txt
	@touch $@

$(PAGE)/node_modules/.stamp: $(PAGE)/package-lock.json
	@echo "[edge] installing the packages of $(PAGE)"
	@npm ci --silent --prefix $(PAGE)
	@touch $@

$(VENV)/.extra-test $(VENV)/.extra-mutate $(VENV)/.extra-ray $(VENV)/.extra-test-ray $(VENV)/.extra-bench $(VENV)/.extra-docs: | $(BUILT)
