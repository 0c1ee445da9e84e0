#!/usr/bin/env bash
# Generates deep copies, OpenAPI definitions and the typed client of the API types.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The versions of the generators are those of the libraries the product uses.
version() { go list -m -f '{{.Version}}' "$1"; }
kubernetes=$(version k8s.io/apiserver)
openapi=$(version k8s.io/kube-openapi)

module=policy.example.io/policy-apiserver
api=${module}/apis/policy/v1alpha1
header=hack/boilerplate.go.txt
generated=pkg/generated

generator() {
  local name=$1
  shift
  go run "k8s.io/code-generator/cmd/${name}@${kubernetes}" --go-header-file "${header}" "$@"
}

rm -rf "${generated}"
mkdir -p "${generated}/openapi"

generator deepcopy-gen --output-file zz_generated.deepcopy.go "./apis/policy/v1alpha1"

go run "k8s.io/kube-openapi/cmd/openapi-gen@${openapi}" \
  --go-header-file "${header}" \
  --output-dir "${generated}/openapi" \
  --output-pkg "${module}/${generated}/openapi" \
  --output-file zz_generated.openapi.go \
  --output-model-name-file zz_generated.model_name.go \
  --report-filename /dev/null \
  "${api}" \
  k8s.io/apimachinery/pkg/apis/meta/v1 \
  k8s.io/apimachinery/pkg/runtime \
  k8s.io/apimachinery/pkg/version

generator client-gen \
  --output-dir "${generated}/clientset" \
  --output-pkg "${module}/${generated}/clientset" \
  --clientset-name versioned \
  --input-base "${module}/apis" \
  --input policy/v1alpha1

generator lister-gen \
  --output-dir "${generated}/listers" \
  --output-pkg "${module}/${generated}/listers" \
  "${api}"

generator informer-gen \
  --output-dir "${generated}/informers" \
  --output-pkg "${module}/${generated}/informers" \
  --versioned-clientset-package "${module}/${generated}/clientset/versioned" \
  --listers-package "${module}/${generated}/listers" \
  "${api}"
