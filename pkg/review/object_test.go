package review

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// TestInvalid has the bad input, and what is said about it.
func TestInvalid(t *testing.T) {
	object := func(text string) string { return "object: " + text }
	var many strings.Builder
	for range MaxObjects + 1 {
		many.WriteString("\n- " + goodPod)
	}
	for _, test := range []struct{ spec, want string }{
		{"{}", "spec: Invalid value: 0: a review needs exactly one of object, objects, resource and scope"},
		{"object: null", "spec: Invalid value: 0: a review needs exactly one of object, objects, resource and scope"},
		{"object: " + goodPod + "\nobjects: [" + goodPod + "]", "spec: Invalid value: 2: a review needs exactly one of object, objects, resource and scope"},
		{"operation: DELETE\nobject: " + goodPod, "spec.object: Forbidden: what a DELETE removes is its oldObject"},
		{"operation: DELETE\nobjects: [" + goodPod + "]", "spec.objects: Forbidden: what a DELETE removes is its oldObject"},
		{"operation: DELETE", "spec: Invalid value: 0: a review needs exactly one of oldObject and resource"},
		{"operation: UPDATE\nobject: " + goodPod, "spec.oldObject: Required value: an UPDATE replaces an object"},
		{"operation: UPDATE\nobject: " + goodPod + "\noldObject: {apiVersion: v1, kind: Pod, metadata: {name: q, namespace: shop}}", `spec.oldObject: Invalid value: "Pod q": it is another object than spec.object`},
		{"oldObject: " + goodPod + "\nobject: " + goodPod, "spec.oldObject: Forbidden: a CREATE has no old object; set operation to UPDATE or DELETE"},
		{"operation: CONNECT\nobject: " + goodPod, `spec.operation: Unsupported value: "CONNECT": supported values: "CREATE", "UPDATE", "DELETE"`},
		{"objects:" + many.String(), "spec.objects: Too many: 101: must have at most 100 items"},
		{"enforcementPoint: webhook\nobject: " + goodPod, `spec.enforcementPoint: Unsupported value: "webhook"`},
		{"userInfo: {username: ''}\nobject: " + goodPod, "spec.userInfo.username: Required value"},
		{"constraints: [{engine: OPA, kind: ''}]\nobject: " + goodPod, "[spec.constraints[0].kind: Required value, spec.constraints[0].engine: Unsupported value"},
		{"resource: {apiVersion: v1, kind: Pod, name: ''}", "spec.resource.name: Required value"},
		{"resource: {apiVersion: v1, kind: Pod, name: p}", `spec.resource: Not found: "p"`},
		{object("{apiVersion: v1, metadata: {name: a}}"), "spec.object.kind: Required value: an object has one"},
		{object("{kind: Pod, metadata: {name: a}}"), "spec.object.apiVersion: Required value: an object has one"},
		{object("{apiVersion: a/b/c, kind: Pod, metadata: {name: a}}"), `spec.object.apiVersion: Invalid value: "a/b/c": it has to be VERSION or GROUP/VERSION`},
		{object("{apiVersion: v1, kind: Pod}"), "spec.object.metadata: Required value"},
		{object("{apiVersion: v1, kind: Pod, metadata: {}}"), "spec.object.metadata.name: Required value"},
		{object("{apiVersion: v1, kind: Pod, metadata: {name: 7}}"), `spec.object.metadata.name: Invalid value: "number": it has to be a string`},
		{object("{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {b: true}}}"), `spec.object.metadata.labels: Invalid value: "bool": it has to be a string`},
		{object("[1]"), "spec.object: Invalid value: \"\": it is not an object"},
		{object("{apiVersion: shop.example/v1, kind: Absent, metadata: {name: a}}"), `spec.object.kind: Invalid value: "Absent": the cluster has no kind Absent in shop.example/v1 that can be listed`},
		{object("{apiVersion: v1, kind: PodList, items: []}"), `spec.object.kind: Invalid value: "PodList": give the items of a list one by one, in spec.objects`},
		{"objects: [" + goodPod + ", {kind: Pod}, {}]", "[spec.objects[1].apiVersion: Required value: an object has one, spec.objects[2].apiVersion: Required value"},
		{"namespaceObjects: [" + goodPod + "]\nobject: " + goodPod, `spec.namespaceObjects[0]: Invalid value: "Pod": it has to be a v1 Namespace with a name`},
	} {
		_, err := Evaluate(context.Background(), newWorld(t), Request{Spec: spec(t, test.spec)})
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s:\n got %v\nwant %s", test.spec, err, test.want)
		}
	}
}

