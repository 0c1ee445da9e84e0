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

// expansionManifest is an ExpansionTemplate from one kind, of version v1, to another.
func expansionManifest(name, group, kind, source, toGroup, toKind, action string) string {
	return fmt.Sprintf(`
apiVersion: expansion.gatekeeper.sh/v1beta1
kind: ExpansionTemplate
metadata: {name: %s}
spec:
  applyTo: [{groups: [%q], versions: [v1], kinds: [%q]}]
  templateSource: %s
  generatedGVK: {group: %q, version: v1, kind: %s}
  enforcementAction: %q
`, name, group, kind, source, toGroup, toKind, action)
}

var (
	expandDeployments = expansionManifest("deployments", "apps", "Deployment", "spec.template", "", "Pod", "")
	expandCronJobs    = expansionManifest("cronjobs", "batch", "CronJob", "spec.jobTemplate", "batch", "Job", "")
	expandJobs        = expansionManifest("jobs", "batch", "Job", "spec.template", "", "Pod", "")
)

const deploymentManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {template: {metadata: {labels: {tier: front}}, spec: {}}}
`

// expanding compiles a template and constraints with ExpansionTemplates.
func expanding(t testing.TB, previous *Set, rego string, expansions []string, constraints ...string) *Set {
	t.Helper()
	in := Inputs{Templates: []*unstructured.Unstructured{parse(t, testTemplate(rego))}}
	for _, e := range expansions {
		in.ExpansionTemplates = append(in.ExpansionTemplates, parse(t, e))
	}
	for _, c := range constraints {
		in.Constraints = append(in.Constraints, parse(t, c))
	}
	return Compile(context.Background(), in, previous)
}

// say returns what constraints say of an object, by their names, with the action of
// what is not clean.
func say(t testing.TB, set *Set, obj string) map[string]string {
	t.Helper()
	if len(set.Rejections()) > 0 {
		t.Fatalf("rejected: %+v", set.Rejections())
	}
	out := map[string]string{}
	for _, v := range Review(t.Context(), subject(parse(t, obj), nil), set.Constraints()) {
		text := [...]string{"not matched", "pass", "fail", "error", "deferred"}[v.Outcome]
		if v.Outcome != NotMatched && v.Outcome != Pass {
			text += " " + v.EnforcementAction
		}
		for _, violation := range v.Violations {
			text += ", " + violation.Message
		}
		if v.Message != "" {
			text += ": " + v.Message
		}
		out[v.Constraint.ID.Name] = text
	}
	return out
}

const (
	sayKind = `package a
