# Each target does its own set-up; none needs anything but make, bash and a Debian or a Python >= 3.11.
# ARGS is passed on: make test ARGS="-x tests/house/test_repository.py"; WORKERS=0 runs the tests in one process, for -s and --pdb.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The part in C, built in place. Without a compiler there is none, and Python does its work.
BUILT := $(VENV)/.built
# The tests of what is in C; `make test` tries its twins in Python with them, too.
TWINS := tests/unit/protocols/ubre tests/unit/transports/test_length_framing.py tests/unit/test_bodies.py \
	tests/unit/test_json_bodies.py tests/unit/test_speedups.py tests/contract/test_protocols.py tests/house/test_call_budget.py \
	tests/house/test_message_path.py
# What linters and the second tier of tests need as well.
WHOLE := $(VENV)/.whole
# The documentation has a small environment of its own: neither Java nor Spark.
LOWEST := .venv-lowest
RELEASE := .venv-release
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
SITE := site/index.html
NODE := tests/integration/interop/node
NODE_READY := $(NODE)/node_modules/.ready
UP_PYTHON := tests/integration/interop/up_python
UP_PYTHON_READY := $(UP_PYTHON)/.venv/.ready
UMESSAGE := tests/integration/interop/umessage
UMESSAGE_READY := $(UMESSAGE)/.venv/.ready
WHEELS := tests/integration/pyodide/wheels
WHEELS_READY := $(WHEELS)/.ready
# The parts of `make lint`; `make -j` runs them side by side.
LINTS := lint-style lint-floors lint-mypy lint-pyright lint-pages
PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: help demo test test-integration test-all test-lowest release bench gate fuzz lint $(LINTS) ready format docs peers web clean FORCE

help:
	@echo "make demo    two programs in a story of twenty seconds"
	@echo "make test    the tests: Python is all that they need"
	@echo "make test-integration  those that need a browser, Node, Java, nginx, many processes: ARGS=tests/integration/spark for one folder"
	@echo "make test-all  both on every event loop, with many seeds: before a release"
	@echo "make test-lowest  units and contracts on the oldest versions that pyproject.toml allows: PYTHON=python3.13 for one interpreter"
	@echo "make release  wheels, sdist, bill of materials and hashes into dist/, checked and installed; publishes nothing"
	@echo "make bench   rates and processor time beside raw limits; ARGS=--peers: beside other libraries"
	@echo "make gate    the short run of it that CI holds us to"
	@echo "make fuzz    a decoder under coverage guidance: make fuzz TARGET=csb SECONDS=600"
	@echo "make lint    ruff, the blocking twin, the floors, mypy, pyright, also of the programs in docs/, and the completeness of the public types"
	@echo "make docs    the documentation, into site/"
	@echo "make format  let ruff rewrite what make lint would complain about"
	@echo "make clean   remove everything that the other targets made"

demo: $(READY) $(BUILT)
	$(BIN)/polybus demo $(ARGS)

# Two workers that find the tests compiled begin in half the time.
test test-integration: export PYTHONDONTWRITEBYTECODE :=
# They wait, too, for sockets, processes and timers: three workers keep two cores busy.
test: WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)))
test: $(READY) $(BUILT)
	$(if $(ARGS),,POLYBUS_SPEEDUPS=0 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TWINS) -k "ubre or not test_protocols")
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-integration: WORKERS ?= auto
test-integration: $(WHOLE) $(BUILT) $(SITE) peers web
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "$(if $(POLYBUS_FULL),,not full)" \
		$(if $(filter tests/%,$(ARGS)),,tests/integration) $(ARGS)

test-all: export POLYBUS_FULL := 1
test-all: test test-integration

# In an environment of its own, so that each lower bound in pyproject.toml is one that somebody has tried.
test-lowest: WORKERS ?= auto
test-lowest:
	@python="$${PYTHON:-$$(scripts/find-python.sh)}" && "$$python" -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check uv -c constraints.txt
	$(LOWEST)/bin/uv pip install -q -p $(LOWEST) --resolution lowest-direct \
		-e '.[fastapi,cli,capture,analyse,nats,depends,opentelemetry,prometheus,zenoh,uvloop]'
	@# These versions stay: an exporter of the tests would bring its own of OpenTelemetry.
	$(LOWEST)/bin/uv pip freeze -q -p $(LOWEST) --exclude-editable > $(LOWEST)/oldest.txt
	$(LOWEST)/bin/uv pip install -q -p $(LOWEST) -e '.[test]' -c $(LOWEST)/oldest.txt
	$(LOWEST)/bin/uv pip check -q -p $(LOWEST)
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) tests/unit tests/contract $(ARGS)

release:
	@scripts/debian-packages.sh python
	@python="$$(scripts/find-python.sh)" && "$$python" -m venv --clear $(RELEASE)
	@POLYBUS_SPEEDUPS=0 $(RELEASE)/bin/python -m pip install -qq --disable-pip-version-check -e '.[release]' -c constraints.txt
	$(RELEASE)/bin/python -m scripts.release

bench: $(READY) $(BUILT)
	@$(PIP_INSTALL) -e '.[bench]' -c constraints.txt
	$(BIN)/python -m bench $(ARGS)

gate: $(READY) $(BUILT)
	@scripts/debian-packages.sh valgrind
	$(BIN)/python -m bench --gate
	$(BIN)/python -m bench.instructions

fuzz: $(READY) $(BUILT)
	@$(PIP_INSTALL) -e '.[fuzz]' -c constraints.txt
	$(BIN)/python -m fuzz $(or $(TARGET),csb) --seconds $(or $(SECONDS),60)

lint: $(LINTS)

lint-style: $(WHOLE)
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python scripts/make_blocking.py --check

