package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func admissionPolicyManifest(name, spec string) string {
	return fmt.Sprintf("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: %s}\nspec:\n  %s\n", name, indent(spec, 2))
}

func admissionBindingManifest(name, spec string) string {
	return fmt.Sprintf("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {name: %s}\nspec:\n  %s\n", name, indent(spec, 2))
}

const (
	podRules = `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}`
	noPods   = podRules + "\nvalidations: [{expression: \"'team' in object.metadata.labels\", message: no team}]"
	limited  = podRules + `
paramKind: {apiVersion: v1, kind: ConfigMap}
validations: [{expression: "params.data.label in object.metadata.labels", messageExpression: "'no ' + params.data.label"}]`
)

func admissionInputs(t testing.TB, policies, bindings []string, params ...string) Inputs {
	in := Inputs{ParamKinds: []Kind{{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}}}
	for _, p := range policies {
		in.AdmissionPolicies = append(in.AdmissionPolicies, parse(t, p))
	}
	for _, b := range bindings {
		in.AdmissionBindings = append(in.AdmissionBindings, parse(t, b))
	}
	for _, p := range params {
		in.Params = append(in.Params, parse(t, p))
	}
	return in
}

var podResource = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true}

func reviewPod(t testing.TB, set *Set) map[string]string {
	t.Helper()
	out := map[string]string{}
	namespace := parse(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: ns, labels: {tier: gold}}\n")
	for _, v := range Review(context.Background(), NewObject(podResource, parse(t, podManifest), namespace), set.Constraints()) {
		text := [...]string{"not matched", "pass", "fail", "error", "deferred"}[v.Outcome]
		for _, violation := range v.Violations {
			text += " " + violation.Message + string(violation.Details)
		}
		if v.Message != "" {
			text += ": " + v.Message
		}
		out[v.Constraint.ID.Kind+"/"+v.Constraint.ID.Name] = text
	}
	return out
}

func TestAdmissionPolicies(t *testing.T) {
	configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: ns}\ndata: {label: %s}\n"
	set := Compile(context.Background(), admissionInputs(t,
		[]string{
			admissionPolicyManifest("p", noPods),
			admissionPolicyManifest("q", limited),
			admissionPolicyManifest("who", podRules+"\nvalidations: [{expression: \"request.userInfo.username != 'eve'\"}]"),
			admissionPolicyManifest("audited", noPods+"\nauditAnnotations: [{key: labels, valueExpression: \"string(size(object.metadata.labels))\"}]"),
		},
		[]string{
			admissionBindingManifest("all", "policyName: p\nvalidationActions: [Deny]"),
			admissionBindingManifest("gold", "policyName: p\nvalidationActions: [Warn, Audit]\nmatchResources: {namespaceSelector: {matchLabels: {tier: gold}}}"),
			admissionBindingManifest("tin", "policyName: p\nvalidationActions: [Warn]\nmatchResources: {namespaceSelector: {matchLabels: {tier: tin}}}"),
			admissionBindingManifest("bad", "policyName: q\nvalidationActions: [Deny]\nparamRef: {name: bad, parameterNotFoundAction: Deny}"),
			admissionBindingManifest("good", "policyName: q\nvalidationActions: [Deny]\nparamRef: {name: good, parameterNotFoundAction: Deny}"),
			admissionBindingManifest("absent", "policyName: q\nvalidationActions: [Deny]\nparamRef: {name: absent, parameterNotFoundAction: Allow}"),
			admissionBindingManifest("eve", "policyName: who\nvalidationActions: [Deny]"),
			admissionBindingManifest("noted", "policyName: audited\nvalidationActions: [Audit]"),
		},
		fmt.Sprintf(configMap, "bad", "team"), fmt.Sprintf(configMap, "good", "app")), nil)
	if len(set.Rejections()) > 0 {
		t.Fatalf("rejected: %+v", set.Rejections())
	}
	want := map[string]string{
		"p/all":         "fail no team",
		"p/gold":        "fail no team",
		"p/tin":         "not matched",
		"q/bad":         "fail no team",
		"q/good":        "pass",
		"q/absent":      "pass",
		"who/eve":       "deferred: ",
		"audited/noted": `fail no team{"auditAnnotations":{"labels":"1"}}`,
	}
	got := reviewPod(t, set)
	if text := got["who/eve"]; !strings.Contains(text, "request.userInfo") {
		t.Errorf("deferred without the reason: %s", text)
	}
	got["who/eve"] = "deferred: "
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	actions := map[string]string{}
	for _, c := range set.Constraints() {
		actions[c.ID.Name] = fmt.Sprint(c.EnforcementAction, c.EnforcementActions, c.NeedsNamespace)
	}
	if actions["all"] != "deny[] false" || actions["gold"] != "warn[audit warn] true" {
		t.Errorf("actions are %v", actions)
	}
	if kinds := set.ParamKinds(); len(kinds) != 1 || kinds[0].Kind != "ConfigMap" {
		t.Errorf("kinds of params are %v", kinds)
	}
}

