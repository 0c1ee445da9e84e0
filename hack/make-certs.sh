#!/usr/bin/env bash
# Makes a CA and a serving certificate, for clusters without cert-manager.
#
#   hack/make-certs.sh [NAMESPACE]
#       puts the CA into the APIService and the certificate into the Secret that the
#       StatefulSet mounts. Needs kubectl with the rights of an administrator.
#   hack/make-certs.sh --out artifacts/deploy/self-managed-certificates [NAMESPACE]
#       writes the files of that component instead and touches no cluster.
#
# Needs openssl. The certificate is valid for a year and the key of the CA is not kept.
# To renew, run it again: the CAs before stay in the bundle until they expire, so that
# nothing is out of reach while the server still has its old certificate. With
# --forget-old they go at once, which is for keys that have been stolen.
set -euo pipefail

apiservice=v1alpha1.policy.example.io
namespace=policy-system
out=
keep_old=true
while (($#)); do
  case $1 in
    --out)
      out=${2:?--out needs a directory}
      shift
      ;;
    --forget-old) keep_old=false ;;
    -*)
      echo "unknown flag $1; see the beginning of ${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
    *) namespace=$1 ;;
  esac
  shift
done
host=policy-apiserver.${namespace}.svc

if [[ -n ${out} ]]; then
  mkdir -p "${out}"
  out=$(cd "${out}" && pwd)
else
  found=$(kubectl get apiservice "${apiservice}" --ignore-not-found -o name)
  if [[ -z ${found} ]]; then
    echo "There is no APIService ${apiservice} yet: apply artifacts/deploy/base first, then run this again." >&2
    exit 1
  fi
fi
work=$(mktemp -d)
trap 'rm -rf "${work}"' EXIT
cd "${work}"
umask 077

# run says what openssl has to say if it fails.
run() { "$@" 2>openssl.log || { cat openssl.log >&2; exit 1; }; }

# The CA outlives its certificate by a month, and then leaves the bundle.
run openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 395 \
  -subj "/CN=policy-apiserver-ca-$(date +%s)" -keyout ca.key -out ca.crt
run openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
  -subj "/CN=${host}" -keyout tls.key -out tls.csr
printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth\n' "${host}" >extensions
run openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
  -extfile extensions -out tls.crt

# The first of the bundle is the CA that was made last; expired ones are left out.
cp ca.crt bundle
if [[ ${keep_old} == true ]]; then
  if [[ -z ${out} ]]; then
    kubectl get apiservice "${apiservice}" -o 'jsonpath={.spec.caBundle}' | base64 -d >bundle.old
  elif [[ -f ${out}/ca-bundle.crt ]]; then
    cp "${out}/ca-bundle.crt" bundle.old
  else
    : >bundle.old
  fi
  awk '/-----BEGIN CERTIFICATE-----/ {n++} n {print > ("old." n)}' bundle.old
  for ((i = 1; ; i++)); do
    [[ -f old.${i} ]] || break
    if openssl x509 -in "old.${i}" -noout -checkend 0 >/dev/null 2>&1; then
      openssl x509 -in "old.${i}" >>bundle
    fi
  done
fi
encoded=$(base64 <bundle | tr -d '\n')

if [[ -n ${out} ]]; then
  cp bundle "${out}/ca-bundle.crt"
  cp tls.crt tls.key "${out}/"
  cat >"${out}/apiservice-patch.yaml" <<EOF
# Written by hack/make-certs.sh.
- op: add
  path: /spec/caBundle
  value: ${encoded}
EOF
  echo "wrote tls.crt, tls.key, ca-bundle.crt and apiservice-patch.yaml to ${out}; keep tls.key to yourself"
  exit 0
fi
# First the trust, then what is trusted.
kubectl patch apiservice "${apiservice}" --type=merge -p "{\"spec\":{\"caBundle\":\"${encoded}\"}}"
kubectl -n "${namespace}" create secret tls policy-apiserver-tls --cert=tls.crt --key=tls.key \
  --dry-run=client -o yaml | kubectl apply -f -