violation[{"msg": input.review.object.kind}] { true }`
	podsOnly = "match: {kinds: [{kinds: [Pod]}]}"
)

func TestImpliedViolations(t *testing.T) {
	set := expanding(t, nil, sayKind, []string{expandDeployments, expandCronJobs, expandJobs},
		testConstraint("all", "{}"),
		testConstraint("pods", podsOnly),
		testConstraint("deployments", "match: {kinds: [{kinds: [Deployment]}]}"),
		testConstraint("services", "match: {kinds: [{kinds: [Service]}]}"),
		testConstraint("generated", "match: {source: Generated}"),
		testConstraint("original", "match: {source: Original}"),
		testConstraint("elsewhere", "match: {kinds: [{kinds: [Pod]}], excludedNamespaces: [shop]}"),
		testConstraint("labelled", "match: {kinds: [{kinds: [Pod]}], labelSelector: {matchLabels: {tier: front}}}"),
		testConstraint("named", "match: {name: web-pod}"))
	for obj, want := range map[string]map[string]string{
		deploymentManifest: {
			"all": "fail deny, Deployment, [Implied by deployments] Pod", "pods": "fail deny, [Implied by deployments] Pod",
			"deployments": "fail deny, Deployment", "services": "not matched", "generated": "fail deny, [Implied by deployments] Pod", "original": "fail deny, Deployment",
			"elsewhere": "not matched", "labelled": "fail deny, [Implied by deployments] Pod", "named": "fail deny, [Implied by deployments] Pod",
		},
		// What is made of the same Pod template is not marked if it exists, although it is
		// remembered.
		"{apiVersion: v1, kind: Pod, metadata: {name: web-pod, namespace: shop}}": {
			"all": "fail deny, Pod", "pods": "fail deny, Pod", "deployments": "not matched", "services": "not matched", "generated": "not matched", "original": "fail deny, Pod",
			"elsewhere": "not matched", "labelled": "not matched", "named": "fail deny, Pod",
		},
		"{apiVersion: batch/v1, kind: CronJob, metadata: {name: c, namespace: lab}, spec: {jobTemplate: {spec: {template: {spec: {}}}}}}": {
			"all": "fail deny, CronJob, [Implied by cronjobs] Job, [Implied by jobs] Pod", "pods": "fail deny, [Implied by jobs] Pod", "deployments": "not matched", "services": "not matched",
			"generated": "fail deny, [Implied by cronjobs] Job, [Implied by jobs] Pod", "original": "fail deny, CronJob",
			"elsewhere": "fail deny, [Implied by jobs] Pod", "labelled": "not matched", "named": "not matched",
		},
	} {
		for range 2 {
			if diff := cmp.Diff(want, say(t, set, obj)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", obj, diff)
			}
		}
	}
}

func TestActionsOfExpansionTemplates(t *testing.T) {
	const scoped = "scoped\nscopedEnforcementActions: [{action: warn, enforcementPoints: [{name: '*'}]}]"
	for _, test := range []struct {
		constraint, first, second string // actions, those of two ExpansionTemplates
		match, want               string
	}{
		{"deny", "warn", "warn", podsOnly, "warn"},
		{"deny", "dryrun", "warn", podsOnly, "warn"},
		{"deny", "dryrun", "", podsOnly, "deny"},
		{"dryrun", "", "", podsOnly, "dryrun"},
		{"dryrun", "deny", "warn", podsOnly, "deny"},
		{"deny", "warn", "dryrun", "match: {}", "deny"},
		{"dryrun", "warn", "dryrun", "match: {}", "warn"},
		{"warn", "other", "else", podsOnly, "else"},
		{"warn", "other", "dryrun", podsOnly, "dryrun"},
		{scoped, "warn", "warn", podsOnly, "warn"},
		{scoped, "warn", "warn", "match: {}", "scoped"},
		{scoped, "deny", "warn", "match: {}", "deny"},
	} {
		set := expanding(t, nil, sayKind, []string{
			expansionManifest("first", "apps", "Deployment", "spec.template", "", "Pod", test.first),
			expansionManifest("second", "apps", "Deployment", "spec.template", "", "Pod", test.second),
		}, testConstraint("c", "enforcementAction: "+test.constraint+"\n"+test.match))
		if len(set.Constraints()) != 1 {
			t.Fatalf("%+v: %+v", test, set.Rejections())
		}
		v := Review(t.Context(), subject(parse(t, deploymentManifest), nil), set.Constraints())[0]
		if v.Outcome != Fail || v.EnforcementAction != test.want {
			t.Errorf("%+v: outcome %d, action %q", test, v.Outcome, v.EnforcementAction)
		}
		pod := Review(t.Context(), subject(parse(t, podManifest), nil), set.Constraints())[0]
		if pod.EnforcementAction != pod.Constraint.EnforcementAction {
			t.Errorf("%+v: action %q on a Pod", test, pod.EnforcementAction)
		}
	}
}

// An action that Gatekeeper does not know is noted.
func TestUnknownActionOfAnExpansionTemplate(t *testing.T) {
	expansions := []string{expansionManifest("deployments", "apps", "Deployment", "spec.template", "", "Pod", "warning")}
	set := expanding(t, nil, sayKind, expansions, testConstraint("pods", podsOnly), testConstraint("others", "match: {kinds: [{kinds: [Service]}]}"), testConstraint("block", podsOnly+"\nenforcementAction: block"))
	got := map[string]string{}
	for _, c := range set.Constraints() {
		got[c.ID.Name] = c.Note
	}
	note := `ExpansionTemplate deployments: spec.enforcementAction is "warning"; Gatekeeper knows deny, dryrun, warn and scoped`
	want := map[string]string{"pods": note, "others": "", "block": `enforcementAction is "block"; Gatekeeper knows deny, dryrun, warn and scoped; ` + note}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// What goes wrong with a resultant is an error of the constraint that it is judged by,
// and costs neither what is known of the object nor other constraints anything.
func TestErrorsOfResultants(t *testing.T) {
	const program = `package a
violation[{"msg": 5}] { input.review.object.kind == "Pod"; input.parameters.count == 1 }
violation[{"msg": "own"}] { input.review.object.kind == "Deployment"; input.parameters.label == "own" }
violation[{"msg": "bad"}] { input.review.object.kind == "Pod"; input.parameters.count == 2 }`
	got := say(t, expanding(t, nil, program, []string{expandDeployments},
		testConstraint("error", "parameters: {count: 1}\nenforcementAction: warn"),
		testConstraint("error-beside", "parameters: {count: 1, label: own}"),
		testConstraint("fails", "parameters: {count: 2}"),
		testConstraint("passes", "parameters: {count: 3}"),
		testConstraint("namespace", "{parameters: {count: 2}, match: {namespaceSelector: {}, kinds: [{kinds: [Pod]}]}}")), deploymentManifest)
	want := map[string]string{
		"error":        "error warn: [Implied by deployments] template Test: msg of a violation is a number, want a string: 5",
		"error-beside": "fail deny, own: [Implied by deployments] template Test: msg of a violation is a number, want a string: 5",
		"fails":        "fail deny, [Implied by deployments] bad",
		"passes":       "pass",
		"namespace":    "error deny: [Implied by deployments] match: namespace shop: the Namespace of the object is not known, so namespaceSelector cannot be evaluated",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}

	inventory := expanding(t, nil, `package a
