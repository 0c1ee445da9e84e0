package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const otherPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns, labels: {app: w}}\n"

var alice = User{Name: "alice", UID: "7", Groups: []string{"dev", "system:authenticated"}, Extra: map[string][]string{"scopes": {"a", "b"}}}

// requests of each operation for a Pod, by alice.
func requests(t testing.TB) map[string]Request {
	t.Helper()
	options := func(kind string) map[string]any {
		return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": kind}
	}
	object, old := parse(t, podManifest), parse(t, otherPod)
	return map[string]Request{
		OperationCreate: {UID: "u", Operation: OperationCreate, Object: object, User: alice, Options: options("CreateOptions")},
		OperationUpdate: {UID: "u", Operation: OperationUpdate, Object: object, OldObject: old, User: alice, Options: options("UpdateOptions"), DryRun: true},
		OperationDelete: {UID: "u", Operation: OperationDelete, OldObject: old, User: alice},
	}
}

// verdictText of a verdict in a line.
func verdictText(v *Verdict) string {
	text := [...]string{"not matched", "pass", "fail", "error", "deferred"}[v.Outcome]
	for _, violation := range v.Violations {
		text += " " + violation.Message
	}
	for _, more := range []string{v.Message, v.Reason} {
		if more != "" {
			text += ": " + more
		}
	}
	return text
}

// judgeRequest returns the verdicts on a request by the names of the constraints.
func judgeRequest(set *Set, r Request, namespace *unstructured.Unstructured) map[string]string {
	out := map[string]string{}
	verdicts := Review(context.Background(), NewRequest(podResource, r, namespace), set.At(PointAll))
	for i := range verdicts {
		out[verdicts[i].Constraint.ID.Name] = verdictText(&verdicts[i])
	}
	return out
}

// TestRequestOfRego compares input.review with what the API server sends to webhooks,
// and Gatekeeper makes of it.
func TestRequestOfRego(t *testing.T) {
	set := compile(t, testTemplate(`package a
violation[{"msg": msg}] {
  msg := json.marshal(json.remove(input.review, ["object/metadata/name", "object/kind", "object/apiVersion", "object/metadata/namespace", "oldObject/metadata/name", "oldObject/kind", "oldObject/apiVersion", "oldObject/metadata/namespace"]))
}`), testConstraint("c", "{}"))
	common := `"dryRun":%s,"kind":{"group":"","kind":"Pod","version":"v1"},"name":"p","namespace":"ns","namespaceObject":{},` +
		`"object":{"metadata":{"labels":{"app":"%s"}}},"oldObject":%s,"operation":"%s","options":%s,` +
		`"requestKind":{"group":"","kind":"Pod","version":"v1"},"requestResource":{"group":"","resource":"pods","version":"v1"},` +
		`"resource":{"group":"","resource":"pods","version":"v1"},"uid":"u",` +
		`"userInfo":{"extra":{"scopes":["a","b"]},"groups":["dev","system:authenticated"],"uid":"7","username":"alice"}`
	old := `{"metadata":{"labels":{"app":"w"}}}`
	for operation, want := range map[string]string{
		OperationCreate: fmt.Sprintf(common, "false", "x", "null", "CREATE", `{"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}`),
		OperationUpdate: fmt.Sprintf(common, "true", "x", old, "UPDATE", `{"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}`),
		OperationDelete: fmt.Sprintf(common, "false", "w", old, "DELETE", "null"), // the object is the old one
	} {
		got := judgeRequest(set, requests(t)[operation], nil)
		if diff := cmp.Diff(map[string]string{"c": "fail {" + want + "}"}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", operation, diff)
		}
	}
}

