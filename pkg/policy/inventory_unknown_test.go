package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// openKind names kinds in other objects, as policies about the targets of
	// HorizontalPodAutoscalers do.
	openKind = `package a
violation[{"msg": "no target"}] {
  ref := input.review.object.spec.ref
  not data.inventory.namespace["ns"][ref.apiVersion][ref.kind][ref.name]
}`
	openAndNamed = `package a
violation[{"msg": "x"}] { data.inventory.cluster["v1"]["Node"][_] }
violation[{"msg": "x"}] { data.inventory.namespace[_][_][_][_].spec.x }`
	namedInAnyGroup = `package a
violation[{"msg": "x"}] { data.inventory.namespace[_][_]["Ingress"][_].spec.x }`

	needsService = `[[{"groups": [""], "versions": ["v1"], "kinds": ["Service"]}]]`
	needsGone    = `[[{"groups": ["gone.example.com"], "versions": ["v1"], "kinds": ["Gone"]}]]`
	noKinds      = "4 the policy reads data.inventory, and it does not say of which kinds; name them in the template's annotation metadata.gatekeeper.sh/requires-sync-data, or in a SyncSet"
	noAnswer     = `4 the policy reads data.inventory, and the kinds of the API group %q are not known: no answer`
)

// What can be known of the kinds that a program reads is evaluated, and the rest is
// deferred, part by part.
func TestInventoryOfUnknownKinds(t *testing.T) {
	const node, service, pod = "{apiVersion: v1, kind: Node, metadata: {name: n}}",
		"{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ns}, spec: {ref: {apiVersion: v1, kind: Service, name: s}, x: 1}}"
	syncGone := "{apiVersion: syncset.gatekeeper.sh/v1alpha1, kind: SyncSet, metadata: {name: s}, spec: {gvks: [{group: gone.example.com, version: v1, kind: Gone}]}}"
	for _, tc := range []struct {
		name, template string
		more           []string
		failed         string
		objects        []string
		want           string
	}{
		{name: "an open kind", template: testTemplate(openKind), want: noKinds},
		{name: "an open kind beside one that is named", template: testTemplate(openAndNamed), objects: []string{node}, want: noKinds},
		{name: "an open kind that is named by the annotation", template: withAnnotation(testTemplate(openKind), needsService), objects: []string{service}, want: "1 "},
		{name: "of which there are no objects", template: withAnnotation(testTemplate(openKind), needsService), want: "2 no target"},
		{name: "that does not exist", template: withAnnotation(testTemplate(openKind), needsGone), want: "2 no target"},
		{name: "that does not exist, in a SyncSet", template: testTemplate(openKind), more: []string{syncGone}, want: "2 no target"},
		{name: "whose group is not known", template: withAnnotation(testTemplate(openKind), needsGone), failed: "gone.example.com", want: fmt.Sprintf(noAnswer, "gone.example.com")},
		{name: "while another group is not known", template: withAnnotation(testTemplate(openKind), needsGone), failed: "other.example.com", want: "2 no target"},
		{name: "whose group is not known, in a SyncSet", template: testTemplate(openKind), more: []string{syncGone}, failed: "gone.example.com", want: fmt.Sprintf(noAnswer, "gone.example.com")},
		{name: "a kind in any group", template: testTemplate(namedInAnyGroup), failed: "other.example.com", want: "1 "},
		{name: "a kind in a group that is not known", template: testTemplate(strings.Replace(namedInAnyGroup, "Ingress", "Gone", 1)), failed: "gone.example.com", want: fmt.Sprintf(noAnswer, "gone.example.com")},
		{name: "a kind that does not exist", template: testTemplate(strings.Replace(namedInAnyGroup, "Ingress", "Gone", 1)), want: "1 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := inputsOf(t, append(tc.more, tc.template, testConstraint("c", "match: {}"))...)
			first := Compile(context.Background(), in, nil)
			var objects []*unstructured.Unstructured
			for _, m := range tc.objects {
				objects = append(objects, parse(t, m))
			}
			failed := map[string]error{}
			if tc.failed != "" {
				failed[tc.failed] = errors.New("no answer")
			}
			in.Inventory = load(t, first, failed, objects...)
			if got := verdictOf(t, Compile(context.Background(), in, first), parse(t, pod), 0); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// A program that reads Events, which are never loaded, is deferred and not clean, however it
// says so.
func TestInventoryOfKindsThatAreNeverLoaded(t *testing.T) {
	events := Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Event"}, Resource: "events", Namespaced: true}
	const want = "4 the policy reads data.inventory, and v1 Event objects are not known: they are a log"
	needsEvents := `[[{"groups": [""], "versions": ["v1"], "kinds": ["Event"]}]]`
	for name, template := range map[string]string{
		"named":              testTemplate(strings.Replace(namedInAnyGroup, "Ingress", "Event", 1)),
		"named by a version": testTemplate("package a\nviolation[{\"msg\": \"x\"}] { data.inventory.namespace[_][\"v1\"].Event[_] }"),
		"by the annotation":  withAnnotation(testTemplate(openKind), needsEvents),
	} {
		t.Run(name, func(t *testing.T) {
			in := inputsOf(t, template, testConstraint("c", "match: {}"))
			first := Compile(context.Background(), in, nil)
			in.Inventory = load(t, first, nil).Without(map[Kind]string{events: "they are a log"})
			pod := parse(t, "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ns}, spec: {ref: {apiVersion: v1, kind: Event, name: s}}}")
			if got := verdictOf(t, Compile(context.Background(), in, first), pod, 0); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	// Others are not concerned.
	in := inputsOf(t, testTemplate(namedInAnyGroup), testConstraint("c", "match: {}"))
	first := Compile(context.Background(), in, nil)
	in.Inventory = load(t, first, nil).Without(map[Kind]string{events: "they are a log"})
	if got := verdictOf(t, Compile(context.Background(), in, first), parse(t, podManifest), 0); got != "1 " {
		t.Errorf("got %s", got)
	}
}

// An object that one program has loaded is there for others as a whole.
func TestInventoryOfSeveralPrograms(t *testing.T) {
	named := testTemplate("package a\nviolation[{\"msg\": \"named\"}] { data.inventory.namespace[_].v1.Service[_].spec.a }")
	open := strings.NewReplacer("name: test", "name: other", "kind: Test", "kind: Other").Replace(
		withAnnotation(testTemplate("package a\nviolation[{\"msg\": msg}] { s := data.inventory.namespace[_][_][_][_].spec.b; msg := sprintf(\"open %v\", [s]) }"), needsGone))
	in := inputsOf(t, named, open, testConstraint("c", "match: {}"), strings.Replace(testConstraint("c", "match: {}"), "kind: Test", "kind: Other", 1))
	first := Compile(context.Background(), in, nil)
	if len(first.Constraints()) != 2 {
		t.Fatalf("rejected: %+v", first.Rejections())
	}
	in.Inventory = load(t, first, nil, parse(t, "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {a: 1, b: 2}}"))
	set := Compile(context.Background(), in, first)
	subject := parse(t, "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ns}}")
	if got := verdictOf(t, set, subject, 0) + ", " + verdictOf(t, set, subject, 1); got != "2 open 2, 2 named" {
		t.Errorf("got %s", got)
	}
}

// verdictOf is the verdict of one of a set's constraints.
func verdictOf(t testing.TB, set *Set, obj *unstructured.Unstructured, i int) string {
	t.Helper()
	v := Review(context.Background(), NewObject(podKind, obj, nil), set.Constraints())[i]
	text := fmt.Sprint(v.Outcome, " ", v.Message)
	for _, violation := range v.Violations {
		text += violation.Message
	}
	return text
}
