# `make study` and `make test` do all the set-up on a fresh machine: virtual environment, dependencies, and Debian's
# venv package where python3 comes without it. Everything else is the `scaling` command.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Processes that share the tests out, file by file; 0: pytest alone, as where there are GPUs, which tests would share.
TEST_PROCESSES ?= $(if $(shell nvidia-smi --list-gpus 2>/dev/null | grep '^GPU '),0,2)
# Of those that `make test` leaves out many wait for other processes: three keep two cores busy.
REST_PROCESSES ?= $(if $(filter 0,$(TEST_PROCESSES)),0,3)

# Hundreds of processes import the same modules: their byte code is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

REST := processes or programs or slurm or gpu or quality

.PHONY: study test test-all lint install horovod docs figures reference clean

study: $(VENV)/.installed
	$(BIN)/scaling run quickstart

# What runs in the test's own process: no workers, Slurm, MPI, Horovod, browser or GPU, and no long simulation.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) -m "not ($(REST) or every_case)"

# That, and the rest. `make test test-all` runs each test once.
test-all: test $(VENV)/.installed-launchers system-packages
	$(BIN)/python -m pytest -n $(REST_PROCESSES) -m "($(REST)) and not every_case"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/.installed

# The README's table and figures, from the raw samples of the committed studies, and the picture of synthesised trees.
figures: $(VENV)/.installed
	$(BIN)/python tools/readme_figures.py
	mkdir -p build
	$(BIN)/scaling synthesize --topology dual-k80 --out build/dual-k80-trees.yaml --picture docs/background/pictures/dual-k80-trees.svg

# docs/reference from the code: keys of studies, columns, commands.
reference: $(VENV)/.installed
	$(BIN)/python tools/reference_pages.py

# The documents, the reports of the committed results and the docstrings as one static site: build/site/index.html.
docs: reference
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python tools/docs_site.py --out build/site
	$(BIN)/python -m pdoc --docformat google --output-directory build/site/api scaling launchers topologies '!scaling.worker' '!scaling.__main__'

# Horovod beside this torch: built once a version of torch and Python, then taken from the user's cache.
horovod: $(VENV)/.installed
	launchers/build_horovod.sh $(BIN)/python

# torch first and alone, at the pinned version: see constraints.txt.
$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV) || $(MAKE) --no-print-directory venv-package
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

# What the tests of MPI and Horovod start, and the frameworks of users' scripts. MPICH has a prefix of its own: its
# mpiexec has the name of Open MPI's. What cannot be had here is said now, and its tests say that they are skipped.
$(VENV)/.installed-launchers: $(VENV)/.installed-test launchers/build_horovod.sh launchers/horovod_toolchain.cmake
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --ignore-installed --prefix $(abspath $(VENV))/mpich mpich \
	  || echo "MPICH cannot be installed: its tests will be skipped" >&2
	launchers/build_horovod.sh $(BIN)/python || echo "Horovod cannot be built: its tests will be skipped" >&2
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[frameworks]' \
	  || echo "transformers, accelerate and Lightning cannot be installed: their tests will be skipped" >&2
	touch $@

# A Slurm for the tests that start one on this host, with the libpmix.so that its `--mpi=pmix` loads (libpmix-dev alone
# brings that name), shellcheck for the batch scripts, the system's own Open MPI beside that of the package index, ip
# and tc for two hosts as network namespaces, a browser for report.html. Packages are asked for, not programs: a
# program installed by hand would hide that its package is missing.
SYSTEM_PACKAGES := munge slurmctld slurmd slurm-client libpmix-dev shellcheck openmpi-bin iproute2 chromium
.PHONY: system-packages
system-packages:
	@missing=; for package in $(SYSTEM_PACKAGES); do \
	  dpkg-query --show --showformat='$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || missing="$$missing $$package"; \
	done; \
	test -n "$$missing" || exit 0; \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing && exit 0; \
	fi; \
	echo "tests of Slurm, MPI, two hosts or report.html may be skipped; packages not installed:$$missing (Debian: apt-get install$$missing)" >&2

# Debian's python3 has no ensurepip; its package python3-venv brings it.
.PHONY: venv-package
venv-package:
	@command -v apt-get >/dev/null && test "$$(id -u)" = 0 || { \
	  echo "$(PYTHON) cannot make a virtual environment; install its venv package (Debian: apt-get install python3-venv)" >&2; \
	  exit 1; }
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
	$(PYTHON) -m venv --clear $(VENV)

clean:
	rm -rf $(VENV) build *.egg-info