func TestRequestOfCEL(t *testing.T) {
	set := compile(t, celTemplate(`
validations:
- expression: "false"
  messageExpression: >-
    request.operation + ' ' + request.userInfo.username + ' ' + request.resource.resource +
    ' object=' + string(object == null) + ' old=' + string(oldObject == null) + ' any=' + string(variables.anyObject.metadata.labels.app) + ' dry=' + string(request.dryRun)`),
		testConstraint("c", "{}"))
	for operation, want := range map[string]string{
		OperationCreate: "fail CREATE alice pods object=false old=true any=x dry=false",
		OperationUpdate: "fail UPDATE alice pods object=false old=false any=x dry=true",
		OperationDelete: "fail DELETE alice pods object=true old=false any=w dry=false",
	} {
		if diff := cmp.Diff(map[string]string{"c": want}, judgeRequest(set, requests(t)[operation], nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", operation, diff)
		}
	}
}

// TestRequestOfAdmissionPolicies judges by policies that an audit defers.
func TestRequestOfAdmissionPolicies(t *testing.T) {
	policies := map[string]string{
		"user":       `validations: [{expression: "request.userInfo.username != 'alice' || !('dev' in request.userInfo.groups)", message: alice}]`,
		"old":        `validations: [{expression: "oldObject == null || object == null || object.metadata.labels.app == oldObject.metadata.labels.app", message: app changes}]`,
		"gone":       `validations: [{expression: "request.operation != 'DELETE' || object != null", message: gone}]`,
		"options":    `validations: [{expression: "!has(request.options) || !has(request.options.kind) || request.options.kind != 'CreateOptions'", message: created}]`,
		"authorizer": `validations: [{expression: "authorizer.group('').resource('pods').check('get').allowed()", message: may not}]`,
		"condition":  "matchConditions: [{name: c, expression: \"request.userInfo.username == 'bob'\"}]\nvalidations: [{expression: \"false\", message: bob}]",
	}
	rules := `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: ["*"], resources: [pods]}]}` + "\n"
	var objects, bindings []string
	for name, spec := range policies {
		objects = append(objects, admissionPolicyManifest(name, rules+spec))
		bindings = append(bindings, admissionBindingManifest(name, "policyName: "+name+"\nvalidationActions: [Deny]"))
	}
	objects = append(objects, admissionPolicyManifest("deletes", strings.Replace(rules, `"*"`, "DELETE", 1)+`validations: [{expression: "oldObject.metadata.name != 'p'", message: stays}]`))
	bindings = append(bindings,
		admissionBindingManifest("deletes", "policyName: deletes\nvalidationActions: [Deny]"),
		admissionBindingManifest("labelled", "policyName: gone\nvalidationActions: [Deny]\nmatchResources: {objectSelector: {matchLabels: {app: w}}}"))
	set := Compile(context.Background(), admissionInputs(t, objects, bindings), nil)
	if len(set.Rejections()) > 0 {
		t.Fatal(set.Rejections())
	}
	const authorizer = "deferred: the policy asks the authorizer, and there is none here: authorizer (in spec.validations[0].expression)"
	const condition = "not matched: a match condition of the policy is false"
	const rulesOut = "not matched: spec.matchConstraints of the policy has no rule for it"
	for operation, want := range map[string]map[string]string{
		OperationCreate: {
			"user": "fail alice", "old": "pass", "gone": "pass", "options": "fail created", "authorizer": authorizer, "condition": condition,
			"deletes": rulesOut, "labelled": "not matched: a selector in spec.matchResources of the binding does not select it",
		},
		OperationUpdate: {
			"user": "fail alice", "old": "fail app changes", "gone": "pass", "options": "pass", "authorizer": authorizer, "condition": condition,
			"deletes": rulesOut, "labelled": "pass", // by the old object
		},
		OperationDelete: {
			"user": "fail alice", "old": "pass", "gone": "fail gone", "options": "pass", "authorizer": authorizer, "condition": condition,
			"deletes": "fail stays", "labelled": "fail gone",
		},
	} {
		if diff := cmp.Diff(want, judgeRequest(set, requests(t)[operation], parse(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: ns}\n"))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", operation, diff)
		}
	}
}

// TestRequestAndAuditShareTheMemo judges by the same programs in turn: what is
// remembered of one must not be taken for the other where the program can tell.
func TestRequestAndAuditShareTheMemo(t *testing.T) {
	for name, body := range map[string]string{
		"operation": `msg := sprintf("op %v", [input.review.operation])`,
		"user":      `msg := sprintf("user %v", [input.review.userInfo])`,
		"old":       `msg := sprintf("old %v", [input.review.oldObject != null])`,
		"whole":     `r := input.review; msg := sprintf("keys %v", [count(r)])`,
		"resource":  `msg := sprintf("resource %v", [input.review.resource.resource])`,
		"dry run":   `msg := sprintf("dry %v", [object.get(input.review, "dryRun", "absent")])`,
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, testTemplate("package a\nviolation[{\"msg\": msg}] { "+body+" }"), testConstraint("c", "{}"))
			audited := func() string {
				v := Review(context.Background(), NewObject(podResource, parse(t, podManifest), nil), set.Constraints())
				return verdictText(&v[0])
			}
			first := audited()
			for _, operation := range []string{OperationCreate, OperationUpdate, OperationCreate} {
				fresh := compile(t, testTemplate("package a\nviolation[{\"msg\": msg}] { "+body+" }"), testConstraint("c", "{}"))
				r := requests(t)[operation]
				if diff := cmp.Diff(judgeRequest(fresh, r, nil), judgeRequest(set, r, nil)); diff != "" {
					t.Errorf("%s, without and with what is remembered (-want +got):\n%s", operation, diff)
				}
			}
			if again := audited(); again != first {
				t.Errorf("audited first %q, then %q", first, again)
			}
		})
	}
}

