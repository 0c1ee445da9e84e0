package audit

import (
	"fmt"
	"strings"
	"testing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/source"
)

// program is a template with a program of its own.
func program(kind, rego string) string {
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: %s}
spec:
  crd: {spec: {names: {kind: %s}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package test
      %s
`, strings.ToLower(kind), kind, rego)
}

func constraintOf(kind, match string) string {
	return fmt.Sprintf("{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: %s, metadata: {name: c}, spec: {match: {%s}}}", kind, match)
}

// TestWhereGatekeeperLosesResults has the places at which Gatekeeper's audit loses
// results without saying so (reference: pkg/audit/manager.go of Gatekeeper v3.23), one
// after another: each is an error of its own here, or the result is there.
func TestWhereGatekeeperLosesResults(t *testing.T) {
	src := newFakeSource()
	kinds := []string{"NeedLabel", "NoText", "Endless", "Conflict", "Many", "NeedNamespace"}
	for _, kind := range kinds {
		src.addKind(constraintGroup, "v1beta1", kind, strings.ToLower(kind), false)
	}
	long := strings.Repeat("ü", 1000)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "a: b"),
		template("NeedLabel", "v1"), constraint("NeedLabel", "c", "Pod", "owner", ""),
		// The review of the object fails, and all results for it are lost.
		program("NoText", `violation[{"msg": 7}] { true }`), constraintOf("NoText", ""),
		// The audit does not go on.
		program("Endless", `violation[{"msg": "x"}] { numbers.range(1, 3000)[i]; numbers.range(1, 3000)[j]; numbers.range(1, 3000)[k]; i + j + k < 0 }`), constraintOf("Endless", "kinds: [{kinds: [Pod]}]"),
		// The error takes the place of what was found.
		program("Conflict", "v = 1 { true }\n      v = 2 { true }\n      violation[{\"msg\": \"x\"}] { v > 0 }"), constraintOf("Conflict", "kinds: [{kinds: [Pod]}]"),
		// Twenty results of a constraint are kept, and of each message 256 bytes.
		program("Many", `violation[{"msg": msg}] { msg := sprintf("`+long+` %v", [numbers.range(10, 39)[_]]) }`), constraintOf("Many", "kinds: [{kinds: [Pod]}]"),
		// An object whose Namespace cannot be had is left out.
		program("NeedNamespace", `violation[{"msg": "x"}] { true }`), constraintOf("NeedNamespace", "kinds: [{kinds: [Pod]}], namespaceSelector: {matchLabels: {a: b}}"),
		pod("gone", "q", "a: b"))
	h := newHarness(t, src)
	h.waitLoaded()
	of := func(kind, namespace string) *v1alpha1.Finding {
		for _, r := range h.results() {
			if r.Constraint.Kind == kind && r.Resource.Kind == "Pod" && r.Resource.Namespace == namespace {
				return &r.Finding
			}
		}
		return &v1alpha1.Finding{}
	}
	expect := func(what, kind, namespace string, result v1alpha1.Result, message string) {
		t.Helper()
		f := of(kind, namespace)
		text := f.Message
		if len(f.Violations) > 0 {
			text = f.Violations[0].Message
		}
		if f.Result != result || !strings.Contains(text, message) {
			t.Errorf("%s: %s says %q of the Pod in %s: %q, want %q: %q", what, kind, f.Result, namespace, text, result, message)
		}
	}
	expect("beside errors of others", "NeedLabel", "shop", v1alpha1.ResultFail, "label owner is missing")
	expect("a msg that is no text", "NoText", "shop", v1alpha1.ResultError, "msg of a violation is a number")
	expect("an evaluation without end", "Endless", "shop", v1alpha1.ResultError, "it took longer than 5s")
	expect("an error of evaluation", "Conflict", "shop", v1alpha1.ResultError, "eval_conflict_error")
	expect("an unknown Namespace", "NeedNamespace", "gone", v1alpha1.ResultError, "the Namespace of the object is not known")
	expect("an unknown Namespace, for others", "NeedLabel", "gone", v1alpha1.ResultFail, "label owner is missing")
	if f := of("Many", "shop"); len(f.Violations) != 30 || f.Truncated || f.Violations[29].Message != long+" 39" {
		t.Errorf("many long messages: %d are kept, truncated: %v", len(f.Violations), f.Truncated)
	}

	// A list that fails, at whatever page: what was found stays, and the failure is told.
	before := h.findings()
	src.fail(podKind, errForbidden)
	eventually(h, "a kind that cannot be listed", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.c").State })
	h.wantFindings("a kind that cannot be listed", before...)
	if message := h.summary("needlabel.c").Message; !strings.Contains(message, errForbidden.Error()) {
		t.Errorf("the summary does not say why: %q", message)
	}
	src.fail(podKind, nil)

	// Kinds are told apart by group as well as by name, and none is left out because of
	// its name.
	src.addKind("example.com", "v1", "Pod", "otherpods", true)
	src.apply(t, object("example.com/v1", "Pod", "shop", "other", "a: b"))
	eventually(h, "a kind of the same name", 1, func() int {
		n := 0
		for _, r := range h.results() {
			if r.Resource.APIGroup == "example.com" && r.Constraint.Kind == "NeedLabel" {
				n++
			}
		}
		return n
	})

	// A constraint whose template is wrong is told, not passed over.
	src.apply(t, program("NeedLabel", `violation[{"msg": "x"}] { nothing }`))
	eventually(h, "a wrong template", v1alpha1.SummaryRejected, func() v1alpha1.SummaryState { return h.summary("needlabel.c").State })

	// What could not be looked at at all is in the run.
	src.setProblems(source.Problem{Subject: "metrics.example.com", Message: "no answer"})
	eventually(h, "a problem", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	src.failGroup("example.com", errForbidden)
	eventually(h, "an API group that is down", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("notext.c").State })
}
