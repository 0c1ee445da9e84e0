package policy

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// policyManifests are manifests of all kinds of policies.
func policyManifests() []string {
	return append(slices.Clone(syncAllInputs),
		testTemplate(needLabel),
		testTemplate(uniqueHost),
		withAnnotation(testTemplate("package a\nimport future.keywords.in\nviolation[{\"msg\": m, \"details\": {\"a\": o}}] { o := data.inventory.namespace[_][_][_][_]; \"x\" in input.review.object.spec; m := sprintf(\"%v\", [o]) }"),
			`[[{"groups": [""], "versions": ["v1"], "kinds": ["Pod"]}]]`),
		`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: test}
spec:
  crd: {spec: {names: {kind: Test}, validation: {openAPIV3Schema: {type: object, properties: {min: {type: integer, default: 1}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    code:
    - engine: K8sNativeValidation
      source:
        variables: [{name: n, expression: "size(object.spec.containers)"}]
        matchCondition: [{name: a, expression: "has(object.spec)"}]
        validations: [{expression: "variables.n >= variables.params.min", messageExpression: "'there are ' + string(variables.n)"}]`,
		testConstraint("c", "enforcementAction: scoped\nscopedEnforcementActions: [{action: warn, enforcementPoints: [{name: '*'}]}]\nparameters: {label: app, count: 3}"),
		testConstraint("d", "match: {scope: Namespaced, kinds: [{apiGroups: [''], kinds: ['*']}], namespaces: ['a*'], labelSelector: {matchExpressions: [{key: a, operator: Exists}]}, namespaceSelector: {matchLabels: {a: b}}, name: 'p*'}"),
		`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*']}]}
  variables: [{name: x, expression: "object.metadata.?labels.orValue({})"}]
  matchConditions: [{name: m, expression: "object.metadata.name != 'x'"}]
  validations: [{expression: "params.data.a in variables.x", messageExpression: "'no ' + params.data.a"}]
  auditAnnotations: [{key: k, valueExpression: "string(object.kind)"}]`, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b}
spec: {policyName: p, validationActions: [Deny, Audit], paramRef: {name: c, namespace: ns, parameterNotFoundAction: Deny}}`,
	)
}

// sortInputs puts objects where they belong.
func sortInputs(objects ...*unstructured.Unstructured) Inputs {
	in := Inputs{ParamKinds: []Kind{kindOf("", "v1", "ConfigMap", true)}}
	for _, obj := range objects {
		switch obj.GetKind() {
		case "ConstraintTemplate":
			in.Templates = append(in.Templates, obj)
		case syncSetKind:
			in.SyncSets = append(in.SyncSets, obj)
		case configKind:
			in.Configs = append(in.Configs, obj)
		case "ValidatingAdmissionPolicy":
			in.AdmissionPolicies = append(in.AdmissionPolicies, obj)
		case "ValidatingAdmissionPolicyBinding":
			in.AdmissionBindings = append(in.AdmissionBindings, obj)
		case "ConfigMap":
			in.Params = append(in.Params, obj)
		default:
			in.Constraints = append(in.Constraints, obj)
		}
	}
	return in
}

// judgeAll judges an object by all policies of a set, which is compiled anew with the
// object in data.inventory.
func judgeAll(t *testing.T, in Inputs, set *Set, obj, namespace *unstructured.Unstructured) {
	t.Helper()
	ctx := context.Background()
	started := time.Now()
	var inventory []InventoryObjects
	for _, view := range set.InventoryViews(testKinds, testOldKinds) {
		item, err := view.Item(obj)
		if err != nil {
			t.Skip() // what is no JSON does not come from a source
		}
		objects := InventoryObjects{View: view}
		if item != nil {
			objects.Items = append(objects.Items, item)
		}
		inventory = append(inventory, objects)
	}
	in.Inventory = NewInventory(inventory, nil)
	set = Compile(ctx, in, set)
	kind := Kind{GroupVersionKind: obj.GroupVersionKind(), Resource: "things", Namespaced: obj.GetNamespace() != ""}
	for _, v := range Review(ctx, NewObject(kind, obj, namespace), set.Constraints()) {
		if (v.Outcome == Fail) != (len(v.Violations) > 0) || (v.Outcome == Error || v.Outcome == Deferred) && v.Message == "" {
			t.Errorf("a verdict that says nothing: %+v", v)
		}
	}
	if took := time.Since(started); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

// FuzzCompile compiles policies that may be anything, and judges them by themselves.
func FuzzCompile(f *testing.F) {
	for _, m := range policyManifests() {
		f.Add(m, testConstraint("c", "parameters: {}"))
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var objs [2]*unstructured.Unstructured
		for i, text := range []string{first, second} {
			objs[i] = &unstructured.Unstructured{}
			data, err := yaml.YAMLToJSON([]byte(text))
			if err != nil || objs[i].UnmarshalJSON(data) != nil {
				t.Skip()
			}
		}
		in := sortInputs(objs[0], objs[1])
		set := Compile(context.Background(), in, nil)
		if again := Compile(context.Background(), in, nil); again.Digest() != set.Digest() {
			t.Errorf("the same policies have the digests %s and %s", set.Digest(), again.Digest())
		}
		judgeAll(t, in, set, objs[1], nil)
	})
}

// FuzzReview judges objects that may be any JSON, by policies of all kinds.
func FuzzReview(f *testing.F) {
	for _, m := range append(policyManifests(), podManifest, ingress("ns", "a", "x")) {
		data, err := yaml.YAMLToJSON([]byte(m))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns","labels":{"a":"b"}}}`))
	}
	var policies []*unstructured.Unstructured
	for i, m := range policyManifests() {
		obj := parse(f, m)
		if obj.GetKind() == "ConstraintTemplate" {
			// They are all of kind Test.
			kind := []string{"Test", "Testb", "Testc", "Testd", "Teste", "Testf"}[i%6]
			obj.SetName("test" + kind[4:])
			if err := unstructured.SetNestedField(obj.Object, kind, "spec", "crd", "spec", "names", "kind"); err != nil {
				f.Fatal(err)
			}
			c := parse(f, testConstraint("all", "match: {}"))
			c.SetKind(kind)
			policies = append(policies, c)
		}
		policies = append(policies, obj)
	}
	in := sortInputs(policies...)
	set := Compile(context.Background(), in, nil)
	f.Fuzz(func(t *testing.T, object, namespace []byte) {
		obj, ns := &unstructured.Unstructured{}, &unstructured.Unstructured{}
		if obj.UnmarshalJSON(object) != nil || !json.Valid(object) {
			t.Skip()
		}
		if ns.UnmarshalJSON(namespace) != nil {
			ns = nil
		}
		judgeAll(t, in, set, obj, ns)
	})
}
