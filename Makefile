# The commands of this repository, the same by hand and in CI. `make help` lists them.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of daemons. Each would compile all modules again where this is set, which doubles its start.
unexport PYTHONDONTWRITEBYTECODE
# With COMPILED=1 the byte path of tests, soak and demo is the compiled one.
ifdef COMPILED
export KUBEPROXY_COMPILED := $(CURDIR)/$(VENV)/compiled
setup: compiled
endif

.PHONY: help setup compiled check format unit test test-compiled pythons fuzz soak demo bench conformance micro profile docs lock install upgrade uninstall deb image image-check release clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/ready ## make .venv/; as root on Debian and Ubuntu also install the system packages it needs

$(VENV)/ready: tests/tools/setup.sh pyproject.toml requirements.lock requirements-dev.lock requirements-build.lock
	@bash tests/tools/setup.sh $(VENV)
	@touch $@

check: setup ## check format, lint, types and import walls
	@$(BIN)/ruff format --check --quiet kubeproxy tests docs || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet kubeproxy tests docs
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo >$(VENV)/walls.log 2>&1 || { cat $(VENV)/walls.log; exit 1; }
	@echo "check: all clean"

compiled: $(VENV)/compiled/ready ## compile the busiest modules of the byte path into .venv/compiled; COMPILED=1 uses them in tests

$(VENV)/compiled/ready: deploy/compile.py $(shell find kubeproxy -name '*.py') | $(VENV)/ready
	@rm -rf $(@D)
	@$(BIN)/python deploy/compile.py $(@D) >$(VENV)/compile.log 2>&1 || { cat $(VENV)/compile.log; exit 1; }
	@touch $@

format: setup ## reformat the sources
	@$(BIN)/ruff check --quiet --fix-only kubeproxy tests docs
	@$(BIN)/ruff format --quiet kubeproxy tests docs

# The examples of property tests are the same in each run; pytest by itself draws new ones. Tests of the network may disturb
# one another: what has failed beside others is run once more, alone, and has to hold.
PYTEST = PATH="$(CURDIR)/$(VENV)/programs:$$PATH" $(BIN)/python -m pytest --hypothesis-seed=0
test: setup $(VENV)/programs/ready$(if $(FULL),-full) ## run all tests (as root; TESTS=PATH a part; FULL=1 also those that need a browser, HAProxy, nginx)
	@$(PYTEST) -n $$(($$(nproc) + 2)) --dist loadfile --no-loadscope-reorder $(TESTS) || { [ $$? = 1 ] \
		&& echo "test: once more, alone: what has failed (it stays in the list above)" \
		&& $(PYTEST) --last-failed --last-failed-no-failures=none --maxfail=3 $(TESTS); }

unit: setup ## run the tests that need neither root nor network namespaces (UNIT="-k balancer")
	@$(BIN)/python -m pytest --hypothesis-seed=0 -q -n $$(($$(nproc) + 2)) --dist loadfile -m "not netns and not long and not hours" \
		--ignore tests/system --ignore tests/tools $(UNIT)

test-compiled: ## run the tests of what is compiled, in that form
	@$(MAKE) --no-print-directory unit COMPILED=1 UNIT="$(addprefix tests/dataplane/,balancing loop sockets tcp)"

# Programs for some of the tests; `make demo` does not need them.
$(VENV)/programs/ready: tests/tools/programs.sh | $(VENV)/ready
	@bash tests/tools/programs.sh $(@D)
	@touch $@

$(VENV)/programs/ready-full: tests/tools/programs.sh | $(VENV)/ready
	@bash tests/tools/programs.sh $(@D) full
	@touch $@

PYTHONS ?= python3.12 python3.13 python3.14
pythons: setup ## run the tests without network namespaces with other Pythons (PYTHONS="python3.12 /opt/python/bin/python3")
	@bash tests/tools/pythons.sh $(VENV)/pythons $(PYTHONS)

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/fuzz/ready ## fuzz every decoder for FUZZ_SECONDS (60) each (FUZZ="watch pages": only these)
	@PYTHONPATH=$(VENV)/fuzz $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ)

# Beside the environment, not in it: its wheels exist for few platforms and Pythons, and only fuzzing needs it.
$(VENV)/fuzz/ready: $(VENV)/ready requirements-fuzz.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes --target $(VENV)/fuzz -r requirements-fuzz.lock
	@touch $@

SOAK_SECONDS ?= 1800
soak: setup ## change and kill everything at random, and check every byte (SOAK_SECONDS=1800 SOAK_SEED= SOAK="--netfilter iptables")
	@$(BIN)/python -m tests.system.soak --seconds $(SOAK_SECONDS) $(if $(SOAK_SEED),--seed $(SOAK_SEED)) $(SOAK)

