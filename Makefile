# One Makefile for everything; `make help` lists it. Every target works from a fresh clone and
# installs what it needs into .venv (and, for a real Kubernetes, into $(VGPU_CACHE)).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Heavy builds (Kubernetes) live outside the tree and are rebuilt only when absent or changed.
VGPU_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vgpu
export VGPU_CACHE
# For make chaos: CLUSTER=standin (one process, the default) or CLUSTER=real (a real control plane).
CLUSTER ?= standin
PYTEST_ARGS ?=
# pytest on both cores; a module stays on one worker, since its fixtures start programs.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
# The fault campaign: the seed of the first run, the number of runs with consecutive seeds, and how many run at once.
SEED ?= 1
RUNS ?= 1
JOBS ?= 1

# Compiled modules are kept. Without them each worker compiles 350 modules of tests (10 s), and each program that a test
# starts compiles the project (0.5 s). Images of containers set this variable, because they start a program once.
unexport PYTHONDONTWRITEBYTECODE

SETUP := $(VENV)/.ready

.PHONY: help setup demo test test-fast test-c test-programs test-placement test-dialects test-engine test-agent test-cli test-web test-shim test-packaging test-integration test-scale test-all nightly wheels release images install kind kind-down images-check images-arm64 campaign chaos chaos-agent soak cluster cluster-down e2e e2e-claims e2e-rollouts e2e-uninstall e2e-chart e2e-migrate bench bench-cluster bench-placement bench-start bench-fleet bench-waiting bench-events bench-admission bench-controllers bench-libvgpu bench-assumptions arm64 gpu-check userland bench-openb bench-agent bench-web web-check web-screenshots check-metrics lint lint-types lint-c lint-contracts lint-text shape fmt reference docs crds proto lock mutate native control-plane control-plane-next builds ci ci-steps clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9 -]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) native  ## install what the project needs into .venv, build the native library

$(SETUP): requirements.lock pyproject.toml tests/setup-venv.sh
	@PYTHON=$(PYTHON) bash tests/setup-venv.sh $(VENV)
	@touch $@

native:  ## build libvgpu.so and the simulated driver
	@mkdir -p build
	@$(MAKE) -j 2 -C libvgpu all >build/native.log 2>&1 || { cat build/native.log; exit 1; }

demo: setup  ## two pods share one simulated GPU; KEEP=1 leaves the cluster up
	@$(BIN)/python -m vgpu_local.demo $(if $(KEEP),--keep)

