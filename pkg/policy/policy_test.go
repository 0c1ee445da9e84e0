package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func parse(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(data); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	return obj
}

func indent(text string, n int) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", n))
}

// testTemplate is a template of kind Test whose program is given.
func testTemplate(rego string) string {
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: test}
spec:
  crd:
    spec:
      names: {kind: Test}
      validation:
        openAPIV3Schema:
          type: object
          properties:
            label: {type: string, default: owner}
            count: {type: integer}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      %s
`, indent(rego, 6))
}

func testConstraint(name, spec string) string {
	return fmt.Sprintf("apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: %s}\nspec:\n  %s\n", name, indent(spec, 2))
}

const (
	needLabel = `
package test
violation[{"msg": msg}] {
  not input.review.object.metadata.labels[input.parameters.label]
  msg := sprintf("label %v is missing", [input.parameters.label])
}`
	podManifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns, labels: {app: x}}\n"
)

func compile(t testing.TB, template string, constraints ...string) *Set {
	t.Helper()
	var in Inputs
	if template != "" {
		in.Templates = append(in.Templates, parse(t, template))
	}
	for _, c := range constraints {
		in.Constraints = append(in.Constraints, parse(t, c))
	}
	return Compile(context.Background(), in, nil)
}

func templateOf(c *Constraint) *template { return c.rule.(*gatekeeperRule).template }

// subject is an object to be judged, of a kind whose resource does not matter.
func subject(obj, namespace *unstructured.Unstructured) *Object {
	return NewObject(Kind{GroupVersionKind: obj.GroupVersionKind(), Namespaced: obj.GetNamespace() != ""}, obj, namespace)
}

// review returns the verdicts on a Pod, by the names of the constraints.
func review(t testing.TB, set *Set) map[string]string {
	t.Helper()
	if len(set.Rejections()) > 0 {
		t.Fatalf("rejected: %+v", set.Rejections())
	}
	out := map[string]string{}
	for _, v := range Review(context.Background(), subject(parse(t, podManifest), nil), set.Constraints()) {
		text := [...]string{"not matched", "pass", "fail", "error", "deferred"}[v.Outcome]
		for _, violation := range v.Violations {
			text += " " + violation.Message + string(violation.Details)
		}
		if v.Message != "" {
			text += ": " + v.Message
		}
		out[v.Constraint.ID.Name] = text
	}
	return out
}

func TestReview(t *testing.T) {
	for _, test := range []struct{ name, rego, want string }{
		{"violation", needLabel, "fail label owner is missing"},
		{"a set, sorted", `package a
violation[{"msg": "b"}] { true }
violation[{"msg": "a", "details": {"x": 1}}] { true }
violation[{"msg": "b", "details": {}}] { true }`, `fail a{"x":1} b`},
		{"without msg", `package a
violation[{"msg": m}] { m := input.review.object.spec }
violation[{"text": "b"}] { true }`, "pass"},
		{"msg that is no string", `package a
violation[{"msg": 7}] { true }`, "error: template Test: msg of a violation is a number, want a string: 7"},
		{"failing built-in", `package a
violation[{"msg": "x"}] { to_number("abc") > 1 }`, "pass"},
		{"conflict", "package a\nf(x) = 1 { x }\nf(x) = 2 { x }\nviolation[{\"msg\": \"x\"}] { f(true) > 0 }", "error: template Test: rego:3:1: eval_conflict_error: function data.a.f produced conflicting values for the same inputs:\n  1 at rego:2\n  2 at rego:3"},
		{"inventory", `package a
violation[{"msg": "x"}] { data.inventory.cluster["v1"] }`, "deferred: the objects of data.inventory are not loaded yet"},
		{"review of an audit", `package a
violation[{"msg": msg}] {
  r := input.review
  msg := sprintf("%v %v %v %v %v %v", [r.operation == "", r.userInfo == {}, r.oldObject == null, r.kind.kind, r.name, r.namespace])
}`, "fail true true true Pod p ns"},
		{"endless", `package a
