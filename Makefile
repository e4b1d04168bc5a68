# Every target sets up what it needs; nothing has to be installed by hand but Python 3.11+, gcc and make.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNNABLE := $(VENV)/.runnable
LOCK = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --quiet

# Byte code is kept, also where a shell says otherwise: pytest rewrites 600 files once and not at each
# run, and a process of the services, of which the suite starts hundreds, takes 0.7 s less to start.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup check test operators papers demo bench chaos soak images real versions browser pictures results corpus lock fmt clean generate sbom audit site fuzz lint-chart notifications mutants release release-tools release-test

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python
# What Tandem's kernel in C is built from. It is built whether or not a shell has switched it off.
KERNEL := hatch_build.py requirements-compiler.lock $(wildcard tandem/policy/compiled/*.c tandem/policy/compiled/*.h)
TANDEM = env -u TANDEM_COMPILED $(INSTALL) --no-deps --no-build-isolation -e .
COMPILED = env -u TANDEM_COMPILED $(BIN)/python -c \
	"from tandem.policy.compiled.library import library; raise SystemExit(library() is None)"
define set-up
	@echo "Setting up $(VENV) (locked dependencies)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"
	@for lock in $(1); do $(INSTALL) --require-hashes -r $$lock; done
	@$(TANDEM)
	@if ! $(COMPILED); then \
		echo "No C compiler works here: installing one as a wheel (100 MB)"; \
		if $(INSTALL) --require-hashes -r requirements-compiler.lock; then $(TANDEM); fi; \
		$(COMPILED) || echo "Tandem decides in Python, which is slower: its kernel in C was not built"; \
	fi
endef

$(READY): requirements.lock pyproject.toml $(KERNEL)
	$(call set-up,requirements.lock)
	@touch $@ $(RUNNABLE)

# What the services need, and no more: less than half of it.
$(RUNNABLE): requirements-run.lock requirements-build.lock pyproject.toml $(KERNEL)
	$(call set-up,requirements-run.lock requirements-build.lock)
	@touch $@

setup: $(READY) ## Make the virtual environment (done by every other target when needed)

check: $(READY) ## Format, lint, types, layers, fast tests: two minutes on two cores
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m benchmarks.sources
	@$(BIN)/pytest -m "not slow and not long and not controlplane and not browser" -n 2

test: $(READY) ## Everything: checks, fast and slow tests, the suite on a real control plane
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/tandem controlplane build --operators jobset
	-@$(BIN)/python -m controlplane.charttools # where a module cannot be had, their tests are skipped
	@$(BIN)/pytest -n 3 --dist loadgroup -m "not real and not browser and not papers and not operators and not reasons and not release"

operators: $(READY) ## docs/workloads.md: kinds of workloads with their own controllers on a control plane (some minutes)
	@$(BIN)/tandem controlplane build --operators jobset,lws,kuberay,mpi-operator,training-operator,trainer,volcano,kueue
	@TANDEM_OUTCOMES=docs/workloads.json $(BIN)/pytest -n0 tests/kinds
	@$(BIN)/python helm/generate.py

reasons: $(READY) ## Each reason for which a job waits, on a control plane, and its text (four minutes)
	@$(BIN)/tandem controlplane build
	@$(BIN)/pytest -n0 tests/e2e/test_e2e_reasons.py

papers: $(READY) ## The systems of the five papers on a control plane, each by a scenario that only it decides so (nine minutes)
	@$(BIN)/tandem controlplane build
	@$(BIN)/pytest -n0 tests/e2e/test_e2e_papers.py

demo: $(RUNNABLE) ## Twelve jobs on simulated GPUs, without a cluster
	@$(BIN)/tandem demo

bench: $(READY) ## Latency of the verbs at 1,000 and 5,000 nodes; a queue of 10,000 pods; features and predictions
	@$(BIN)/python -m benchmarks.verbs
	@$(BIN)/python -m benchmarks.queue
	@$(BIN)/python -m benchmarks.predictor

chaos: $(READY) ## docs/evidence/chaos.md: every fault with its full counts on a real control plane (half a day)
	@$(BIN)/tandem controlplane build
	@$(BIN)/python -m proof.chaos

soak: $(READY) ## docs/evidence/soak.md: a day of jobs in an hour; memory and descriptors of the services
	@$(BIN)/tandem controlplane build
	@$(BIN)/python -m proof.soak --page docs/evidence/soak.md

real: $(READY) ## Tandem's images, chart and jobs on two real nodes: every fault, 200 jobs, the tutorial (needs root)
	@$(BIN)/tandem controlplane build --real-nodes
	@$(PYTHON) deploy/images/build.py
	@$(BIN)/pytest -n0 tests/realnode tests/helm/test_image.py
	@$(BIN)/python -m proof.real_jobs

versions: $(READY) ## The suites on Kubernetes 1.34 and 1.36, control plane and kubelet (an hour; needs root)
	@$(PYTHON) deploy/images/build.py
	@$(BIN)/python -m proof.versions

browser: $(READY) ## The status page in Chromium from Debian's packages: every view, axe, keyboard, 320 px, injection, ten questions (needs root)
	@$(BIN)/python -m benchmarks.page.browser
	@$(INSTALL) -r benchmarks/page/requirements.txt
	@$(BIN)/tandem controlplane build
	@$(BIN)/pytest -n0 tests/browser tests/cli/test_cli_ten_questions_page.py

pictures: $(READY) ## The pictures of the status page under docs/pictures (needs `make browser` once)
	@$(BIN)/python -m benchmarks.page.pictures

results: $(READY) ## docs/evidence/results: every table of the simulator's results (an hour or two on two cores)
	@$(BIN)/python -m studies.profiles
	@for paper in tiresias tiresias_trace tiresias_placement horus ojpp ojpp_measured ojpp_memory sjf_bsbf sjf_bsbf_testbed \
		sjf_bsbf_loads xonar xonar_orders; do \
		echo "papers: $$paper (some minutes)"; $(BIN)/python -m studies.papers.$$paper; \
	done
	@$(BIN)/python -m studies.predictions.simulated --seeds 2
	@$(BIN)/python -m studies.profiles.ablation --write
	@$(BIN)/python -m studies.profiles --promised --reuse
	@$(BIN)/python -m benchmarks.simulator

corpus: $(READY) ## Graphs exported from PyTorch, timm, transformers, TensorFlow, JAX against their own counts (an hour, 6 GB)
	@test -x .venv-corpus/bin/python || $(PYTHON) -m venv .venv-corpus
	@$(BIN)/uv pip install --quiet --python .venv-corpus/bin/python -r studies/corpus/requirements.txt
	@CUDA_VISIBLE_DEVICES= PYTHONPATH=. .venv-corpus/bin/python -m studies.corpus.generate .out/corpus
	@$(BIN)/python -m studies.corpus.compare .out/corpus --page docs/evidence/results/corpus.md
	@$(BIN)/pytest -n 2 tests/corpus

fmt: $(READY) ## Format the code and fix what lint can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: ## Resolve the dependencies anew into the lock files: everything, what runs, each component
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"; }
	@$(LOCK) --extra dev -o requirements.lock
	@$(LOCK) --extra run --constraints requirements.lock -o requirements-run.lock
	@# The agent's image runs the DRA driver as well.
	@for component in extender agent predictor; do \
		$(LOCK) --extra $$component $$(test $$component = agent && echo --extra dra) \
			--constraints requirements.lock -o requirements-$$component.lock; \
	done
	@printf "hatchling>=1.27\neditables>=0.5\n" | $(subst pyproject.toml,-,$(LOCK)) --constraints requirements.lock -o requirements-build.lock
	@echo "ziglang>=0.14" | $(subst pyproject.toml,-,$(LOCK)) -o requirements-compiler.lock

images: ## The three images, built without Docker on a base of Debian packages; sizes and limits
	@$(PYTHON) deploy/images/build.py

generate: $(READY) ## Write what follows from code and chart: values schema, manifests, reference pages
	@$(BIN)/python -m tandem.contracts.crds --write
	@$(BIN)/python -m tandem.reasons.page --write
	@$(BIN)/python helm/generate.py
	@$(BIN)/python -m proof.messages --write
	@$(BIN)/python -m studies.equations_doc --write
	@$(BIN)/python deploy/site/figures.py

site: $(READY) ## The documentation as a site, warnings are errors: .out/site/index.html (VERSION=)
	@$(BIN)/python deploy/site/build.py $(if $(VERSION),--version $(VERSION))

# The page is that of `make chaos`; with fewer CASES, one of its own.
CASES ?= 10000
FUZZED = $(if $(filter 10000,$(CASES)),docs/evidence/chaos.md,.out/fuzz.md)
fuzz: $(READY) ## docs/evidence/chaos.md: 10,000 mutated inputs at each boundary (CASES=, TANDEM_SEED=)
	@mkdir -p .out
	@TANDEM_FUZZ_CASES=$(CASES) $(BIN)/python -m proof.chaos --only fuzz --page $(FUZZED) \
		--share $$(awk 'BEGIN { print $(CASES) / 10000 }') $${TANDEM_SEED:+--seed $$TANDEM_SEED}

mutants: $(READY) ## docs/evidence/mutants.md: which small changes of the code no test notices (half an hour the first time, then minutes)
	@$(BIN)/python -m proof.mutation --page docs/evidence/mutants.md

lint-chart: $(READY) ## helm-unittest and kube-score on the chart (built from their Go modules, once)
	@$(BIN)/python -m controlplane.charttools
	@$(BIN)/pytest -n0 tests/helm/test_helm_lint.py

notifications: $(READY) ## GPUJobs through kube-state-metrics, Prometheus and Alertmanager to the receivers of two teams (built once, some minutes)
	@$(BIN)/tandem controlplane build
	@$(BIN)/python -m controlplane.monitoringtools
	@$(BIN)/pytest -n0 tests/helm/test_helm_notifications.py tests/helm/test_helm_notified.py

sbom: $(READY) ## What the images hold, as CycloneDX: .out/sbom.json
	@mkdir -p .out
	@$(BIN)/uv tool run --from cyclonedx-bom==7.5.0 cyclonedx-py requirements requirements-run.lock -o .out/sbom.json

RELEASE_OPTIONS = $(if $(VERSION),--version $(VERSION)) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(KEY),--key $(KEY)) \
	$(if $(BASE),--base $(BASE)) $(if $(BUILDER),--builder $(BUILDER)) \
	$(if $(KREW_URL),--krew-url $(KREW_URL)) $(if $(SIGNING_CONFIG),--signing-config $(SIGNING_CONFIG)) \
	$(if $(PLAIN_HTTP),--plain-http) $(if $(REUSE_LAYERS),--reuse-layers) $(if $(DRY_RUN),--dry-run)
release: release-tools ## A release: VERSION=1.2.0 REGISTRY=registry.example.com/team KEY=tandem.key (DRY_RUN=1; docs/release.md)
	@$(BIN)/python -m deploy.release $(RELEASE_OPTIONS)

release-tools: $(READY) # crane, cosign, and helm
	@$(BIN)/python -m controlplane.releasetools

release-test: $(READY) ## The release pipeline on a registry: push, sign, verify, krew, an upgrade of real nodes (cosign is built first: minutes)
	@$(BIN)/tandem controlplane build
	@$(BIN)/python -m controlplane.releasetools --tests
	@$(BIN)/pytest -n0 -m release tests/release

audit: $(READY) ## Known vulnerabilities of what the images hold (asks PyPI; fails where PyPI does not say)
	@$(BIN)/uv tool run pip-audit==2.10.1 --strict --require-hashes --disable-pip -r requirements-run.lock

clean: ## Remove the virtual environment and the caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .out tandem/policy/compiled/_share.so