func TestAdmissionPoliciesThatAreRejected(t *testing.T) {
	owned := parse(t, admissionPolicyManifest("owned", "validations: [{expression: '('}]"))
	owned.Object["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"apiVersion": "templates.gatekeeper.sh/v1", "kind": "ConstraintTemplate", "name": "x", "uid": "1"}}
	in := admissionInputs(t,
		[]string{admissionPolicyManifest("broken", podRules+"\nvalidations: [{expression: 'object.('}]"), admissionPolicyManifest("fine", noPods)},
		[]string{
			admissionBindingManifest("a", "policyName: broken\nvalidationActions: [Deny]"),
			admissionBindingManifest("b", "policyName: absent\nvalidationActions: [Deny]"),
			admissionBindingManifest("c", "policyName: fine\nvalidationActions: [Never]"),
			admissionBindingManifest("d", "policyName: fine\nvalidationActions: [Deny]"),
		})
	in.AdmissionPolicies = append(in.AdmissionPolicies, owned)
	set := Compile(context.Background(), in, nil)
	got := map[string]string{}
	for _, r := range set.Rejections() {
		got[r.ID.Kind+"/"+r.ID.Name] = r.Message
	}
	for key, want := range map[string]string{
		"broken/":  "ValidatingAdmissionPolicy broken: spec.validations[0].expression:1:8",
		"broken/a": "ValidatingAdmissionPolicy broken: spec.validations[0].expression:1:8",
		"absent/b": `ValidatingAdmissionPolicyBinding b: there is no ValidatingAdmissionPolicy "absent"`,
		"fine/c":   "ValidatingAdmissionPolicyBinding c: spec.validationActions",
	} {
		if !strings.HasPrefix(got[key], want) {
			t.Errorf("%s: rejected with %q, want %q", key, got[key], want)
		}
		delete(got, key)
	}
	if len(got) > 0 || len(set.Constraints()) != 1 || set.Constraints()[0].ID.Name != "d" {
		t.Errorf("%d constraints; rejected besides: %v", len(set.Constraints()), got)
	}
}

// Params are part of what a verdict depends on, but not how often they are written.
func TestParamsDigest(t *testing.T) {
	param := parse(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: ns, resourceVersion: \"1\"}\ndata: {label: app}\n")
	in := admissionInputs(t, []string{admissionPolicyManifest("q", limited)}, []string{admissionBindingManifest("b", "policyName: q\nvalidationActions: [Deny]\nparamRef: {name: x, parameterNotFoundAction: Deny}")})
	in.Params = []*unstructured.Unstructured{param}
	first := Compile(context.Background(), in, nil)
	written := param.DeepCopy()
	written.SetResourceVersion("2")
	in.Params = []*unstructured.Unstructured{written}
	second := Compile(context.Background(), in, first)
	changed := written.DeepCopy()
	changed.Object["data"] = map[string]any{"label": "team"}
	in.Params = []*unstructured.Unstructured{changed}
	third := Compile(context.Background(), in, second)
	if first.Digest() != second.Digest() || second.Digest() == third.Digest() {
		t.Errorf("digests %s, %s, %s", first.Digest(), second.Digest(), third.Digest())
	}
	if got := reviewPod(t, second)["q/b"] + ", " + reviewPod(t, third)["q/b"]; got != "pass, fail no team" {
		t.Errorf("got %s", got)
	}
}