violation[{"msg": "x"}] { numbers.range(1, 3000)[i]; numbers.range(1, 3000)[j]; numbers.range(1, 3000)[k]; i + j + k < 0 }`, "error: template Test: evaluation was stopped: it took longer than 5s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := review(t, compile(t, testTemplate(test.rego), testConstraint("c", "parameters: {}")))["c"]
			if got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestErrorsStayWithTheirConstraint has one constraint fail to evaluate beside
// others of the same template.
func TestErrorsStayWithTheirConstraint(t *testing.T) {
	set := compile(t, testTemplate(`package a
violation[{"msg": msg}] { input.parameters.count == 1; msg := 5 }
violation[{"msg": "real"}] { input.parameters.count == 2 }`),
		testConstraint("broken", "parameters: {count: 1}"),
		testConstraint("fails", "parameters: {count: 2}"),
		testConstraint("passes", "parameters: {count: 3}"),
		testConstraint("other-kind", "match: {kinds: [{apiGroups: [apps], kinds: [Deployment]}]}"),
		testConstraint("needs-namespace", "match: {namespaceSelector: {matchLabels: {a: b}}}"))
	want := map[string]string{
		"broken":          "error: template Test: msg of a violation is a number, want a string: 5",
		"fails":           "fail real",
		"passes":          "pass",
		"other-kind":      "not matched",
		"needs-namespace": "error: match: namespace ns: the Namespace of the object is not known, so namespaceSelector cannot be evaluated",
	}
	if diff := cmp.Diff(want, review(t, set)); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func TestParameters(t *testing.T) {
	set := compile(t, testTemplate(needLabel),
		testConstraint("given", "parameters: {label: team}"),
		testConstraint("default", "parameters: {}"),
		testConstraint("absent", "enforcementAction: warn"))
	want := map[string]string{
		"given":   "fail label team is missing",
		"default": "fail label owner is missing",
		// Defaults need the object that they are in, as in the kube-apiserver.
		"absent": "pass",
	}
	if diff := cmp.Diff(want, review(t, set)); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func TestRejections(t *testing.T) {
	good := testTemplate(needLabel)
	for _, test := range []struct {
		name, template string
		constraints    []string
		want           string
	}{
		{"no template", "", []string{testConstraint("c", "{}")}, "constraint Test/c has no template; create the ConstraintTemplate test"},
		{"syntax", testTemplate("package a\nviolation[{\"msg\": m}] { m := := 1 }"), nil, "template test: rego:2:30: rego_parse_error"},
		{"unknown function", testTemplate("package a\nviolation[{\"msg\": m}] { m := nothing(1) }"), nil, "rego:2:30: rego_type_error: undefined function nothing"},
		{"network", testTemplate("package a\nviolation[{\"msg\": \"x\"}] { http.send({}) }"), nil, "may not use this built-in function here"},
		{"no rule", testTemplate("package a\nallow { true }"), nil, "the template has no rule violation"},
		{"data", testTemplate("package a\nviolation[{\"msg\": \"x\"}] { data.other.x }"), nil, "rego:2:27: bad reference data.other.x: only data.lib.* and data.inventory.* can be read"},
		{"import", testTemplate("package a\nimport data.inventory\nviolation[{\"msg\": \"x\"}] { inventory }"), nil, "rego:2:1: bad import data.inventory"},
		{"two targets", strings.Replace(good, "  targets:\n", "  targets:\n  - {target: admission.k8s.gatekeeper.sh, rego: x}\n", 1), nil, "spec.targets has 2 entries"},
		{"target", strings.Replace(good, "admission.k8s.gatekeeper.sh", "other", 1), nil, `spec.targets[0].target is "other"`},
		{"name", strings.Replace(good, "{name: test}", "{name: tests}", 1), nil, `metadata.name is "tests"; it must be spec.crd.spec.names.kind in lower case: "test"`},
		{"schema", strings.Replace(good, "label: {type: string, default: owner}", "label: {default: owner}", 1), nil, "spec.crd.spec.validation.openAPIV3Schema.properties[label].type: Required value"},
		{"unknown engine", strings.Replace(strings.Replace(good, "    rego: |", "    code: [{engine: Other, source: {}}]\n    rego: |", 1), "    rego: |", "    other: |", 1), nil, "spec.targets[0] has no program; give it rego, or code with an entry of engine Rego"},
		{"scoped without actions", good, []string{testConstraint("c", "enforcementAction: scoped")}, "spec.scopedEnforcementActions is missing"},
		{"scoped with null", good, []string{testConstraint("c", "enforcementAction: scoped\nscopedEnforcementActions: null")}, "spec.scopedEnforcementActions is missing"},
		{"CEL", strings.Replace(good, "    rego: |", "    code: [{engine: K8sNativeValidation, source: {}}]\n    rego: |", 1), nil, "spec.targets[0].code[0].source: validations is empty"},
		{"parameter type", good, []string{testConstraint("c", "parameters: {count: many}")}, "constraint Test/c: spec.parameters.count"},
		{"unknown parameter", good, []string{testConstraint("c", "parameters: {colour: red}")}, "constraint Test/c: unknown fields: spec.parameters.colour"},
		{"unknown match field", good, []string{testConstraint("c", "match: {kind: [Pod]}")}, "unknown fields: spec.match.kind"},
		{"selector", good, []string{testConstraint("c", "match: {labelSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}")}, `constraint Test/c: spec.match.labelSelector: "Is" is not a valid label selector operator`},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := compile(t, test.template, test.constraints...)
			if len(set.Rejections()) != 1 || !strings.Contains(set.Rejections()[0].Message, test.want) {
				t.Errorf("rejections %+v, want one with %q", set.Rejections(), test.want)
			}
		})
	}
}

func TestRegoV1AndLibraries(t *testing.T) {
	const rego = `
