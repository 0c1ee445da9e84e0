#!/usr/bin/env bash
# Makes a CA and a serving certificate, puts the CA into the APIService, and into the
# ValidatingWebhookConfiguration if there is one, and the certificate into the Secret that the StatefulSet mounts. For clusters without
# cert-manager. Needs openssl, and kubectl with the rights of an administrator.
#
# The certificate is valid for a year and the key of the CA is not kept. To renew,
# run it again: the CA before is trusted until the next time, so that nothing is
# out of reach while the server still has its old certificate.
set -euo pipefail

namespace=${1:-policy-system}
apiservice=v1alpha1.policy.example.io
host=policy-apiserver.${namespace}.svc
found=$(kubectl get apiservice "${apiservice}" --ignore-not-found -o name)
if [[ -z ${found} ]]; then
  echo "There is no APIService ${apiservice} yet: apply artifacts/deploy/base first, then run this again." >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "${work}"' EXIT
cd "${work}"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
  -subj "/CN=policy-apiserver-ca" -keyout ca.key -out ca.crt 2>openssl.log || { cat openssl.log >&2; exit 1; }
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
  -subj "/CN=${host}" -keyout tls.key -out tls.csr 2>openssl.log || { cat openssl.log >&2; exit 1; }
printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth\n' "${host}" >extensions
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
  -extfile extensions -out tls.crt 2>openssl.log || { cat openssl.log >&2; exit 1; }

# The first of the bundle is the CA that was made last.
kubectl get apiservice "${apiservice}" -o 'jsonpath={.spec.caBundle}' | base64 -d >bundle.old
if [[ -s bundle.old ]]; then
  openssl x509 -in bundle.old -out ca.old
  cat ca.crt ca.old >bundle
else
  cp ca.crt bundle
fi
kubectl patch apiservice "${apiservice}" --type=merge \
  -p "{\"spec\":{\"caBundle\":\"$(base64 <bundle | tr -d '\n')\"}}"
found=$(kubectl get validatingwebhookconfiguration policy-apiserver --ignore-not-found -o name)
if [[ -n ${found} ]]; then
  kubectl patch validatingwebhookconfiguration policy-apiserver --type=json \
    -p "[{\"op\":\"add\",\"path\":\"/webhooks/0/clientConfig/caBundle\",\"value\":\"$(base64 <bundle | tr -d '\n')\"}]"
fi
kubectl -n "${namespace}" create secret tls policy-apiserver-tls --cert=tls.crt --key=tls.key \
  --dry-run=client -o yaml | kubectl apply -f -
