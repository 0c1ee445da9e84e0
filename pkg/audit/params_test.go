package audit

import (
	"fmt"
	"strings"
	"testing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

const admissionPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: need-label}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}
  validations: [{expression: "params.data.label in object.metadata.labels", messageExpression: "'no ' + params.data.label"}]
`

const admissionBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: shops}
spec:
  policyName: need-label
  validationActions: [Deny]
  paramRef: {name: label, parameterNotFoundAction: Deny}
`

func label(value string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: label, namespace: shop}, data: {label: %s}}", value)
}

// ValidatingAdmissionPolicies are followed like constraints, and so are their params.
func TestAdmissionPoliciesAndParams(t *testing.T) {
	src := newFakeSource()
	src.addKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false)
	src.addKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "tier: gold"), pod("shop", "p", "owner: me"), admissionPolicy)
	h := newHarness(t, src)
	h.waitLoaded()
	h.wantFindings("a policy without binding")

	src.apply(t, label("owner"), admissionBinding)
	eventually(h, "summary", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("need-label.shops").State })
	h.wantFindings("a Pod that complies")
	src.apply(t, label("team"))
	h.wantFindings("new params", "need-label/shops Pod shop/p fail: no team")
	src.apply(t, pod("shop", "p", "team: x"))
	h.wantFindings("the Pod mended")
	src.apply(t, label("owner"))
	h.wantFindings("old params", "need-label/shops Pod shop/p fail: no owner")
	h.restart()
	h.wantFindings("restart", "need-label/shops Pod shop/p fail: no owner")

	// The kind of the params is audited as well, and has one stream.
	src.apply(t, template("NeedLabel", "v1"), constraint("NeedLabel", "maps", "ConfigMap", "x", ""))
	h.wantFindings("params are audited",
		"need-label/shops Pod shop/p fail: no owner",
		"NeedLabel/maps ConfigMap shop/label fail: v1: label x is missing")
	src.apply(t, label("team"))
	h.wantFindings("params change", "NeedLabel/maps ConfigMap shop/label fail: v1: label x is missing")
	src.remove(configMapKind, "shop", "label")
	h.wantFindings("params are gone", "need-label/shops Pod shop/p fail: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction")
	src.remove(admissionBindingKind, "", "shops")
	h.wantFindings("binding is gone")
}

// Policies that cannot be listed keep what they have found.
func TestAdmissionPoliciesThatCannotBeListed(t *testing.T) {
	src := newFakeSource()
	src.addKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false)
	src.addKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "tier: gold"), pod("shop", "p", "x: y"), admissionPolicy, admissionBinding, label("team"))
	h := newHarness(t, src)
	want := "need-label/shops Pod shop/p fail: no team"
	h.wantFindings("first audit", want)
	h.stop()
	src.fail(admissionBindingKind, errForbidden)
	h.start()
	eventually(h, "partial run", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	h.wantFindings("kept", want)
	src.fail(admissionBindingKind, nil)
	eventually(h, "summary", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("need-label.shops").State })
	h.wantFindings("kept", want)
}

// A directory may have no object of a kind that every cluster has.
func TestParamsOfAKindWithoutObjects(t *testing.T) {
	src := newFakeSource()
	src.removeKind(configMapKind)
	src.addKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false)
	src.addKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "tier: gold"), pod("shop", "p", "x: y"), admissionPolicy, strings.Replace(admissionBinding, "Action: Deny", "Action: Allow", 1))
	h := newHarness(t, src)
	eventually(h, "summary", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("need-label.shops").State })
	h.wantFindings("no params, and none needed")
	src.addKind("", "v1", "ConfigMap", "configmaps", true)
	src.apply(t, label("team"))
	h.wantFindings("params", "need-label/shops Pod shop/p fail: no team")
}
