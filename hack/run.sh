#!/usr/bin/env bash
# Audits a directory of manifests, prints the findings and serves them until
# Ctrl-C. Called by `make run`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source=${1:-artifacts/example}
data=$(mktemp -d)
kubeconfig=${data}/kubeconfig
server=
cleanup() {
  trap - EXIT INT TERM
  if [[ -n ${server} ]] && kill "${server}" 2>/dev/null; then
    wait "${server}" || true
  fi
  rm -rf "${data}"
}
trap cleanup EXIT
trap 'exit 0' INT TERM

bin/policy-apiserver --source="dir:${source}" --data-dir="${data}/index" --secure-port=0 \
  --write-kubeconfig="${kubeconfig}" >"${data}/log" 2>&1 &
server=$!
for ((i = 0; i < 300; i++)); do
  [[ -f ${kubeconfig} ]] && break
  if ! kill -0 "${server}" 2>/dev/null; then
    echo "policy-apiserver did not start:" >&2
    cat "${data}/log" >&2
    exit 1
  fi
  sleep 0.1
done

go run ./hack/findings --kubeconfig "${kubeconfig}"
echo
if command -v kubectl >/dev/null; then
  echo "The findings are served until Ctrl-C. In another terminal:"
else
  echo "The findings are served until Ctrl-C. kubectl is not installed here; where it is:"
fi
echo
echo "  KUBECONFIG=${kubeconfig} kubectl get auditresults -A -o wide"
echo
wait "${server}"
