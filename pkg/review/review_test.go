package review

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// world is a snapshot that a test describes.
type world struct {
	set        *policy.Set
	missing    []string
	namespaces map[string]*unstructured.Unstructured
	failing    error
	// others are further versions of kinds, groups fail.
	others []policy.Kind
	groups map[string]error
}

func (w *world) Set() *policy.Set                                 { return w.set }
func (w *world) Missing() []string                                { return w.missing }
func (w *world) Namespace(name string) *unstructured.Unstructured { return w.namespaces[name] }

func (w *world) Namespaces() []string { return slices.Sorted(maps.Keys(w.namespaces)) }

func (w *world) Kinds() (preferred, others []policy.Kind, failed map[string]error) {
	for _, gk := range []schema.GroupKind{{Kind: "Pod"}, {Kind: "ConfigMap"}, {Kind: "Namespace"}, {Group: "apps", Kind: "Deployment"}} {
		kind, _, _ := w.Kind(gk)
		preferred = append(preferred, kind)
	}
	return preferred, w.others, w.groups
}

func (w *world) Kind(gk schema.GroupKind) (policy.Kind, bool, error) {
	namespaced, ok := map[schema.GroupKind]bool{
		{Kind: "Pod"}: true, {Kind: "ConfigMap"}: true, {Kind: "Namespace"}: false, {Kind: "ReplicationController"}: true,
		{Group: "apps", Kind: "Deployment"}: true, {Group: "apps", Kind: "StatefulSet"}: true, {Group: "apps", Kind: "DaemonSet"}: true,
		{Group: "apps", Kind: "ReplicaSet"}: true, {Group: "batch", Kind: "Job"}: true, {Group: "batch", Kind: "CronJob"}: true,
	}[gk]
	if !ok {
		return policy.Kind{}, false, w.failing
	}
	return policy.Kind{GroupVersionKind: gk.WithVersion("v1"), Resource: strings.ToLower(gk.Kind) + "s", Namespaced: namespaced}, true, nil
}

func parse(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(toJSON(t, manifest)); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	return obj
}

func toJSON(t testing.TB, manifest string) []byte {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	return data
}

// spec reads a ReviewSpec.
func spec(t testing.TB, text string) *v1alpha1.ReviewSpec {
	t.Helper()
	out := &v1alpha1.ReviewSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// template of a kind, whose program has a body.
func template(kind, body string) string {
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: %s}
spec:
  crd: {spec: {names: {kind: %s}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg}] { %s }
`, strings.ToLower(kind), kind, body)
}

func constraint(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: %s\nmetadata: {name: %s}\nspec: {%s}\n", kind, name, spec)
}

// newWorld has constraints that need a label owner of everything, forbid privileged
// Pods, and say who asks.
func newWorld(t testing.TB, more ...string) *world {
	t.Helper()
	var in policy.Inputs
	for _, text := range append([]string{
		template("Owner", `not input.review.object.metadata.labels.owner; msg := "no owner"`),
		template("Privileged", `c := input.review.object.spec.containers[_]; c.privileged; msg := sprintf("%v is privileged in %v of %v by %v", [c.name, input.review.object.metadata.name, input.review.namespaceObject.metadata.labels.tier, input.review.userInfo.username])`),
		template("Asked", `msg := sprintf("%v %v %v", [input.review.operation, input.review.userInfo, input.review.oldObject])`),
		constraint("Owner", "owner", "enforcementAction: warn"),
		constraint("Privileged", "privileged", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}`),
		constraint("Asked", "asked", `enforcementAction: scoped, scopedEnforcementActions: [{action: dryrun, enforcementPoints: [{name: gator.gatekeeper.sh}]}]`),
	}, more...) {
		switch obj := parse(t, text); obj.GetKind() {
		case "ConstraintTemplate":
			in.Templates = append(in.Templates, obj)
		case "ExpansionTemplate":
			in.ExpansionTemplates = append(in.ExpansionTemplates, obj)
		case "Config":
			in.Configs = append(in.Configs, obj)
		default:
			in.Constraints = append(in.Constraints, obj)
		}
	}
	return &world{
		set:        policy.Compile(context.Background(), in, nil),
		namespaces: map[string]*unstructured.Unstructured{"shop": parse(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {tier: gold}}}")},
	}
}

