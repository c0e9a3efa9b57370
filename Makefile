# naradctl-plane. `make help` lists the targets.

GO      ?= go
TOOL    := $(GO) tool -modfile=internal/tools/go.mod
BUF     := $(TOOL) buf
BIN     := bin

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build bin/naradctl-plane
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/naradctl-plane ./cmd/naradctl-plane

.PHONY: build-faults
build-faults: ## build bin/naradctl-plane-faults, the binary with fault points
	CGO_ENABLED=0 $(GO) build -trimpath -tags faults -o $(BIN)/naradctl-plane-faults ./cmd/naradctl-plane

.PHONY: demo
demo: build build-faults ## real processes, real kills, a verdict (about two minutes)
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/demo ./test/demo
	@$(BIN)/demo --release $(BIN)/naradctl-plane --faults $(BIN)/naradctl-plane-faults $(DEMO)

.PHONY: test
test: lint unit sim-short planted-daily cluster ## everything CI runs

.PHONY: lint
lint: ## vet, formats, protobuf lint, generated code up to date
	$(GO) vet ./...
	$(GO) vet -tags faults ./...
	$(TOOL) staticcheck ./...
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	$(BUF) lint
	$(BUF) format -d --exit-code proto
	@$(MAKE) --no-print-directory breaking
	$(MAKE) generate-check

# The contract is compared with where this branch left main: origin's, or else the local one. A checkout without
# either, as a first commit or a shallow clone of a branch has it, has nothing to compare with.
.PHONY: breaking
breaking: ## changes of proto/ that would break clients or stored data, against main
	@for ref in refs/remotes/origin/main refs/heads/main; do \
	  git rev-parse -q --verify "$$ref^{commit}" >/dev/null 2>&1 || continue; \
	  base=$$(git merge-base HEAD $$ref 2>/dev/null) || base=$$(git rev-parse $$ref); \
	  git rev-parse -q --verify "$$base:proto" >/dev/null 2>&1 || continue; \
	  echo "buf breaking --against $$ref ($$(git rev-parse --short $$base))"; \
	  tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	  git archive -o "$$tmp/base.tar" $$base && $(BUF) breaking --against "$$tmp/base.tar"; exit; \
	done; echo "buf breaking: no main to compare with"

.PHONY: unit
unit: ## unit, script and property tests with the race detector
	$(GO) test -race ./cmd/... ./consensus/... ./fsm/... ./internal/... ./nodeagent/... ./planner/... ./transfer/... ./test/arch/...

.PHONY: sim-short
sim-short:
	$(GO) test -count=1 ./test/sim/...

N ?= 100
FROM ?= 1
SEED ?= 0
.PHONY: sim
sim: ## simulate: SEED=n replays one run, N=1000 [FROM=n] runs many
	@$(GO) test -c -o $(BIN)/sim.test ./test/sim
	@cd test/sim && $(CURDIR)/$(BIN)/sim.test -test.run HoldInSimulation -test.timeout 24h -sim.seed=$(SEED) -sim.n=$(N) -sim.from=$(FROM) \
		-sim.commit=$$(git rev-parse --short HEAD) $(SIM)

.PHONY: planted
planted: ## plant known bugs one at a time; the simulation has to catch each
	@$(GO) run ./test/sim/planted $(PLANTED)

.PHONY: planted-daily
planted-daily: ## plant two of the known bugs, others each day
	@$(GO) run ./test/sim/planted -daily 2

.PHONY: cluster
cluster: build build-faults ## tests on real processes
	CLUSTER_TEST_RELEASE=$(CURDIR)/$(BIN)/naradctl-plane CLUSTER_TEST_FAULTS=$(CURDIR)/$(BIN)/naradctl-plane-faults \
	$(GO) test -count=1 -timeout 25m ./test/cluster/... ./test/demo/...

.PHONY: bench
bench: build ## measure freezes and copies by partition size
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/bench ./test/bench
	@$(BIN)/bench --release $(BIN)/naradctl-plane $(BENCH)

.PHONY: generate
generate: ## regenerate Go from proto/
	$(BUF) generate

.PHONY: generate-check
generate-check:
	@tmp=$$(mktemp -d) && trap 'rm -rf $$tmp' EXIT && $(BUF) generate -o $$tmp && \
	(cd $$tmp/proto && find . -name '*.go' | while read f; do cmp -s $$f $(CURDIR)/proto/$$f || { echo "stale: proto/$$f (run make generate)"; exit 1; }; done)

.PHONY: clean
clean: ## remove bin/
	rm -rf $(BIN)