# Tests that start programs, run other tools or measure have targets of their own below.
ROOM := not scale and not tools and not real_time
FAST := $(ROOM) and not programs
PRODUCT := $(filter-out tests/unit/vgpu_local tests/unit/perf,$(patsubst %/,%,$(wildcard tests/unit/*/)))

test: setup  ## unit and property tests and the C tests of the library, in two minutes
	@$(MAKE) -j 2 test-fast test-c

# The C tests wait more than they compute, so they run beside the Python tests.
test-c:
	@$(MAKE) -C libvgpu test >build/libvgpu-test.log 2>&1 || { cat build/libvgpu-test.log; exit 1; }

test-fast:
	@$(PYTEST) $(PRODUCT) tests/property tests/packaging -m "$(FAST)" $(PYTEST_ARGS)

test-programs: setup  ## tests of all rooms that start programs and look at how they end
	@$(PYTEST) $(PRODUCT) tests/property -m "(real_time or programs) and not scale" $(PYTEST_ARGS)

property = $(foreach name,$(1),tests/property/test_$(name).py)
TESTS_placement := tests/unit/placement tests/unit/ledger tests/unit/node_filter $(call property,best_nodes hosts_states ledger_states numbered_cores parts placement_oracle placement_plans placement_processes volume_matching)
TESTS_dialects := tests/unit/dialects tests/unit/admission tests/unit/vendors tests/unit/api $(call property,dialects_total capacity_registers part_registers vendor_registers neighbours)
TESTS_engine := tests/unit/engine tests/unit/client tests/unit/certificates tests/unit/controllers $(call property,engine_campaign engine_states gate_states claims_states waiting_states nobody_waits preemption_choice gang_preemption preemption_veto lease lease_states reflector certificates)
TESTS_agent := tests/unit/agent $(call property,slots_states instances_killed)
TESTS_cli := tests/unit/cli tests/unit/insight $(call property,simulate_input simulate_purity)
TESTS_web := tests/unit/web $(call property,web_sight)

test-placement test-dialects test-engine test-agent test-cli test-web: test-%: setup  ## the tests of one room, in seconds
	@$(PYTEST) $(TESTS_$*) -m "$(ROOM)" $(PYTEST_ARGS)

test-shim: setup  ## the library: C tests, its simulated driver, and programs that run under it
	@$(MAKE) -C libvgpu test
	@$(PYTEST) tests/unit/libvgpu $(PYTEST_ARGS)

test-packaging: setup wheels  ## manifests, chart, alerts (promtool), release, manual
	@$(PYTEST) tests/packaging $(PYTEST_ARGS)

# On the stand-in, only tests of the stand-in, tests with a server of their own, and the contract of both servers run.
test-integration: setup control-plane control-plane-next  ## the integration suite on a real control plane, and the tests of the test bed
	@$(PYTEST) tests/unit/vgpu_local -m "not scale" $(PYTEST_ARGS)
	@VGPU_TEST_CLUSTER=standin-only $(PYTEST) tests/integration $(PYTEST_ARGS)
	@VGPU_TEST_CLUSTER=real $(PYTEST) tests/integration $(PYTEST_ARGS)

test-scale: setup  ## tests that measure how something scales, and small runs of the benches
	@$(BIN)/pytest tests/unit -m scale $(PYTEST_ARGS)

test-all: test test-programs test-packaging test-integration test-scale  ## all of the above

campaign: $(SETUP)  ## the engine in virtual time among faults: SEED= of the first run, RUNS= how many
	@PYTHONPATH=tests $(BIN)/python -m engine_campaign --seed $(SEED) --runs $(RUNS)

chaos: setup $(if $(filter real,$(CLUSTER)),control-plane)  ## fault campaigns: SEED= of the first, RUNS= how many, JOBS= at once (CLUSTER=real, also MODE=claims)
	@$(BIN)/python -m vgpu_local.chaos --seed $(SEED) --runs $(RUNS) --jobs $(JOBS) --cluster $(CLUSTER) --mode $(or $(MODE),extender)

chaos-agent: setup  ## kill an agent KILLS= times while PODS= pods start and end -> build/chaos/agent.json
	@PYTHONPATH=tests $(BIN)/python tests/agent_kills.py --seed $(SEED) --kills $(or $(KILLS),200) --pods $(or $(PODS),500)

soak: setup $(if $(filter claims,$(MODE)),control-plane)  ## create and delete pods for MINUTES= (120), at least PODS= (20,000), also in MODE=claims; nothing may grow -> build/soak.json
	@$(BIN)/python -m vgpu_local.soak --minutes $(or $(MINUTES),120) --pods $(or $(PODS),20000) --mode $(or $(MODE),extender)

control-plane: $(SETUP)  ## build a real Kubernetes control plane, and Helm for the chart, into the cache (once)
	@bash tests/cluster/build.sh
	@bash tests/cluster/helm/build.sh >/dev/null

control-plane-next: $(SETUP)  ## build the control plane of the next minor version of Kubernetes too (once)
	@bash tests/cluster/build.sh kubernetes-1.37

builds: control-plane control-plane-next  ## build all that tests on a real Kubernetes need, into the cache and build/images (once)
	@bash tests/cluster/cluster.sh build

cluster: $(SETUP)  ## start a real Kubernetes node with simulated GPUs in a sandbox (root; VGPU_NODE=its folder)
	@bash tests/cluster/cluster.sh up
	@echo "A Kubernetes with the project on it runs. A shell in it, in which the commands of docs/tutorial.md work:"
	@echo "    bash tests/cluster/node.sh in bash"
	@echo "Without a word, tests/cluster/node.sh lists what else it can do. It is gone with: make cluster-down"

cluster-down:  ## remove the node that make cluster started
	@bash tests/cluster/cluster.sh down

e2e: $(SETUP)  ## everything on a real Kubernetes node (root; KEEP=1 leaves it up)
	@bash tests/cluster/cluster.sh build
	@VGPU_TEST_CLUSTER=node $(if $(KEEP),KEEP=1) $(BIN)/pytest tests/e2e -o timeout_func_only=true $(PYTEST_ARGS)

e2e-claims: $(SETUP)  ## mode Claims on a real Kubernetes node, with a stock kube-scheduler (root; 8 min)
	@bash tests/cluster/cluster.sh build
	@VGPU_TEST_CLUSTER=node-claims $(if $(KEEP),KEEP=1) $(BIN)/pytest tests/e2e -o timeout_func_only=true $(PYTEST_ARGS)

e2e-rollouts: $(SETUP)  ## 100 pods through five rollouts of each program, on a real node (root; 15 min) -> build/e2e/rollouts-*.json
	@bash tests/cluster/cluster.sh build
	@VGPU_TEST_CLUSTER=node-alone $(BIN)/pytest tests/e2e/test_alone_rollouts.py -o timeout_func_only=true $(PYTEST_ARGS)

e2e-uninstall: $(SETUP)  ## install and uninstall a real node, also half removed before (root; 25 min)
	@bash tests/cluster/cluster.sh build
	@VGPU_TEST_CLUSTER=node-alone $(BIN)/pytest tests/e2e/test_alone_uninstall.py -o timeout_func_only=true $(PYTEST_ARGS)

e2e-chart: $(SETUP)  ## install, upgrade and uninstall the Helm chart on a real node (root; 10 min)
	@bash tests/cluster/cluster.sh build
	@VGPU_TEST_CLUSTER=node-alone $(BIN)/pytest tests/e2e/test_alone_chart.py -o timeout_func_only=true $(PYTEST_ARGS)

e2e-migrate: $(SETUP)  ## move a real node from a played HAMi and back, with pods running (root; 5 min) -> build/e2e/migrate.json
	@bash tests/cluster/cluster.sh build
	@VGPU_TEST_CLUSTER=node-alone $(BIN)/pytest tests/e2e/test_alone_migrate_hami.py -o timeout_func_only=true $(PYTEST_ARGS)

bench: bench-placement bench-waiting bench-libvgpu  ## performance benches

# Runs a bench and writes its figures into docs/measurements.md, even if a bar is missed.
recorded = s=0; $(1) || s=$$?; PYTHONPATH=tests $(BIN)/python -m perf.measurements $(2); exit $$s

bench-placement: $(SETUP)  ## decisions at 5,000 nodes of 8 GPUs -> build/bench/placement.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/placement_bench.py,placement)

bench-start: $(SETUP)  ## memory while 150,000 pods are listed -> build/bench/start.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/start_bench.py,start)

bench-fleet: $(SETUP)  ## an operator of 10,000 and 20,000 nodes of 8 GPUs in memory: SIZES="10000 20000" -> build/bench/fleet.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/fleet_bench.py $(if $(SIZES),--sizes $(SIZES)),fleet)

bench-waiting: $(SETUP)  ## a full cluster in which thousands wait, quotas, foreign pods -> build/bench/waiting.json, crowd.json
	@PYTHONPATH=tests $(BIN)/python tests/perf/waiting_bench.py
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/crowd_bench.py,waiting)

CLUSTER_BENCH = $(BIN)/python -m perf.cluster_bench $(if $(SIZES),--sizes $(SIZES)) $(if $(PODS),--pods $(PODS)) \
  $(if $(CLAIMS),--claims $(CLAIMS)) $(if $(FAILOVER),--failover) \
  $(if $(ALLOCATED),--allocated $(ALLOCATED)) $(if $(COLD),--cold-start) $(if $(LEASE),--lease $(LEASE)) $(if $(PROFILE),--profile) $(if $(MODE),--mode $(MODE)) $(if $(AGENTS),--agents) --note "$(NOTE)"

# With NOTE= the report says what else the machine was doing; the figures of a busy machine mean little.
bench-cluster: $(SETUP) control-plane  ## pods on a real control plane: SIZES="100 1000" PODS=500 CLAIMS=100 FAILOVER=1 ALLOCATED=20000 COLD=1 LEASE=15 PROFILE=1 MODE="gate claims stock" AGENTS=1 -> build/bench/cluster.json
	@$(if $(AGENTS),$(call recorded,$(CLUSTER_BENCH),cluster),$(CLUSTER_BENCH))

bench-events: $(SETUP)  ## a Filter beside a thousand watch events a second -> build/bench/events.json
	@PYTHONPATH=tests $(BIN)/python tests/perf/events_bench.py

bench-controllers: $(SETUP) control-plane  ## Kopf handlers in the leader beside 5,000 nodes of 8 GPUs -> build/bench/controllers.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/controllers_bench.py,controllers)

bench-agent: setup  ## an agent with 16 GPUs and 150 pods -> build/bench/agent.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/agent_bench.py,agent)

bench-web: $(SETUP)  ## the web page at 5,000 nodes with 20,000 claims: NOTE= -> build/bench/web.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/web_bench.py --note "$(NOTE)",web)

bench-admission: $(SETUP)  ## reviews of 200 pods a second by one process of the webhooks -> build/bench/admission.json
	@$(call recorded,PYTHONPATH=tests $(BIN)/python tests/perf/admission_bench.py,admission)

bench-libvgpu: $(SETUP)  ## what the library costs a call and a process -> build/bench/libvgpu.json
	@$(call recorded,$(MAKE) -C libvgpu bench,libvgpu)

# Chromium takes minutes on a busy machine, so this is not part of `make ci`.
web-check: $(VGPU_CACHE)/browser/.ready  ## the web page in a headless Chromium: sizes, light and dark, keyboard, screen readers
	@VGPU_BROWSER=$(VGPU_CACHE)/browser $(BIN)/pytest -n0 tests/browser $(PYTEST_ARGS)

web-screenshots: $(VGPU_CACHE)/browser/.ready  ## pictures of the web page -> docs/operations/web
	@VGPU_BROWSER=$(VGPU_CACHE)/browser PYTHONPATH=tests $(BIN)/python tests/browser/screenshots.py

$(VGPU_CACHE)/browser/.ready: $(SETUP) tests/browser/setup.sh tests/browser/requirements.lock
	@bash tests/browser/setup.sh $(@D)
	@touch $@

bench-assumptions: $(SETUP)  ## shares of compute on simulated devices that differ -> build/bench/assumptions.json: BENCH_SEEDS=1
	@$(call recorded,$(MAKE) -s -C libvgpu assumptions,assumptions)

# The cross build installs its packages from Debian if it has the rights.
arm64:  ## libvgpu for arm64: cross-compiled, its tests run under qemu-user
	@command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null || \
	  bash tests/debian.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
	@$(MAKE) -C libvgpu arm64

gpu-check:  ## check this machine's real driver and the limits on it -> build/bench/gpu.json; PART=1 or 2: one of two parts of ten minutes
	@$(MAKE) -C libvgpu gpu-check

# This takes about 1.1 GB of packages in a virtual environment in the cache; PyTorch has its own, of 5.3 GB.
userland: native $(VGPU_CACHE)/userland/.ready $(if $(PYTORCH),$(VGPU_CACHE)/userland-torch/.ready)  ## numba, cuda.core, nvitop, … (PYTORCH=1: PyTorch) on the simulated driver -> build/userland.json
	@$(PYTHON) libvgpu/tools/userland.py build/userland.json $(VGPU_CACHE)/userland/bin/python \
	  $(if $(PYTORCH),$(VGPU_CACHE)/userland-torch/bin/python)

$(VGPU_CACHE)/userland/.ready: libvgpu/userland/requirements.lock
$(VGPU_CACHE)/userland-torch/.ready: libvgpu/userland/torch.lock
$(VGPU_CACHE)/userland/.ready $(VGPU_CACHE)/userland-torch/.ready:
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

bench-openb: $(SETUP)  ## packing of a trace in OPENB=DIR -> build/bench/openb.json
	@test -n "$(OPENB)" || { echo "make bench-openb OPENB=DIR: the folder of the trace" >&2; exit 2; }
	@PYTHONPATH=tests $(BIN)/python tests/perf/openb_bench.py $(OPENB)

wheels: $(SETUP)  ## download the packages that kubectl vgpu is published with, into the cache (once)
	@PYTHONPATH=tests $(BIN)/python -m release.wheels

release: $(SETUP) wheels  ## manifests, Helm chart, wheel, bill of materials and digests: IMAGES="NAME=REFERENCE ..." PUBLISHED_AT= -> build/release
	@PYTHONPATH=tests $(BIN)/python -m release build/release $(if $(VERSION),--version $(VERSION)) $(foreach image,$(IMAGES),--image $(image)) $(if $(PUBLISHED_AT),--published-at $(PUBLISHED_AT))

images:  ## images of operator and agent for amd64 and arm64: REGISTRY= PUSH=1 (docker buildx, podman or buildah) -> build/oci
	@REGISTRY="$(REGISTRY)" PUSH="$(PUSH)" PLATFORMS="$(PLATFORMS)" bash tests/release/images.sh

install:  ## install the pushed images on the cluster of kubectl's context: REGISTRY= MODE= COMPONENTS="web monitoring"
	@REGISTRY="$(REGISTRY)" MODE="$(MODE)" COMPONENTS="$(COMPONENTS)" bash tests/release/install.sh

kind:  ## a Kubernetes on a laptop by kind, with simulated GPUs (docker or podman, kind, kubectl): NODE_IMAGE=
	@NODE_IMAGE="$(NODE_IMAGE)" bash tests/release/kind.sh up

kind-down:  ## remove what make kind started
	@bash tests/release/kind.sh down

images-check: $(SETUP)  ## the images, built twice, are the same to the byte (root; 5 min)
	@bash tests/cluster/cluster.sh build
	@bash tests/cluster/images_check.sh

images-arm64: $(SETUP)  ## the images of operator and agent for arm64, built and started under qemu-user -> build/images-arm64 (root; 15 min)
	@bash tests/cluster/images_arm64.sh

check-metrics: $(SETUP)  ## check the metrics of a running agent with promtool (Debian: prometheus)
	@bash tests/packaging/check_metrics.sh

# Run this on demand: it takes minutes for each room, in one process at the lowest priority.
# AGAIN=1 tries only the survivors of the last run.
mutate: $(VENV)/.mutate-ready  ## mutation testing of ROOM=ledger (default all) -> build/mutate/ROOM.json
	@$(BIN)/python tests/mutation/mutate.py $(ROOM) $(if $(AGAIN),--again)

$(VENV)/.mutate-ready: $(SETUP) tests/mutation/requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r tests/mutation/requirements.lock
	@touch $@

lint: $(SETUP)  ## format, lint, types, import contracts, generated files fresh, spelling
	@$(MAKE) -j 2 --output-sync=target lint-types lint-c lint-contracts lint-text

lint-types:
	@$(BIN)/mypy

lint-c:
	@$(MAKE) -C libvgpu lint

lint-contracts:
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python tests/packaging/plant_imports.py

lint-text:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m vgpu_api --check
	@PYTHONPATH=tests $(BIN)/python -m manual.generate --check
	@bash tests/packaging/proto.sh --check
	@! git grep -nE '^(<<<<<<<|>>>>>>>) '
	@$(BIN)/codespell

shape: $(SETUP)  ## measure how the code is built; fails beyond the bounds
	@PYTHONPATH=tests $(BIN)/python tests/packaging/shape.py

fmt: $(SETUP)  ## format the Python and the C code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(MAKE) -C libvgpu fmt

reference: $(SETUP)  ## write the pages of docs/ that follow from the code
	@PYTHONPATH=tests $(BIN)/python -m manual.generate

docs: $(SETUP)  ## build the manual -> build/docs/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/docs

crds: $(SETUP)  ## write the CRDs from the models, and the names of manifests/base/config.yaml into manifests/
	@$(BIN)/python -m vgpu_api

proto: $(SETUP)  ## generate the kubelet API stubs
	@bash tests/packaging/proto.sh

lock: $(SETUP)  ## refresh requirements.lock from pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --extra dev --allow-unsafe \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header -o requirements.lock pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  -o libvgpu/userland/requirements.lock libvgpu/userland/requirements.in
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  -o libvgpu/userland/torch.lock libvgpu/userland/torch.in
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --allow-unsafe -c requirements.lock \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  -o tests/mutation/requirements.lock tests/mutation/requirements.in

# The examples are the same every time, so that a failure comes from the change and not from
# chance; `make test` draws new ones.
# A test in real time that fails is run once more, and both are shown (docs/design/tests.md).
AGAIN := --again --rerun-show-tracebacks -raR
# Kubernetes and the images are built in the time that tests spend waiting. A later step that needs a build waits for its
# lock, and after a failure builds it itself and shows why it fails.
ci: $(SETUP)  ## what CI runs: lint, shape, tests, the library under ASan, a real control plane, a real node, one fault campaign
	@mkdir -p build
	@set -m; nice -n 19 $(MAKE) builds >build/builds.log 2>&1 & ahead=$$!; set +m; \
	  trap "kill -- -$$ahead 2>/dev/null || true" EXIT; $(MAKE) ci-steps

ci-steps: PYTEST_ARGS = --hypothesis-profile=ci $(AGAIN)
ci-steps: lint shape
	@$(MAKE) test test-programs PYTEST_ARGS="$(PYTEST_ARGS)"
	@$(PYTEST) tests/packaging -m tools $(PYTEST_ARGS)
	@$(MAKE) -j 2 -C libvgpu asan
	@$(MAKE) test-integration PYTEST_ARGS="$(PYTEST_ARGS)"
	@$(MAKE) e2e PYTEST_ARGS="$(AGAIN)"
	@$(MAKE) chaos SEED=1

# docs/development.md says which part a change to which room must pass before it is done.
nightly: setup  ## what CI leaves out: sanitizers, fuzzers, coverage, arm64, scale, campaigns, rollouts, uninstall, chart, migration, the page, a soak (hours)
	@$(MAKE) test PYTEST_ARGS="--hypothesis-profile=nightly"
	@$(MAKE) -C libvgpu test-worlds coverage lookups ubsan tsan fuzz
	@$(MAKE) arm64
	@$(MAKE) test-scale
	@$(MAKE) campaign SEED=$$(date +%s) RUNS=1000
	@$(MAKE) chaos SEED=1 RUNS=6 JOBS=2
	@$(MAKE) chaos SEED=1 CLUSTER=real
	@$(MAKE) chaos SEED=1 CLUSTER=real MODE=claims
	@$(MAKE) chaos-agent e2e-claims e2e-rollouts e2e-uninstall e2e-chart e2e-migrate web-check soak

clean:  ## remove what was built in the tree
	@$(MAKE) -C libvgpu clean
	@rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache $(VENV)
