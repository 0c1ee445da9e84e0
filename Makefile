SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

# What `make run` audits: a directory of manifests.
SOURCE ?= artifacts/example
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# component-base wants a semantic version.
LDFLAGS := -X k8s.io/component-base/version.gitVersion=v0.1.0-$(VERSION) \
	-X k8s.io/component-base/version.gitMajor=0 -X k8s.io/component-base/version.gitMinor=1
GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help
help: ## Show the targets.
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  %-10s %s\n", $$1, $$2}'

.PHONY: run
run: build ## Audit a directory (SOURCE=PATH) and serve the findings until Ctrl-C.
	@hack/run.sh "$(SOURCE)"

.PHONY: build
build: ## Build bin/policy-apiserver.
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/policy-apiserver ./cmd/policy-apiserver

.PHONY: test
test: ## Run all tests: unit and conformance with -race, then end to end on a real control plane.
	go vet ./...
	go test -race -timeout 20m ./apis/... ./cmd/... ./pkg/... ./test/conformance/...
	$(MAKE) e2e

.PHONY: e2e
e2e: ## Run the end-to-end tests; builds kube-apiserver, etcd and kubectl once.
	go test -timeout 40m -v -run '^Test' ./test/e2e/...

.PHONY: bench
bench: ## Run the Go benchmarks.
	go test -run '^$$' -bench . -benchmem ./pkg/...

.PHONY: generate
generate: ## Generate code from the API types.
	hack/update-codegen.sh

.PHONY: verify
verify: lint ## Check generated code, formatting, lint and go.mod.
	hack/verify-codegen.sh
	go mod tidy -diff

.PHONY: lint
lint: ## Run go vet and golangci-lint.
	go vet ./...
	$(GOLANGCI_LINT) run ./...