demo: setup ## show a whole node in network namespaces (KEEP=1 leaves it running; DATA_PATH=kernel)
	@$(BIN)/python -m tests.tools.demo $(if $(KEEP),--keep) $(if $(DATA_PATH),--data-path=$(DATA_PATH))

bench: setup compiled ## measure beside HAProxy, nginx and the direct path, and with 10,000 Services (BENCH=--quick)
	@$(BIN)/python -m tests.tools.bench $(BENCH)

conformance: setup $(VENV)/programs/ready ## run Kubernetes' e2e tests of Services on real kubelets, and print their table (KUBERNETES_BINARIES=DIR; COLUMNS="kernel")
	@PATH="$(CURDIR)/$(VENV)/programs:$$PATH" $(BIN)/python -m tests.system.cluster table $(COLUMNS)

micro: setup ## measure the pure parts at the size of a large cluster (MICRO="-k pick")
	@$(BIN)/python -m pytest -q --benchmark-enable --benchmark-columns=median,iqr,ops,rounds --benchmark-sort=name tests/tools/bench/micro.py $(MICRO)

PROFILED ?= requests,connections,bulk8
PROFILING = --peers kubeproxy0 --rounds 1 --seconds 4 --only $(PROFILED)
profile: setup ## show where serving spends its time (PROFILED=requests), by perf if installed, then by cProfile
	@if command -v perf >/dev/null; then $(BIN)/python -m tests.tools.bench $(PROFILING) --perf $(VENV)/perf.data; fi
	@$(BIN)/python -m tests.tools.bench $(PROFILING) --profile $(VENV)/profile.pstats

docs: setup ## regenerate the generated pages of docs/
	@$(BIN)/python -m docs.generators.configuration >docs/configuration.md
	@$(BIN)/python -m docs.generators.migration docs/migration.md
	@$(BIN)/python -m docs.generators.manual_page >docs/kubeproxy.8
	@$(BIN)/python -m docs.generators.metrics >docs/metrics.md
	@$(BIN)/python -m docs.generators.log_messages >docs/log-messages.md
	@$(BIN)/python -m docs.generators.symptoms >docs/symptoms.md
	@$(BIN)/python -m docs.generators.chart_schema deploy/chart/values.schema.json

lock: setup ## pin the newest versions of all dependencies
	@$(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-annotate --upgrade -q --extra iptables -o requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-annotate --upgrade -q --extra dev -o requirements-dev.lock
	@$(BIN)/uv pip compile --group pyproject.toml:build --universal --generate-hashes --no-header --no-annotate --upgrade -q --python-version 3.11 -c requirements-dev.lock -o requirements-build.lock
	@$(BIN)/uv pip compile tests/fuzz/requirements.in --universal --generate-hashes --no-header --no-annotate --upgrade -q --python-version 3.11 -o requirements-fuzz.lock
	@$(BIN)/uv pip compile --group pyproject.toml:release --universal --generate-hashes --no-header --no-annotate --upgrade -q -o requirements-release.lock

install: ## install on this host, for systemd, as root: PREFIX=/usr/local PYTHON=/usr/bin/python3 (DESTDIR= for packages, ALIAS=1 also as kube-proxy)
	@DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) PYTHON=$(PYTHON) ALIAS=$(ALIAS) bash deploy/install.sh install

upgrade: ## install, and make the running service execute it; connections live on (a rollback is the same from an old checkout)
	@PREFIX=$(PREFIX) PYTHON=$(PYTHON) ALIAS=$(ALIAS) bash deploy/install.sh upgrade

uninstall: ## remove what install made, but not /etc/kubeproxy
	@DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) bash deploy/install.sh uninstall

deb: ## build a Debian package in dist/ for this Debian and its Python (PYTHON=/usr/bin/python3 REVISION=1)
	@PYTHON=$(PYTHON) REVISION=$(REVISION) bash deploy/build-deb.sh

image: ## build a container image, without an engine, as root: TAG=registry.example.com/kubeproxy:0.1.0 PUSH=1 (see deploy/build-image.sh)
	@PUSH=$(PUSH) bash deploy/build-image.sh $(TAG)

image-check: setup ## build an image and try it in network namespaces
	@rootfs=$$(mktemp -d) && trap 'rm -rf "$$rootfs"' EXIT && ROOTFS=$$rootfs bash deploy/build-image.sh \
		&& KUBEPROXY_ROOTFS=$$rootfs $(BIN)/python -m pytest -q tests/system/deploy/test_image.py

release: setup ## make all files of a release in dist/, as root (COMPARE=1 makes them twice; IMAGE= without the image)
	@bash deploy/release.sh

clean: ## remove everything that the other targets made
	@rm -rf $(VENV) .fuzz build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