// TestLocal takes objects of one namespace only.
func TestLocal(t *testing.T) {
	for _, test := range []struct{ object, want string }{
		{goodPod, "allowed=true"},
		{"{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}", "allowed=true"},
		{"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: other}}", `spec.object.metadata.namespace: Invalid value: "other": a LocalReview is for objects in its namespace, shop`},
		{"{apiVersion: v1, kind: Namespace, metadata: {name: shop}}", `spec.object.kind: Invalid value: "Namespace": a LocalReview is for objects in its namespace, and this kind is in none`},
	} {
		got := evaluate(t, newWorld(t), Request{Spec: spec(t, "enforcementPoint: validation.gatekeeper.sh\nobject: "+test.object), Namespace: "shop"})
		if !strings.HasPrefix(got[0], test.want) {
			t.Errorf("%s: %v, want %s", test.object, got, test.want)
		}
		for _, line := range got[1:] {
			if !strings.Contains(line, " shop/") {
				t.Errorf("%s: %s", test.object, line)
			}
		}
	}
}

// TestUnknownKinds are guessed only where there is no cluster to know them.
func TestUnknownKinds(t *testing.T) {
	w := newWorld(t)
	r := Request{
		Spec: spec(t, "constraints: [{kind: Owner}]\nobject: {apiVersion: shop.example/v1, kind: Offer, metadata: {name: o, namespace: shop}}"),
		GuessKind: func(gvk schema.GroupVersionKind, inNamespace bool) (policy.Kind, bool) {
			return policy.Kind{GroupVersionKind: gvk, Resource: "offers", Namespaced: inNamespace}, false
		},
	}
	want := []string{"allowed=true 1 1 0 0", "0 Offer shop/o owner [warn] fail no owner", "the kind Offer of shop.example/v1 is not known; its resource is taken for offers"}
	if diff := cmp.Diff(want, evaluate(t, w, r)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w.failing = errors.New("discovery fails")
	if got := evaluate(t, w, r); got[0] != "spec.object.kind: Internal error: discovery fails" {
		t.Errorf("with discovery that fails: %v", got)
	}
}

// FuzzEvaluate answers anything, or says what is wrong with it.
func FuzzEvaluate(f *testing.F) {
	for _, text := range []string{
		"object: " + goodPod,
		"operation: UPDATE\nobject: " + badPod + "\noldObject: " + goodPod,
		"operation: DELETE\noldObject: " + badPod,
		"objects: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {metadata: {labels: 7}, spec: {containers: {}}}}}]",
		"namespaceObjects: [{apiVersion: v1, kind: Namespace, metadata: {name: n, labels: {a: b}}}]\nexplain: true\nobject: {apiVersion: batch/v1, kind: CronJob, metadata: {generateName: c}, spec: {jobTemplate: {spec: {template: 7}}}}",
	} {
		f.Add(toJSON(f, text))
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &v1alpha1.ReviewSpec{}
		if json.Unmarshal(data, s) != nil {
			return
		}
		status, err := Evaluate(context.Background(), w, Request{Spec: s, User: policy.User{Name: "alice"}})
		var invalid *InvalidError
		switch {
		case err != nil && (!errors.As(err, &invalid) || len(invalid.Errors) == 0):
			t.Fatalf("error %v", err)
		case err != nil:
			for _, problem := range invalid.Errors {
				if problem.Field == "" || problem.Type == field.ErrorTypeInternal {
					t.Fatalf("error %v", problem)
				}
			}
		case status.Evaluated != int64(len(status.Verdicts)) && !s.Explain && status.Deferred == 0:
			t.Fatalf("%d evaluated, %d verdicts", status.Evaluated, len(status.Verdicts))
		}
		if _, err := json.Marshal(status); err != nil {
			t.Fatal(err)
		}
	})
}
