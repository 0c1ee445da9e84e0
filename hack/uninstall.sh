#!/usr/bin/env bash
# Takes policy-apiserver off a cluster, in the one order that holds nothing up. Needs
# kubectl with the rights of an administrator. It can be run again, and where a namespace
# hangs because the server was removed before its APIService.
#
#   hack/uninstall.sh [--policies]
#
# --policies deletes all templates and constraints, with their kinds, too. It refuses
# where Gatekeeper is installed, whose they are.
set -euo pipefail
deploy=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/artifacts/deploy

policies=false
for argument; do
  case ${argument} in
    --policies) policies=true ;;
    *)
      echo "unknown argument ${argument}; see the beginning of ${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
done
if [[ ${policies} == true ]]; then
  owner=$(kubectl get crd constrainttemplates.templates.gatekeeper.sh --ignore-not-found \
    -o 'jsonpath={.metadata.labels.gatekeeper\.sh/system}')
  if [[ -n ${owner} ]]; then
    echo "Gatekeeper is installed: templates and constraints are its own. Run this without --policies." >&2
    exit 1
  fi
fi

# First of all: while there is an APIService without its server, Kubernetes cannot know
# what is left in a namespace and deletes none.
kubectl delete apiservice v1alpha1.policy.example.io --ignore-not-found
# The namespace comes last of these and takes along what components have added to it.
kubectl delete -k "${deploy}/base" --ignore-not-found --wait=false
kubectl wait --for=delete namespace/policy-system --timeout=5m
if [[ ${policies} == true ]]; then
  # Constraints and their kinds, and then the templates, which own them.
  kubectl delete crd -l app.kubernetes.io/managed-by=policy-apiserver --ignore-not-found
  kubectl delete -k "${deploy}/constrainttemplate-crd" --ignore-not-found
fi
echo "policy-apiserver is uninstalled."
