#!/usr/bin/env bash
# Audits a directory of manifests, prints the findings and serves them until
# Ctrl-C. Called by `make run`, which builds what is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source=${1:-artifacts/example}
data=$(mktemp -d)
kubeconfig=${data}/kubeconfig
log=${data}/log
server=

cleanup() {
  trap '' INT TERM
  if [[ -n ${server} ]]; then
    kill "${server}" 2>/dev/null || true
    wait "${server}" 2>/dev/null || true
  fi
  rm -rf "${data}"
}
trap cleanup EXIT
trap 'echo; exit 0' INT TERM

# fail says why, with the end of the server's log.
fail() {
  echo "policy-apiserver $1. The end of its log:" >&2
  tail -n 20 "${log}" >&2
  exit 1
}

# As a job of its own the server does not get the Ctrl-C; it is stopped above.
set -m
bin/policy-apiserver --source="dir:${source}" --data-dir="${data}/index" --secure-port=0 \
  --write-kubeconfig="${kubeconfig}" >"${log}" 2>&1 &
server=$!
set +m

# The kubeconfig is there once the server listens.
for ((i = 0; i < 300; i++)); do
  [[ -f ${kubeconfig} ]] && break
  kill -0 "${server}" 2>/dev/null || fail "did not start"
  sleep 0.1
done
[[ -f ${kubeconfig} ]] || fail "does not listen after 30 seconds"

bin/findings --kubeconfig="${kubeconfig}" --source="${source}" || fail "does not serve the findings"
echo
if command -v kubectl >/dev/null; then
  echo "The findings are served until Ctrl-C. In another terminal:"
else
  echo "The findings are served until Ctrl-C. kubectl is not installed here; once it is, in another terminal:"
fi
echo
echo "  export KUBECONFIG=${kubeconfig}"
echo "  kubectl get auditresults -A"
echo
wait "${server}" || true
fail "has stopped"
