SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

# What `make run` audits: a directory of manifests.
SOURCE ?= artifacts/example

# Flags of `make bench-query`; -help lists them.
BENCH_FLAGS ?=

VERSION := v0.1.0-dev+$(shell git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X policy.example.io/policy-apiserver/pkg/version.version=$(VERSION)
GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Modules that compare with Gatekeeper, so that it stays out of the product's go.mod.
DIFFERENTIAL := test/differential test/differential/peer

# The same for Prometheus, with whose engine alerts are tested.
MONITORING := test/monitoring

GOVULNCHECK := go run golang.org/x/vuln/cmd/govulncheck@v1.1.4

# The race detector needs a C compiler. Without one, Go leaves cgo off.
ifeq ($(shell go env CGO_ENABLED),1)
RACE := -race
else
RACE :=
endif

.PHONY: help
help: ## Show the targets.
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: run
run: build ## Audit a directory (SOURCE=PATH) and serve the findings until Ctrl-C.
	@CGO_ENABLED=0 go build -trimpath -o bin/findings ./hack/findings
	@hack/run.sh "$(SOURCE)"

.PHONY: build
build: ## Build bin/policy-apiserver.
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/policy-apiserver ./cmd/policy-apiserver

.PHONY: test
test: unit e2e ## Run all tests but differential.

.PHONY: unit
unit: ## Run go vet, and the unit and conformance tests under the race detector.
	go vet ./...
	$(if $(RACE),,@echo 'warning: no C compiler, so the tests run without the race detector' >&2)
	go test $(RACE) -timeout 15m $$(go list ./... | grep -v '/test/e2e$$')

.PHONY: e2e
e2e: ## Run the tests on a real control plane, which the first run builds.
	go test -count=1 -timeout 40m -v ./test/e2e

.PHONY: bench
bench: ## Run the benchmarks, one of them on a real control plane.
	go test -run '^$$' -bench . -benchmem -timeout 60m ./pkg/... ./test/e2e

.PHONY: differential
differential: ## Compare with Gatekeeper, which the first run downloads and builds.
	cd test/differential && go test -count=1 -timeout 20m ./...

.PHONY: bench-engine
bench-engine: ## Compare how fast this engine and Gatekeeper's audit are.
	cd test/differential && go run ./bench-engine

.PHONY: bench-query
bench-query: ## Compare queries with custom resources in etcd (BENCH_FLAGS='-objects 100000').
	go run ./test/bench-query $(BENCH_FLAGS)

.PHONY: monitoring
monitoring: ## Test alert rules and the dashboard with Prometheus' engine.
	cd $(MONITORING) && go test -count=1 ./...

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities; needs to reach vuln.go.dev.
	$(GOVULNCHECK) ./...

.PHONY: generate
generate: ## Generate code from the API types, and docs/flags.md from the program.
	hack/update-codegen.sh
	go test ./cmd/policy-apiserver/app -run '^TestFlagsDocumented$$' -update

.PHONY: verify
verify: lint ## Check generated code, lint, formatting and go.mod.
	hack/verify-codegen.sh
	go mod tidy -diff
	for module in $(DIFFERENTIAL) $(MONITORING); do \
	  (cd "$$module" && go mod tidy -diff && go vet ./... && $(GOLANGCI_LINT) run ./...); \
	done

.PHONY: lint
lint: ## Run go vet and golangci-lint, which checks formatting as well.
	go vet ./...
	$(GOLANGCI_LINT) run ./...