violation[{"msg": "m"}] { data.inventory.cluster["v1"]; input.review.object.kind != "x" }`, []string{expansionManifest("deployments", "apps", "Deployment", "spec.template", "", "Pod", "warn")}, testConstraint("c", podsOnly))
	if got := say(t, inventory, deploymentManifest)["c"]; !strings.HasPrefix(got, "deferred warn: [Implied by deployments] ") {
		t.Errorf("a resultant under a policy that has to wait: %s", got)
	}
}

// A resultant that cannot be made is an error of the constraints that might have
// applied to it, or to what is made of it.
func TestResultantsThatCannotBeMade(t *testing.T) {
	set := expanding(t, nil, sayKind, []string{expandCronJobs, expandJobs, expansionManifest("secrets", "batch", "CronJob", "spec", "", "Secret", "dryrun")},
		testConstraint("cronjobs", "match: {kinds: [{kinds: [CronJob]}]}"),
		testConstraint("jobs", "match: {kinds: [{kinds: [Job]}]}"),
		testConstraint("pods", "match: {kinds: [{kinds: [Pod]}], labelSelector: {matchLabels: {a: b}}, name: x}"),
		testConstraint("here", "match: {kinds: [{kinds: [Pod]}], namespaces: [shop]}"),
		testConstraint("elsewhere", "match: {kinds: [{kinds: [Pod]}], excludedNamespaces: [shop]}"),
		testConstraint("original", "match: {source: Original}"),
		testConstraint("secrets", "match: {kinds: [{kinds: [Secret]}]}"),
		testConstraint("all", "{}"))
	failure := "[Implied by cronjobs] no Job can be made of CronJob c: spec.jobTemplate is missing, which spec.templateSource needs"
	want := map[string]string{
		"cronjobs":  "fail deny, CronJob",
		"jobs":      "error deny: " + failure,
		"pods":      "error deny: " + failure,
		"here":      "error deny: " + failure,
		"elsewhere": "not matched",
		"original":  "fail deny, CronJob",
		"secrets":   "fail dryrun, [Implied by secrets] Secret",
		"all":       "fail deny, CronJob, [Implied by secrets] Secret: " + failure,
	}
	if diff := cmp.Diff(want, say(t, set, "{apiVersion: batch/v1, kind: CronJob, metadata: {name: c, namespace: shop}, spec: {}}")); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// An object is expanded when a constraint asks for that, and once.
func TestExpandedOnce(t *testing.T) {
	set := expanding(t, nil, sayKind, []string{expandDeployments}, testConstraint("services", "match: {kinds: [{kinds: [Service]}]}"), testConstraint("pods", podsOnly), testConstraint("all", "{}"))
	byName := map[string]*Constraint{}
	for _, c := range set.Constraints() {
		byName[c.ID.Name] = c
	}
	o := subject(parse(t, deploymentManifest), nil)
	Review(t.Context(), o, []*Constraint{byName["services"]})
	if o.expandedBy != nil {
		t.Error("expanded for a constraint that no resultant matches")
	}
	Review(t.Context(), o, []*Constraint{byName["pods"]})
	made := o.expanded
	if made == nil || len(made.resultants) != 1 {
		t.Fatalf("expanded to %+v", made)
	}
	Review(t.Context(), o, []*Constraint{byName["all"], byName["pods"]})
	if o.expanded != made {
		t.Error("expanded twice")
	}
	pod := subject(parse(t, podManifest), nil)
	forget := func() { pod.expandedBy = nil; pod.expand(set.expansion) }
	if allocs := testing.AllocsPerRun(10, forget); allocs > 0 || pod.expanded != nil {
		t.Errorf("%v allocations for an object of a kind without ExpansionTemplates", allocs)
	}
}

// ValidatingAdmissionPolicies know nothing of ExpansionTemplates.
func TestAdmissionPoliciesDoNotSeeResultants(t *testing.T) {
	in := Inputs{
		ExpansionTemplates: []*unstructured.Unstructured{parse(t, expandDeployments)},
		AdmissionPolicies: []*unstructured.Unstructured{parse(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p}
spec:
  matchConstraints: {resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE], resources: [pods]}]}
  validations: [{expression: "false"}]`)},
		AdmissionBindings: []*unstructured.Unstructured{parse(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b}
spec: {policyName: p, validationActions: [Deny]}`)},
	}
	set := Compile(t.Context(), in, nil)
	if len(set.Constraints()) != 1 {
		t.Fatalf("rejected: %+v", set.Rejections())
	}
	kind := Kind{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Resource: "deployments", Namespaced: true}
	if chosen := set.ForKind(kind); len(chosen) != 0 {
		t.Errorf("chosen for Deployments: %v", chosen[0].ID)
	}
	v := Review(t.Context(), NewObject(kind, parse(t, deploymentManifest), nil), set.Constraints())[0]
	if v.Outcome != NotMatched || v.EnforcementAction != "deny" {
		t.Errorf("%+v", v)
	}
}
