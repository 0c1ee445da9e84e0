package vap

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// conditions are match conditions with different names.
func conditions(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("{name: c%d, expression: 'true'}", i))
	}
	return strings.Join(list, ", ")
}

// checkLines compares the lines of an error, each cut to the length of what is wanted.
func checkLines(t *testing.T, err error, want []string) {
	t.Helper()
	if err == nil {
		err = errors.New("")
	}
	got := strings.Split(err.Error(), "\n")
	for i := range min(len(got), len(want)) {
		got[i] = got[i][:min(len(got[i]), len(want[i]))]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%v", diff, err)
	}
}

func TestInvalidPolicies(t *testing.T) {
	rule := func(fields string) string {
		return "matchConstraints: {resourceRules: [{" + fields + "}]}\n" + never
	}
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"nothing":                {"{}", []string{"spec.matchConstraints: Required value", "spec.validations: Required value"}},
		"no rules":               {"matchConstraints: {}\n" + never, []string{"spec.matchConstraints.resourceRules: Required value"}},
		"empty rule":             {rule(""), []string{"spec.matchConstraints.resourceRules[0].operations: Required", "spec.matchConstraints.resourceRules[0].apiGroups: Required", "spec.matchConstraints.resourceRules[0].apiVersions: Required", "spec.matchConstraints.resourceRules[0].resources: Required"}},
		"operation":              {rule(`apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [READ]`), []string{`spec.matchConstraints.resourceRules[0].operations[0]: Unsupported value: "READ"`}},
		"* not alone":            {rule(`apiGroups: [""], apiVersions: [v1, "*"], resources: [pods], operations: ["*", CREATE]`), []string{"spec.matchConstraints.resourceRules[0].operations: Invalid value", "spec.matchConstraints.resourceRules[0].apiVersions: Invalid value"}},
		"blank":                  {rule(`apiGroups: [""], apiVersions: [""], resources: [""], operations: ["*"], resourceNames: [""]`), []string{"spec.matchConstraints.resourceRules[0].apiVersions[0]: Required", "spec.matchConstraints.resourceRules[0].resources[0]: Required", "spec.matchConstraints.resourceRules[0].resourceNames[0]: Required"}},
		"scope":                  {rule(`apiGroups: [""], apiVersions: [v1], resources: [pods], operations: ["*"], scope: Any`), []string{`spec.matchConstraints.resourceRules[0].scope: Unsupported value: "Any"`}},
		"excluded":               {`matchConstraints: {resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}], excludeResourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [x]}]}` + "\n" + never, []string{"spec.matchConstraints.excludeResourceRules[0].operations[0]: Unsupported"}},
		"match policy":           {`matchConstraints: {matchPolicy: Fuzzy, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}]}` + "\n" + never, []string{"spec.matchConstraints.matchPolicy: Unsupported"}},
		"selectors":              {`matchConstraints: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}, objectSelector: {matchExpressions: [{key: a, operator: Is}]}, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}]}` + "\n" + never, []string{"spec.matchConstraints.namespaceSelector.matchExpressions[0].values: Required", "spec.matchConstraints.objectSelector.matchExpressions[0].operator: Invalid value"}},
		"failure policy":         {forPods + "failurePolicy: Maybe\n" + never, []string{`spec.failurePolicy: Unsupported value: "Maybe"`}},
		"kind of params":         {forPods + "paramKind: {apiVersion: a/b/c}\n" + never, []string{"spec.paramKind.apiVersion: Invalid value", "spec.paramKind.kind: Required"}},
		"blank messages":         {forPods + "validations: [{expression: 'false', message: ' ', messageExpression: ' '}]", []string{"spec.validations[0].message: Invalid value", "spec.validations[0].messageExpression: Invalid value", "spec.validations[0].messageExpression:"}},
		"message of two lines":   {forPods + `validations: [{expression: 'false', message: "a\nb"}]`, []string{"spec.validations[0].message: Invalid value"}},
		"two lines, no message":  {forPods + `validations: [{expression: "false ||\nfalse"}]`, []string{"spec.validations[0].message: Required value"}},
		"reason":                 {forPods + "validations: [{expression: 'false', reason: Gone}]", []string{`spec.validations[0].reason: Unsupported value: "Gone"`}},
		"names of conditions":    {forPods + "matchConditions: [{name: 'a b', expression: 'true'}, {expression: 'true'}, {name: c, expression: 'true'}, {name: c, expression: 'true'}]\n" + never, []string{"spec.matchConditions[0].name: Invalid value", "spec.matchConditions[1].name: Required", `spec.matchConditions[3].name: "c" is the name of matchConditions[2] already`}},
		"too many conditions":    {forPods + "matchConditions: [" + conditions(65) + "]\n" + never, []string{"spec.matchConditions: Too many: 65: must have at most 64 items"}},
		"names of variables":     {forPods + "variables: [{name: a-b, expression: '1'}, {name: in, expression: '1'}, {name: c, expression: '1'}, {name: c, expression: '1'}]\n" + never, []string{"spec.variables[0].name: Invalid value", "spec.variables[1].name: Invalid value", `spec.variables[3].name: "c" is the name of variables[2] already`}},
		"annotations":            {forPods + "auditAnnotations: [{key: a/b, valueExpression: 'null'}, {valueExpression: 'null'}, {key: c, valueExpression: 'null'}, {key: c, valueExpression: 'null'}]", []string{"spec.auditAnnotations[0].key: Invalid value", "spec.auditAnnotations[1].key: Required", "spec.auditAnnotations[3].key: Duplicate value"}},
		"long annotation":        {forPods + "auditAnnotations: [{key: a, valueExpression: '\"" + strings.Repeat("x", 5<<10) + "\"'}]", []string{"spec.auditAnnotations[0].valueExpression: Too long"}},
		"expressions":            {forPods + "validations: [{expression: 'params == null'}, {expression: '1'}]", []string{"spec.validations[0].expression:1:1: undeclared reference to 'params'", "spec.validations[1].expression: must evaluate to bool but got int"}},
		"type":                   {forPods + "validations: [{expression: 'false', message: false}]", []string{"spec.validations.message is a bool, want a string"}},
		"unknown field":          {forPods + "validation: []\n" + never, []string{`spec: strict decoding error: unknown field "validation"`}},
		"unknown field of rules": {rule(`apiGroups: [""], apiVersions: [v1], resources: [pods], operations: ["*"], names: [a]`), []string{`spec: strict decoding error: unknown field "matchConstraints.resourceRules[0].names"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := CompilePolicy(parse(t, policyOf(tc.spec)))
			checkLines(t, err, tc.want)
		})
	}
}

func TestInvalidBindings(t *testing.T) {
	p, err := CompilePolicy(parse(t, policyOf(forPods+"paramKind: {apiVersion: v1, kind: ConfigMap}\n"+never)))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"nothing":             {"{}", []string{"spec.policyName: Required", "spec.validationActions: Required"}},
		"other policy":        {"policyName: q\nvalidationActions: [Deny]", []string{`spec.policyName is "q", not "p"`}},
		"actions":             {"policyName: p\nvalidationActions: [Block, Audit, Audit]", []string{`spec.validationActions[0]: Unsupported value: "Block"`, "spec.validationActions[2]: Duplicate value"}},
		"deny and warn":       {"policyName: p\nvalidationActions: [Deny, Warn]", []string{"spec.validationActions: Invalid value"}},
		"match":               {"policyName: p\nvalidationActions: [Deny]\nmatchResources: {matchPolicy: x}", []string{"spec.matchResources.matchPolicy: Unsupported"}},
		"params":              {"policyName: p\nvalidationActions: [Deny]\nparamRef: {}", []string{"spec.paramRef: Invalid value", "spec.paramRef.parameterNotFoundAction: Required"}},
		"params twice":        {"policyName: p\nvalidationActions: [Deny]\nparamRef: {name: a, selector: {}, parameterNotFoundAction: Maybe}", []string{"spec.paramRef: Invalid value", "spec.paramRef.parameterNotFoundAction: Unsupported"}},
		"selector of params":  {"policyName: p\nvalidationActions: [Deny]\nparamRef: {selector: {matchLabels: {'a b': c}}, parameterNotFoundAction: Deny}", []string{"spec.paramRef.selector.matchLabels: Invalid value"}},
		"unknown field":       {"policyName: p\nvalidationAction: [Deny]", []string{`spec: strict decoding error: unknown field "validationAction"`}},
		"all of it is wanted": {"policyName: p\nvalidationActions: [Deny]", []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			obj := parse(t, bindingOf(""))
			obj.Object["spec"] = parse(t, "apiVersion: v1\nkind: Spec\nspec:\n  "+indent(tc.spec)).Object["spec"]
			_, err := NewBinding(p, obj)
			checkLines(t, err, tc.want)
		})
	}
}

func TestWrongObjects(t *testing.T) {
	for name, tc := range map[string]struct{ manifest, want string }{
		"kind":    {bindingOf(""), "it is a admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding, want admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy"},
		"version": {strings.Replace(policyOf("{}"), "io/v1", "io/v1beta1", 1), "it is a admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicy, want admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy"},
		"name":    {strings.Replace(policyOf("{}"), "name: p", "generateName: p", 1), "metadata.name is missing"},
		"spec":    {strings.Replace(policyOf("{}"), "spec:", "status:", 1), "spec is missing; it has to be an object"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := CompilePolicy(parse(t, tc.manifest)); err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestBinding(t *testing.T) {
	b := bind(t, forPods+"paramKind: {apiVersion: example.io/v1, kind: Limit}\n"+never, "paramRef: {name: a, parameterNotFoundAction: Allow}")
	if b.Name != "b" || b.Policy.Name != "p" || b.Policy.Deferred() != "" {
		t.Errorf("got %s of %s, deferred %q", b.Name, b.Policy.Name, b.Policy.Deferred())
	}
	if gvk, ok := b.ParamKind(); !ok || gvk != (schema.GroupVersionKind{Group: "example.io", Version: "v1", Kind: "Limit"}) {
		t.Errorf("got %v %v", gvk, ok)
	}
	if gvk, ok := bind(t, forPods+never, "paramRef: {name: a, parameterNotFoundAction: Allow}").ParamKind(); ok {
		t.Errorf("got %v of a policy without a paramKind", gvk)
	}
	obj := parse(t, bindingOf(""))
	obj.Object["spec"].(map[string]any)["validationActions"] = []any{"Warn", "Audit"}
	b, err := NewBinding(b.Policy, obj)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"audit", "warn"}, b.Actions()); diff != "" {
		t.Error(diff)
	}
}
