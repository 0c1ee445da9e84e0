#!/usr/bin/env bash
# Fails if generated code is not what hack/update-codegen.sh makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

copy=$(mktemp -d)
trap 'rm -rf "${copy}"' EXIT
cp -a apis pkg hack go.mod go.sum "${copy}/"
(cd "${copy}" && ./hack/update-codegen.sh)
if ! diff -r -u apis "${copy}/apis" || ! diff -r -u pkg/generated "${copy}/pkg/generated"; then
  echo "generated code is out of date; run: make generate" >&2
  exit 1
fi
echo "generated code is up to date"
