# Each target does its own set-up; none needs anything but make, bash and a Debian or a Python >= 3.11.
# ARGS is passed on: make test ARGS="-x tests/test_repository.py"

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.ready-docs
NODE := tests/interop/node
NODE_READY := $(NODE)/node_modules/.ready
PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: help demo test bench gate lint format docs peers clean FORCE

help:
	@echo "make demo    a small plant in several processes, over every protocol and transport"
	@echo "make test    the whole test suite"
	@echo "make bench   throughput and latency beside raw limits and a WebSocket library"
	@echo "make gate    the short run of it that CI holds us to"
	@echo "make lint    ruff, mypy, pyright and the completeness of the public types"
	@echo "make docs    the documentation, into site/"
	@echo "make format  let ruff rewrite what make lint would complain about"
	@echo "make clean   remove everything that the other targets made"

demo: $(READY)
	$(BIN)/polybus demo $(ARGS)

test: $(READY) peers
	$(BIN)/python -m pytest $(ARGS)

bench: $(READY)
	$(BIN)/python -m bench $(ARGS)

gate: $(READY)
	$(BIN)/python -m bench --gate

lint: $(READY)
	@scripts/debian-packages.sh node
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/python -m pyright
	@# --verifytypes heeds neither the configuration nor --pythonpath: it asks the first python on the path.
	PATH="$(CURDIR)/$(BIN):$$PATH" python -m pyright --verifytypes polybus --ignoreexternal

format: $(READY)
	$(BIN)/python -m ruff check --fix-only
	$(BIN)/python -m ruff format

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

clean:
	rm -rf $(VENV) $(NODE)/node_modules site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A virtual environment that came along when its folder was copied or moved still points at the old place.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
$(READY): FORCE
endif

$(READY): pyproject.toml constraints.txt
	@scripts/debian-packages.sh python
	@echo "setting up $(VENV)"
	@python="$$(scripts/find-python.sh)" && "$$python" -m venv --clear $(VENV)
	@$(PIP_INSTALL) -e '.[dev,cli,uvloop]' -c constraints.txt
	@echo "$(CURDIR)" > $@

$(DOCS_READY): $(READY)
	@$(PIP_INSTALL) -e '.[docs]' -c constraints.txt
	@touch $@

# The real peers. Where they cannot be had, the tests that need them are skipped; under .ci/run that is a failure.
peers:
	@scripts/debian-packages.sh node
	@command -v npm >/dev/null && $(MAKE) --silent --no-print-directory $(NODE_READY) || { \
		echo "no npm, or npm install failed: without it the tests against real Node peers cannot run" >&2; \
		test -z "$$POLYBUS_CI"; \
	}

$(NODE_READY): $(NODE)/package.json $(NODE)/.npmrc
	@cd $(NODE) && npm install --no-audit --no-fund --silent
	@touch $@
