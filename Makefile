# Everything that this project does, one line each. `make` lists the targets.
#
# PYTHON3   the interpreter that makes .venv (3.10 to 3.13)
# HOSTS     options of test-hosts: --every for three hosts and all restarts, -rP for numbers
# ASCEND    options of test-ascend: -k NAME; -n 0 for one after the other, with --pdb or -s
# SLOW      options of test-slow-engine: -k NAME; -m ci for those of .ci/run
# RELEASE   options of release: --trial for a trial
# TARGET    reference (default) or ascend;  PYTHON, ARCH, KERNELS, SOC: of an Ascend wheel
PYTHON3 ?= python3
TARGET ?= reference
ARCH ?= $(shell uname -m)
KERNELS ?= prebuilt

VENV := .venv/.made
CONSTRAINTS := tests/constraints.txt
# When it fails, all that it says: --quiet would hide why two requirements conflict.
PIP := @.venv/bin/python -m pip --disable-pip-version-check install --constraint $(CONSTRAINTS)
SAY := >.venv/pip.log || { cat .venv/pip.log >&2; exit 1; }
TOOL := PYTHONPATH=tools .venv/bin/python -m balance_tools
WHEEL_OPTIONS := --target $(TARGET)
ifneq ($(TARGET),reference)
WHEEL_OPTIONS += --arch $(ARCH) --kernels $(KERNELS) \
    $(if $(PYTHON),--python $(PYTHON)) $(if $(SOC),--soc $(SOC))
endif

# Of test-unit what the Python and its libraries can change. Left out: policies, simulator
# and bench, which are arithmetic; documents, images and deployments, which are files;
# kernels, series and wheel, which other commands here run; and rebase, drift, contract,
# doctor and verify, which take longest.
PYTHON_TESTS := $(addprefix tests/unit/,demo environment hooks installed serving upstream \
    vendoring simulator/test_same_decisions.py test_distribution.py test_main.py)

# A network and processes of its own: whatever happens, nothing of it is left behind.
NAMESPACES := unshare $(if $(filter-out 0,$(shell id -u)),--map-root-user) \
	--net --pid --fork --kill-child --mount-proc
HOSTS ?=
ASCEND ?=
SLOW ?=

.PHONY: help demo explore test test-unit test-python test-wheel test-engine test-slow test-slow-engine test-ascend test-hosts test-image lint \
	vendor wheel wheels image release env advisories constraints clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)  ## build, serve with balance off and adaptive, compare answers and speed
	$(TOOL) demo

test: lint test-unit test-wheel test-engine  ## the everyday tests, the fast ones first

lint: $(VENV)  ## style, types, and the patch series
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	$(TOOL) lint-series
	.venv/bin/hadolint docker/Dockerfile
	.venv/bin/shellcheck docker/*.sh findings/*.sh tools/*.sh

test-unit: vendor  ## tools and policies, and quilt on the real upstream trees
	.venv/bin/python -m pytest tests/unit -n 3 --dist loadfile --slowest unit

test-python: vendor wheel  ## what another Python can change
	.venv/bin/python -m pytest $(PYTHON_TESTS) -n 2 --dist loadfile

test-wheel: $(VENV)  ## build, install, inspect and uninstall two wheels
	$(TOOL) wheel --here
	.venv/bin/python -m pytest tests/wheel -n 2 --dist loadfile --no-loadscope-reorder --release dist

test-engine: $(VENV)  ## the real engine, from the installed reference wheel
	PYTEST="$$($(TOOL) env)"/bin/pytest && "$$PYTEST" tests/engine -n 3 --dist loadfile --slowest engine

explore: $(VENV)  ## every interleaving of ranks, 45 minutes; RUN='…' replays one, SEED=1 draws
	PYTHON="$$($(TOOL) env)"/bin/python && "$$PYTHON" tests/engine/explore.py \
	    $(if $(RUN),--replay '$(RUN)') $(if $(SEED),--seed $(SEED))

test-slow: vendor test-slow-engine  ## what takes minutes, or asks the index for more
	.venv/bin/python -m pytest tests/unit -m slow -n 2
	.venv/bin/python -m pytest tests/wheel -m slow

test-slow-engine: $(VENV)
	PYTEST="$$($(TOOL) env)"/bin/pytest && \
	    "$$PYTEST" tests/engine -m slow -n 2 --dist loadfile $(SLOW)

test-hosts: $(VENV)  ## several hosts: needs root or user namespaces, and iproute2
	PYTEST="$$($(TOOL) env)"/bin/pytest && $(NAMESPACES) "$$PYTEST" tests/hosts $(HOSTS)

test-ascend: $(VENV)  ## the Ascend wheel on emulated NPUs: needs g++; ASCEND: options of pytest
	ENVIRONMENT="$$(.venv/bin/python tests/ascend/build.py)" && \
	    "$$ENVIRONMENT/run" pytest tests/ascend -n 2 --dist loadfile --no-loadscope-reorder $(ASCEND)

test-image: $(VENV)  ## both commands, and the reference image, on bare Debian; needs root
	.venv/bin/python -m pytest tests/image

vendor: $(VENV)  ## materialise the patched upstream packages, as upstream.toml says
	$(TOOL) vendor

wheel: $(VENV)  ## build one wheel: TARGET, and for ascend PYTHON, ARCH, KERNELS, SOC
	$(TOOL) wheel $(WHEEL_OPTIONS)

wheels: $(VENV)  ## build the reference wheel and the six Ascend wheels
	$(TOOL) wheel --all

release: $(VENV)  ## build and verify a release in dist/
	tools/release.sh $(RELEASE)

image: vendor  ## build a container image: WHEEL=dist/…; OS, BASE, ENGINE, OPTIONS
	OS='$(OS)' BASE='$(BASE)' ENGINE='$(ENGINE)' docker/build.sh '$(WHEEL)' $(OPTIONS)

env: $(VENV)  ## install the reference wheel into an environment and print its path
	$(TOOL) env

advisories: $(VENV)  ## write the tables of SECURITY.md from advisories.toml
	$(TOOL) advisories

clean:  ## delete what was built; downloads in build/cache stay
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name cache -exec rm -rf {} +
	rm -rf dist .venv

constraints: wheel  ## choose anew what tools, tests and the demo install
	ls -t dist/*.reference-*.whl | head -n 1 | sed 's|^|./|' | UV_PYTHON_DOWNLOADS=never .venv/bin/uv pip compile - \
	    --quiet --upgrade --universal --python-version 3.10 --group tools --group test --group demo --group engine \
	    --strip-extras --no-annotate --no-emit-package vllm --no-emit-index-url \
	    --custom-compile-command 'make constraints' --output-file $(CONSTRAINTS)

$(VENV): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON3) -c 'import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit("error: $(PYTHON3) is Python %d.%d, expected 3.10 to 3.13; run make PYTHON3=/path/to/python3" % sys.version_info[:2])'
	@echo "Setting up .venv with the tools and tests (half a minute)"
	rm -rf .venv  # if it is a link, that alone
	$(PYTHON3) -m venv .venv
	$(PIP) --upgrade pip $(SAY)
	$(PIP) --group tools --group test --group demo $(SAY)
	@touch $@