func TestRequestMatches(t *testing.T) {
	template := testTemplate(`package a
violation[{"msg": "x"}] { true }`)
	create := requests(t)[OperationCreate]
	for _, test := range []struct {
		match string
		r     Request
		want  string
	}{
		{"labelSelector: {matchLabels: {app: w}}", requests(t)[OperationCreate], "not matched: spec.match.labelSelector"},
		{"labelSelector: {matchLabels: {app: w}}", requests(t)[OperationUpdate], "fail x"}, // by the old object
		{"labelSelector: {matchLabels: {app: x}}", requests(t)[OperationUpdate], "fail x"},
		{"labelSelector: {matchLabels: {app: z}}", requests(t)[OperationUpdate], "not matched: spec.match.labelSelector"},
		{"labelSelector: {matchLabels: {app: w}}", requests(t)[OperationDelete], "fail x"},
		{"labelSelector: {matchLabels: {app: x}}", requests(t)[OperationDelete], "not matched: spec.match.labelSelector"},
		{"source: Original", requests(t)[OperationCreate], "fail x"},
		{"source: Generated", requests(t)[OperationCreate], "not matched: spec.match.source"},
		{"source: All", create, "fail x"},
		{"kinds: [{kinds: [Service]}]", create, "not matched: spec.match.kinds"},
		{"name: q", create, "not matched: spec.match.name"},
		{"namespaces: [a]", create, "not matched: spec.match.namespaces"},
		{"excludedNamespaces: [n*]", create, "not matched: spec.match.excludedNamespaces"},
		{"scope: Cluster", create, "not matched: spec.match.scope"},
		{"namespaceSelector: {matchLabels: {a: b}}", create, "error: match: namespace ns: the Namespace of the object is not known, so namespaceSelector cannot be evaluated"},
	} {
		set := compile(t, template, testConstraint("c", "match: {"+test.match+"}"))
		if got := judgeRequest(set, test.r, nil)["c"]; got != test.want {
			t.Errorf("%s of %s: %q, want %q", test.match, test.r.Operation, got, test.want)
		}
	}
}

