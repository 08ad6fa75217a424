# Every target builds .venv by itself from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One XLA thread per worker: two test processes share the machine without slowing each other. Files start in the order of
# tests/conftest.py, the longest first.
PYTEST := XLA_FLAGS="$(XLA_FLAGS) --xla_cpu_multi_thread_eigen=false" OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
	-n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help venv demo test quick lint browser bench bench-peers bench-policy clean

help:
	@echo "make demo   learn safe policies from a log and look at them (three to eight minutes)"
	@echo "make test   lint, types and every test (seven to seventeen minutes)"
	@echo "make quick  the tests of data, policies and equations only (about a minute)"
	@echo "make bench  measure speed and memory (about twenty minutes)"
	@echo "make bench-peers  measure other implementations of CPQ beside ours, in an environment of their own"
	@echo "make bench-policy  measure the time to a good policy, ours beside others' (hours)"

# What the kernels are built from: after a change of it they are built again.
KERNELS := setup.py $(wildcard src/ringfence/kernels/*.cc src/ringfence/kernels/*.h)

$(READY): pyproject.toml constraints.txt $(KERNELS)
	$(PYTHON) -c 'import sys; sys.exit("ringfence needs Python 3.11 or newer; try make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[mujoco,minari,tensorboard,ray,dev]"
	touch $(READY)

venv: $(READY)

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks setup.py
	$(BIN)/ruff format --check src tests benchmarks setup.py
	$(BIN)/mypy

test: lint browser
	$(PYTEST)

# Chromium, in which pages are tested: the one that is there, else Debian's where we may install it. It never fails: without
# a browser the tests say at their end what did not run.
browser:
	@if command -v chromium google-chrome >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	echo "no Chromium with chromedriver here, and no right to install it: pages will not be tested in a browser"; exit 0; fi; \
	echo "installing Debian's chromium and chromium-driver"; \
	timeout 300 sh -c 'DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND; apt-get update -qq && \
	apt-get install -qq --yes --no-install-recommends chromium chromium-driver' >/dev/null 2>&1 </dev/null || \
	echo "Chromium could not be installed: pages will not be tested in a browser"

# What fails first when something breaks: data, files, limits, networks and CPQ's equations.
QUICK := tests/data tests/deploy tests/tasks tests/test_limits.py tests/equations/test_networks.py tests/equations/test_cpq.py

quick: $(READY)
	$(PYTEST) -m "not slow" $(QUICK)

demo: $(READY)
	$(BIN)/ringfence demo --out demo

bench: $(READY)
	$(BIN)/python -m benchmarks.run

# Other implementations of CPQ, without the old versions of everything that osrl-lib pins.
PEERS := .bench-venv
$(PEERS)/.ready:
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy gymnasium scipy tqdm pyyaml
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps osrl-lib==0.1.0
	touch $@

bench-peers: $(READY) $(PEERS)/.ready
	$(BIN)/python -m benchmarks.peers --python $(PEERS)/bin/python

bench-policy: $(READY) $(PEERS)/.ready
	$(BIN)/python -m benchmarks.time_to_policy --python $(PEERS)/bin/python

clean:
	rm -rf $(VENV) demo build dist