package a
import data.lib.labels
violation contains {"msg": msg} if {
  some name in labels.missing
  msg := sprintf("no %v", [name])
}`
	const lib = `
package lib.labels
missing contains name if {
  some name in ["app", "team"]
  not input.review.object.metadata.labels[name]
}`
	template := fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: test}
spec:
  crd: {spec: {names: {kind: Test}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    code:
    - engine: Rego
      source:
        version: v1
        rego: |
          %s
        libs:
        - |
          %s
`, indent(rego, 10), indent(lib, 10))
	if got := review(t, compile(t, template, testConstraint("c", "{}")))["c"]; got != "fail no team" {
		t.Errorf("got %q", got)
	}
	set := compile(t, strings.Replace(template, "package lib.labels", "package other.labels", 1))
	if r := set.Rejections(); len(r) != 1 || !strings.Contains(r[0].Message, "libs[0]:1:1: package other.labels: a library must be in a package below data.lib") {
		t.Errorf("rejections %+v", r)
	}
}

func TestScopedEnforcement(t *testing.T) {
	set := compile(t, testTemplate(needLabel),
		testConstraint("all", "enforcementAction: scoped\nscopedEnforcementActions: [{action: warn, enforcementPoints: [{name: '*'}]}, {action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}]"),
		testConstraint("webhook", "enforcementAction: scoped\nscopedEnforcementActions: [{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}]"))
	if len(set.Constraints()) != 1 || len(set.Rejections()) != 0 {
		t.Fatalf("constraints %v, rejections %v", set.Constraints(), set.Rejections())
	}
	c := set.Constraints()[0]
	if c.EnforcementAction != "scoped" || !cmp.Equal(c.EnforcementActions, []string{"deny", "warn"}) {
		t.Errorf("action %s %v", c.EnforcementAction, c.EnforcementActions)
	}
}

// TestUnknownActions has constraints that are audited with a note.
func TestUnknownActions(t *testing.T) {
	for action, want := range map[string]string{
		"deny": "", "dryrun": "", "warn": "",
		"block":  `enforcementAction is "block"; Gatekeeper knows deny, dryrun, warn and scoped`,
		"Scoped": `enforcementAction is "Scoped"; Gatekeeper knows deny, dryrun, warn and scoped`,
	} {
		set := compile(t, testTemplate(needLabel), testConstraint("c", "enforcementAction: "+action+"\nparameters: {label: team}"))
		if got := review(t, set)["c"]; got != "fail label team is missing" {
			t.Errorf("%s: %s", action, got)
		}
		if c := set.Constraints()[0]; c.EnforcementAction != action || c.Note != want {
			t.Errorf("action %q, note %q; want %q, %q", c.EnforcementAction, c.Note, action, want)
		}
	}
}