// lines are the verdicts of an answer, a line each.
func lines(status *v1alpha1.ReviewStatus) []string {
	out := []string{fmt.Sprintf("allowed=%v %d %d %d %d", status.Allowed, status.Evaluated, status.Failed, status.Errors, status.Deferred)}
	for _, v := range status.Verdicts {
		line := fmt.Sprintf("%d %s %s/%s %s", v.Index, v.Resource.Kind, v.Resource.Namespace, v.Resource.Name, v.Constraint.Name)
		if v.Implied != nil {
			line += " " + v.Implied.Name
		}
		line += fmt.Sprintf(" %v %s", v.EnforcementActions, v.Result)
		for _, violation := range v.Violations {
			line += " " + violation.Message
		}
		out = append(out, line+v.Message+v.Reason)
	}
	return append(out, status.Notes...)
}

func evaluate(t testing.TB, w *world, r Request) []string {
	t.Helper()
	if r.User.Name == "" {
		r.User = policy.User{Name: "alice"}
	}
	status, err := Evaluate(context.Background(), w, r)
	if err != nil {
		return []string{err.Error()}
	}
	if status.PolicyDigest != w.set.Digest() || status.Duration.Duration <= 0 {
		t.Errorf("digest %q, duration %v", status.PolicyDigest, status.Duration)
	}
	return lines(status)
}

const (
	goodPod = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop, labels: {owner: me}}, spec: {containers: [{name: c}]}}"
	badPod  = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, spec: {containers: [{name: c, privileged: true}]}}"
)

