#!/usr/bin/env bash
# Makes a CA and a serving certificate, puts the certificate into the Secret that
# the StatefulSet mounts and the CA into the APIService. For clusters without
# cert-manager. Needs openssl and kubectl.
set -euo pipefail

namespace=${1:-policy-system}
host=policy-apiserver.${namespace}.svc
work=$(mktemp -d)
trap 'rm -rf "${work}"' EXIT

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
  -subj "/CN=policy-apiserver-ca" -keyout "${work}/ca.key" -out "${work}/ca.crt"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
  -subj "/CN=${host}" -keyout "${work}/tls.key" -out "${work}/tls.csr"
openssl x509 -req -in "${work}/tls.csr" -CA "${work}/ca.crt" -CAkey "${work}/ca.key" -CAcreateserial -days 365 \
  -extfile <(printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth\n' "${host}") -out "${work}/tls.crt"

kubectl -n "${namespace}" create secret tls policy-apiserver-tls --cert="${work}/tls.crt" --key="${work}/tls.key" \
  --dry-run=client -o yaml | kubectl apply -f -
kubectl patch apiservice v1alpha1.policy.example.io --type=merge \
  -p "{\"spec\":{\"caBundle\":\"$(base64 -w0 <"${work}/ca.crt")\"}}"