// TestDigests tells what a change of a policy costs: programs are kept, and only
// constraints that have changed get another digest.
func TestDigests(t *testing.T) {
	in := Inputs{
		Templates:   []*unstructured.Unstructured{parse(t, testTemplate(needLabel))},
		Constraints: []*unstructured.Unstructured{parse(t, testConstraint("a", "{}")), parse(t, testConstraint("b", "{}"))},
	}
	first := Compile(context.Background(), in, nil)
	in.Constraints[1] = parse(t, testConstraint("b", "parameters: {label: team}"))
	second := Compile(context.Background(), in, first)
	if first.Constraints()[0] != second.Constraints()[0] || templateOf(first.Constraints()[1]) != templateOf(second.Constraints()[1]) {
		t.Error("the program was compiled again")
	}
	if first.Constraints()[0].Digest != second.Constraints()[0].Digest || first.Constraints()[1].Digest == second.Constraints()[1].Digest || first.Digest() == second.Digest() {
		t.Error("digests do not follow the changes")
	}
}

func TestNeedsNamespace(t *testing.T) {
	for rego, want := range map[string]bool{
		`package a
violation[{"msg": "x"}] { input.review.object.kind }`: false,
		`package a
violation[{"msg": "x"}] { input.review.namespaceObject.metadata }`: true,
		`package a
violation[{"msg": "x"}] { f := "namespaceObject"; input.review[f] }`: true,
		`package a
g(r) { r.namespaceObject }
violation[{"msg": "x"}] { g(input.review) }`: true,
	} {
		set := compile(t, testTemplate(rego), testConstraint("c", "{}"))
		if got := set.Constraints()[0].NeedsNamespace; got != want {
			t.Errorf("NeedsNamespace is %v of\n%s", got, rego)
		}
	}
}

func TestForKind(t *testing.T) {
	set := compile(t, testTemplate(needLabel),
		testConstraint("all", "{}"),
		testConstraint("pods", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}`),
		testConstraint("cluster", "match: {scope: Cluster}"),
		testConstraint("namespaced", "match: {scope: Namespaced}"),
		testConstraint("generated", "match: {source: Generated}"))
	for gk, want := range map[schema.GroupKind]string{
		{Kind: "Pod"}:       "all namespaced pods",
		{Kind: "Namespace"}: "all cluster",
	} {
		var got []string
		for _, c := range set.ForKind(Kind{GroupVersionKind: gk.WithVersion("v1"), Namespaced: gk.Kind == "Pod"}) {
			got = append(got, c.ID.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", gk, got, want)
		}
	}
}

func BenchmarkReview(b *testing.B) {
	set := compile(b, testTemplate(needLabel), testConstraint("a", "parameters: {}"), testConstraint("b", "parameters: {label: app}"))
	pod := parse(b, podManifest)
	for b.Loop() {
		Review(context.Background(), subject(pod, nil), set.Constraints())
	}
}

// TestAllowNet takes templates whose programs reach the network if hosts are allowed.
func TestAllowNet(t *testing.T) {
	in := inputsOf(t, testTemplate("package a\nviolation[{\"msg\": \"x\"}] { http.send({\"method\": \"GET\", \"url\": \"http://127.0.0.1:1\"}).status_code == 200 }"), testConstraint("c", "{}"))
	refused := Compile(t.Context(), in, nil)
	if len(refused.Constraints()) != 0 || len(refused.Rejections()) != 2 || !strings.Contains(refused.Rejections()[1].Message, "http.send: policies may not use this built-in function here, because it reaches the network, which the server allows for hosts that --rego-allow-net names") {
		t.Errorf("constraints %v, rejections %+v", refused.Constraints(), refused.Rejections())
	}
	digests := map[string]bool{refused.Digest(): true}
	for _, hosts := range [][]string{{"127.0.0.1"}, {"*"}, {"example.com"}} {
		in.AllowNet = hosts
		set := Compile(t.Context(), in, refused)
		if len(set.Constraints()) != 1 || digests[set.Digest()] {
			t.Errorf("%q: rejections %+v, digest %s of %v", hosts, set.Rejections(), set.Digest(), digests)
			continue
		}
		digests[set.Digest()] = true
		v := Review(t.Context(), NewObject(podResource, parse(t, podManifest), nil), set.Constraints())[0]
		if v.Outcome != Error || !strings.Contains(v.Message, "http.send: ") {
			t.Errorf("%q: %s", hosts, verdictText(&v))
		}
	}
}