// TestOperationsOfTemplates leave audits alone.
func TestOperationsOfTemplates(t *testing.T) {
	always := testTemplate("package a\nviolation[{\"msg\": \"x\"}] { true }")
	for operations, want := range map[string]string{"": "CREATE UPDATE DELETE", "[CREATE, DELETE]": "CREATE DELETE", `["*"]`: "CREATE UPDATE DELETE"} {
		template := always
		if operations != "" {
			template = strings.Replace(always, "    rego: |", "    operations: "+operations+"\n    rego: |", 1)
		}
		set := compile(t, template, testConstraint("c", "{}"))
		var got []string
		for _, operation := range []string{OperationCreate, OperationUpdate, OperationDelete} {
			if text := judgeRequest(set, requests(t)[operation], nil)["c"]; text == "fail x" {
				got = append(got, operation)
			} else if text != "not matched: operations of the template" {
				t.Errorf("%s, %s: %s", operations, operation, text)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("operations %s judge %v, want %s", operations, got, want)
		}
		if diff := cmp.Diff(map[string]string{"c": "fail x"}, review(t, set)); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
	}
}

func TestEnforcementPoints(t *testing.T) {
	scoped := func(entries string) string { return "enforcementAction: scoped\nscopedEnforcementActions: " + entries }
	in := admissionInputs(t, []string{admissionPolicyManifest("p", noPods)}, []string{
		admissionBindingManifest("binding", "policyName: p\nvalidationActions: [Warn, Audit]"),
	})
	in.Templates = append(in.Templates, parse(t, testTemplate(needLabel)))
	for _, c := range []string{
		testConstraint("deny", "{}"),
		testConstraint("dry", "enforcementAction: dryrun"),
		testConstraint("webhook", scoped("[{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}]")),
		testConstraint("both", scoped("[{action: warn, enforcementPoints: [{name: audit.gatekeeper.sh}]}, {action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}, {name: gator.gatekeeper.sh}]}]")),
		testConstraint("anywhere", scoped(`[{action: warn, enforcementPoints: [{name: "*"}]}]`)),
		testConstraint("nowhere", scoped("[]")),
	} {
		in.Constraints = append(in.Constraints, parse(t, c))
	}
	set := Compile(context.Background(), in, nil)
	if len(set.Rejections()) > 0 {
		t.Fatal(set.Rejections())
	}
	got := map[string]map[string][]string{}
	for _, point := range Points() {
		got[point] = map[string][]string{}
		for _, c := range set.At(point) {
			got[point][c.ID.Name] = c.ActionsAt(point)
		}
	}
	deny, warn, dry := []string{"deny"}, []string{"warn"}, []string{"dryrun"}
	want := map[string]map[string][]string{
		PointAll:             {"deny": deny, "dry": dry, "webhook": deny, "both": {"deny", "warn"}, "anywhere": warn, "binding": {"audit", "warn"}},
		PointAudit:           {"deny": deny, "dry": dry, "both": warn, "anywhere": warn, "binding": {"audit", "warn"}},
		PointWebhook:         {"deny": deny, "dry": dry, "webhook": deny, "both": deny, "anywhere": warn},
		PointGator:           {"deny": deny, "dry": dry, "both": deny, "anywhere": warn},
		PointAdmissionPolicy: {"binding": {"audit", "warn"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if again := Compile(context.Background(), in, set); again.At(PointWebhook)[0] != set.At(PointWebhook)[0] {
		t.Error("a constraint that is not audited is not taken from the set before")
	}
}

// TestAuthorizer asks the one of the request about its user.
func TestAuthorizer(t *testing.T) {
	set := Compile(context.Background(), admissionInputs(t,
		[]string{admissionPolicyManifest("p", podRules+`
validations: [{expression: "authorizer.group('').resource('pods').namespace('ns').check('get').allowed()", message: may not}]`)},
		[]string{admissionBindingManifest("p", "policyName: p\nvalidationActions: [Deny]")}), nil)
	r := requests(t)[OperationCreate]
	for name, want := range map[string]string{"alice": "pass", "bob": "fail may not"} {
		r.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() == "alice" && a.GetVerb() == "get" && a.GetNamespace() == "ns" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionDeny, "", nil
		})
		r.User.Name = name
		if got := judgeRequest(set, r, nil)["p"]; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