lint-floors: $(WHOLE)
	$(BIN)/lint-imports --no-logo

# The type that mypy gives to a collection of several classes depends on the order of its sets: the same on every machine.
lint-mypy: $(WHOLE)
	PYTHONHASHSEED=0 $(BIN)/python -m mypy

lint-pyright: $(WHOLE)
	@scripts/debian-packages.sh node
	$(BIN)/python -m pyright
	@# --verifytypes heeds neither the configuration nor --pythonpath: it asks the first python on the path.
	PATH="$(CURDIR)/$(BIN):$$PATH" python -m pyright --verifytypes polybus --ignoreexternal

# What mypy and pyright say of the programs in README and docs/: `make test` leaves these tests to it.
lint-pages: $(WHOLE)
	@scripts/debian-packages.sh node
	$(BIN)/python -m pytest -q -n 0 tests/integration/documentation/test_programs.py -k "are_typed or pyright"

# What `make lint docs` needs: an environment that changes under its readers would be none.
ready: $(WHOLE) $(DOCS_READY)

format: $(READY)
	$(BIN)/python -m ruff check --fix-only
	$(BIN)/python -m ruff format

docs: $(SITE)

# Whatever a page is made of; tests/integration/documentation/test_site.py reads the pages.
$(SITE): $(DOCS_READY) mkdocs.yml $(shell find docs sdk -type f \( -name '*.md' -o -name '*.py' -o -name '*.svg' -o -name '*.css' \))
	$(DOCS_VENV)/bin/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict

clean:
	rm -rf sdk/polybus/_speedups.*.so dist $(VENV) $(LOWEST) $(RELEASE) $(DOCS_VENV) $(NODE)/node_modules $(UP_PYTHON)/.venv $(UMESSAGE)/.venv $(WHEELS) site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A virtual environment that came along when its folder was copied or moved still points at the old place.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
$(READY): FORCE
endif

$(READY): pyproject.toml constraints.txt
	@scripts/debian-packages.sh python
	@echo "setting up $(VENV)"
	@python="$$(scripts/find-python.sh)" && "$$python" -m venv --clear $(VENV)
	@$(PIP_INSTALL) -e '.[test]' -c constraints.txt
	@touch $(BUILT)
	@echo "$(CURDIR)" > $@

$(BUILT): sdk/polybus/_speedups.c hatch_build.py | $(READY)
	@$(PIP_INSTALL) --no-deps -e .
	@touch $@

$(WHOLE): $(READY)
	@scripts/debian-packages.sh java
	@echo "setting up the rest of $(VENV)"
	@$(PIP_INSTALL) -e '.[dev]' -c constraints.txt
	@touch $@

ifneq ($(shell cat $(DOCS_READY) 2>/dev/null),$(CURDIR))
$(DOCS_READY): FORCE
endif

$(DOCS_READY): pyproject.toml constraints.txt
	@scripts/debian-packages.sh python
	@echo "setting up $(DOCS_VENV)"
	@python="$$(scripts/find-python.sh)" && "$$python" -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install -qq --disable-pip-version-check -e '.[docs,cli,capture]' -c constraints.txt
	@echo "$(CURDIR)" > $@

# The real peers. Where they cannot be had, the tests that need them are skipped; under .ci/run that is a failure.
peers: $(WHOLE)
	@scripts/debian-packages.sh node nats prometheus systemd
	@$(MAKE) --silent --no-print-directory $(WHEELS_READY) || { \
		echo "the wheels for Pyodide cannot be had: without them the tests inside it cannot run" >&2; \
		test -z "$$POLYBUS_CI"; \
	}
	@command -v npm >/dev/null && $(MAKE) --silent --no-print-directory $(NODE_READY) || { \
		echo "no npm, or npm install failed: without it the tests against real Node peers cannot run" >&2; \
		test -z "$$POLYBUS_CI"; \
	}
	@$(MAKE) --silent --no-print-directory $(UP_PYTHON_READY) $(UMESSAGE_READY) || { \
		echo "up-python cannot be had: without it the tests against the real uProtocol SDK cannot run" >&2; \
		test -z "$$POLYBUS_CI"; \
	}

# A proxy and a browser. Where they are missing, the tests that need them are skipped with a reason; under .ci/run they fail.
web:
	@scripts/debian-packages.sh web

# Pyodide itself comes from npm; these are the packages that a page would have it install.
$(WHEELS_READY): tests/integration/pyodide/requirements.txt constraints.txt
	@rm -rf $(WHEELS)
	@$(BIN)/python -m pip download -qq --disable-pip-version-check -d $(WHEELS) \
		-r tests/integration/pyodide/requirements.txt -c constraints.txt --no-deps --only-binary=:all: \
		--platform pyemscripten_2026_0_wasm32 --implementation cp --abi cp314 --python-version 3.14
	@touch $@

# In an environment of its own: it wants an older protobuf than polybus.
$(UP_PYTHON_READY): $(UP_PYTHON)/requirements.txt
	@python="$$(scripts/find-python.sh)" && "$$python" -m venv --clear $(UP_PYTHON)/.venv
	@$(UP_PYTHON)/.venv/bin/python -m pip install -qq --disable-pip-version-check -r $(UP_PYTHON)/requirements.txt
	@touch $@

$(UMESSAGE_READY): $(UMESSAGE)/requirements.txt
	@python="$$(scripts/find-python.sh)" && "$$python" -m venv --clear $(UMESSAGE)/.venv
	@$(UMESSAGE)/.venv/bin/python -m pip install -qq --disable-pip-version-check -r $(UMESSAGE)/requirements.txt
	@touch $@

$(NODE_READY): $(NODE)/package.json $(NODE)/.npmrc
	@cd $(NODE) && npm install --no-audit --no-fund --silent
	@touch $@