func TestEvaluate(t *testing.T) {
	const webhook = "enforcementPoint: validation.gatekeeper.sh\n"
	for _, test := range []struct {
		name, spec string
		want       []string
	}{
		{"a good object", webhook + "object: " + goodPod, []string{
			"allowed=true 2 0 0 0",
			"0 Pod shop/p owner [warn] pass",
			"0 Pod shop/p privileged [deny] pass",
		}},
		{"what denies", webhook + "object: " + badPod, []string{
			"allowed=false 2 2 0 0",
			"0 Pod shop/p owner [warn] fail no owner",
			"0 Pod shop/p privileged [deny] fail c is privileged in p of gold by alice",
		}},
		{"what warns", webhook + "object: {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop}}", []string{
			"allowed=true 1 1 0 0",
			"0 ConfigMap shop/c owner [warn] fail no owner",
		}},
		{"the default namespace", webhook + "object: {apiVersion: v1, kind: ConfigMap, metadata: {generateName: c-}}", []string{
			"allowed=true 1 1 0 0",
			"0 ConfigMap default/c- owner [warn] fail no owner",
			"there is no Namespace default; it can be given in spec.namespaceObjects",
		}},
		{"a namespace for what is in none", webhook + "object: {apiVersion: v1, kind: Namespace, metadata: {name: new, namespace: shop, labels: {owner: a}}}", []string{
			"allowed=true 1 0 0 0", "0 Namespace /new owner [warn] pass",
		}},
		{"explained", webhook + "explain: true\nobject: {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop, labels: {owner: a}}}", []string{
			"allowed=true 1 0 0 0",
			"0 ConfigMap shop/c owner [warn] pass",
			"0 ConfigMap shop/c privileged [deny] notMatchedspec.match.kinds",
		}},
		{"some constraints", "constraints: [{kind: Owner}, {engine: Gatekeeper, kind: Asked, name: asked}]\nobject: " + goodPod, []string{
			"allowed=true 2 1 0 0",
			`0 Pod shop/p asked [dryrun] fail CREATE {"username": "alice"} null`,
			"0 Pod shop/p owner [warn] pass",
		}},
		{"an update", "constraints: [{kind: Asked}]\noperation: UPDATE\nobject: " + goodPod + "\noldObject: {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}}", []string{
			"allowed=true 1 1 0 0",
			`0 Pod shop/p asked [dryrun] fail UPDATE {"username": "alice"} {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop"}}`,
		}},
		{"a delete", "operation: DELETE\nenforcementPoint: validation.gatekeeper.sh\noldObject: " + badPod, []string{
			"allowed=false 2 2 0 0",
			"0 Pod shop/p owner [warn] fail no owner",
			"0 Pod shop/p privileged [deny] fail c is privileged in p of gold by alice",
		}},
		{"a Namespace that is given", webhook + "namespaceObjects: [{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {tier: tin}}}]\nconstraints: [{kind: Privileged}]\nobject: " + badPod, []string{
			"allowed=false 1 1 0 0",
			"0 Pod shop/p privileged [deny] fail c is privileged in p of tin by alice",
		}},
		{"a Namespace among the objects", webhook + "constraints: [{kind: Privileged}]\nobjects:\n- {apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {tier: new}}}\n- " + badPod, []string{
			"allowed=false 1 1 0 0",
			"1 Pod shop/p privileged [deny] fail c is privileged in p of new by alice",
		}},
		{"another version", webhook + "constraints: [{kind: Owner}]\nobject: {apiVersion: apps/v1beta2, kind: Deployment, metadata: {name: d, namespace: shop}}", []string{
			"allowed=true 1 1 0 0",
			"0 Deployment shop/d owner [warn] fail no owner",
			"apps/v1beta2 Deployment is judged as it is written; the cluster prefers the version v1",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, evaluate(t, newWorld(t), Request{Spec: spec(t, test.spec)})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestAudit judges as the audit does: without operation and user, and without Pods.
func TestAudit(t *testing.T) {
	w := newWorld(t, constraint("Asked", "everywhere", ""))
	got := evaluate(t, w, Request{Spec: spec(t, "enforcementPoint: audit.gatekeeper.sh\nconstraints: [{kind: Asked}]\nobject: {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: shop}, spec: {template: {spec: {}}}}")})
	want := []string{"allowed=false 1 1 0 0", "0 Deployment shop/d everywhere [deny] fail  {} null"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPoliciesThatAreNotThere never makes the answer look clean.
func TestPoliciesThatAreNotThere(t *testing.T) {
	w := newWorld(t,
		template("Broken", "msg := nonsense("), constraint("Broken", "broken", ""),
		template("Faulty", `msg := 7`), constraint("Faulty", "faulty", ""),
		template("Referring", `data.inventory.cluster; msg := "x"`), constraint("Referring", "referring", ""))
	w.missing = []string{"Absent"}
	got := evaluate(t, w, Request{Spec: spec(t, "enforcementPoint: validation.gatekeeper.sh\nobject: "+goodPod)})
	want := []string{
		"allowed=false 3 0 1 1",
		"0 Pod shop/p faulty [deny] errortemplate Faulty: msg of a violation is a number, want a string: 7",
		"0 Pod shop/p owner [warn] pass",
		"0 Pod shop/p privileged [deny] pass",
		"0 Pod shop/p referring [deny] deferredthe objects of data.inventory are not loaded yet",
		"2 policies are rejected and judge nothing; constraintsummaries say why",
		"policies of kind Absent cannot be listed and judge nothing",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	got = evaluate(t, w, Request{Spec: spec(t, "constraints: [{kind: Broken, name: broken}, {kind: Owner, name: other}]\nobject: "+goodPod)})
	if len(got) != 1 || !strings.Contains(got[0], `spec.constraints[0]: Invalid value: "Broken/broken": it is rejected: template broken`) ||
		!strings.Contains(got[0], `spec.constraints[1]: Not found: "Owner/other"`) {
		t.Errorf("constraints that cannot judge: %v", got)
	}
}

// TestLive judges what spec.resource refers to.
func TestLive(t *testing.T) {
	for operation, want := range map[string]string{
		"CREATE": `fail CREATE {"username": "alice"} null`,
		"UPDATE": `fail UPDATE {"username": "alice"} {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop"}}`,
		"DELETE": `fail DELETE {"username": "alice"} {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop"}}`,
	} {
		r := Request{
			Spec: spec(t, "operation: "+operation+"\nconstraints: [{kind: Asked}]\nresource: {apiVersion: v1, kind: ConfigMap, namespace: shop, name: c}"),
			Live: parse(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop}}"),
		}
		if diff := cmp.Diff([]string{"allowed=true 1 1 0 0", "0 ConfigMap shop/c asked [dryrun] " + want}, evaluate(t, newWorld(t), r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", operation, diff)
		}
		r.Namespace = "other"
		if got := evaluate(t, newWorld(t), r); !strings.Contains(got[0], `spec.resource.namespace: Invalid value: "shop"`) {
			t.Errorf("in a LocalReview of another namespace: %v", got)
		}
	}
}

// TestDeadline ends a review, and says how far it was.
func TestDeadline(t *testing.T) {
	w := newWorld(t, template("Endless", `count([x | x := numbers.range(1, 2000)[_]; y := numbers.range(1, 2000)[_]; z := numbers.range(1, 2000)[_]; x + y + z < 0]) > 0; msg := "x"`), constraint("Endless", "endless", ""))
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	started := time.Now()
	_, err := Evaluate(ctx, w, Request{Spec: spec(t, "objects: ["+goodPod+", "+badPod+"]")})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "0 of 2 objects were judged") {
		t.Errorf("error: %v", err)
	}
	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestLimitsOfTheAnswer cut and say so.
func TestLimitsOfTheAnswer(t *testing.T) {
	w := newWorld(t,
		template("Long", `msg := concat("", [sprintf("%d é", [x]) | x := numbers.range(1, 4000)[_]])`), constraint("Long", "long", ""),
		template("Many", `x := numbers.range(1, 200)[_]; msg := sprintf("%d", [x])`), constraint("Many", "many", ""))
	status, err := Evaluate(context.Background(), w, Request{Spec: spec(t, "constraints: [{kind: Long}, {kind: Many}]\nobject: "+goodPod)})
	if err != nil {
		t.Fatal(err)
	}
	if v := status.Verdicts[0]; !v.Truncated || len(v.Violations[0].Message) > maxMessageBytes || !strings.HasPrefix(v.Violations[0].Message, "1 é2 é") {
		t.Errorf("a long message: %v, %d bytes", v.Truncated, len(v.Violations[0].Message))
	}
	if v := status.Verdicts[1]; !v.Truncated || len(v.Violations) != maxViolations {
		t.Errorf("many violations: %v, %d", v.Truncated, len(v.Violations))
	}
	pod, err := json.Marshal(parse(t, goodPod).Object)
	if err != nil {
		t.Fatal(err)
	}
	big := &v1alpha1.ReviewSpec{Constraints: []v1alpha1.ReviewConstraint{{Kind: "Owner"}}}
	for range MaxObjects {
		big.Objects = append(big.Objects, runtime.RawExtension{Raw: pod})
	}
	var more []string
	for i := range 120 {
		more = append(more, constraint("Owner", fmt.Sprintf("o%d", i), ""))
	}
	status, err = Evaluate(context.Background(), newWorld(t, more...), Request{Spec: big})
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Verdicts) != maxVerdicts || status.Evaluated != 121*MaxObjects || len(status.Notes) != 1 {
		t.Errorf("%d verdicts, %d evaluated, notes %v", len(status.Verdicts), status.Evaluated, status.Notes)
	}
}

// BenchmarkEvaluate reviews a Deployment by 25 constraints, with its Pod.
func BenchmarkEvaluate(b *testing.B) {
	var more []string
	for i := range 23 {
		more = append(more, constraint([]string{"Owner", "Privileged"}[i%2], fmt.Sprintf("c%d", i), ""))
	}
	w := newWorld(b, more...)
	request := Request{User: policy.User{Name: "alice"}, Spec: &v1alpha1.ReviewSpec{
		EnforcementPoint: policy.PointWebhook,
		Object:           &runtime.RawExtension{Raw: toJSON(b, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: {spec: {containers: [{name: c, privileged: true}]}}}}")},
	}}
	b.ReportAllocs()
	for b.Loop() {
		status, err := Evaluate(context.Background(), w, request)
		if err != nil || status.Failed == 0 {
			b.Fatal(status, err)
		}
	}
}
