package review

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	engine "policy.example.io/policy-apiserver/pkg/review"
)

// world has one constraint, which says who asks, and a Pod shop/p to refer to.
type world struct {
	set     *policy.Set
	waiting error
	// granted are the rights of alice, as "verb group/resource/subresource namespace/name".
	granted map[string]bool
	// asked are those that were asked for, read the objects that were read.
	asked, read []string
	authorizing error
	mu          sync.Mutex // protects asked
}

const policies = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: who}
spec:
  crd: {spec: {names: {kind: Who}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg}] { u := input.review.userInfo; msg := sprintf("%v %v %v %v %v", [input.review.object.metadata.name, u.username, object.get(u, "uid", ""), object.get(u, "groups", []), object.get(u, "extra", {})]) }
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: Who
metadata: {name: who}
`

func newWorld(t *testing.T, granted ...string) *world {
	t.Helper()
	var in policy.Inputs
	for i, text := range strings.Split(policies, "\n---\n") {
		obj := parse(t, text)
		if i == 0 {
			in.Templates = append(in.Templates, obj)
		} else {
			in.Constraints = append(in.Constraints, obj)
		}
	}
	w := &world{set: policy.Compile(context.Background(), in, nil), granted: map[string]bool{}}
	for _, right := range granted {
		w.granted[right] = true
	}
	return w
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = obj.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func (w *world) Set() *policy.Set                            { return w.set }
func (w *world) Missing() []string                           { return nil }
func (w *world) Namespace(string) *unstructured.Unstructured { return nil }

func (w *world) Kind(gk schema.GroupKind) (policy.Kind, bool, error) {
	namespaced, ok := map[string]bool{"Pod": true, "Node": false}[gk.Kind]
	return policy.Kind{GroupVersionKind: gk.WithVersion("v1"), Resource: strings.ToLower(gk.Kind) + "s", Namespaced: namespaced}, ok && gk.Group == "", nil
}

func (w *world) Kinds() (preferred, others []policy.Kind, failed map[string]error) {
	for _, name := range []string{"Node", "Pod"} {
		kind, _, _ := w.Kind(schema.GroupKind{Kind: name})
		preferred = append(preferred, kind)
	}
	return preferred, nil, nil
}

func (w *world) Namespaces() []string { return []string{"other", "shop"} }

func (w *world) backend() Backend {
	return Backend{
		Policies: func() (engine.Policies, error) {
			if w.waiting != nil {
				return nil, w.waiting
			}
			return w, nil
		},
		Read: func(_ context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error) {
			w.read = append(w.read, namespace+"/"+name)
			if name == "absent" {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kind.Resource}, name)
			}
			obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind.Kind, "metadata": map[string]any{"name": name}}}
			obj.SetNamespace(namespace)
			return obj, nil
		},
		List: func(_ context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
			w.read = append(w.read, fmt.Sprintf("%s in %q by %q", kind.Resource, namespace, selector))
			var objects []*unstructured.Unstructured
			for _, name := range []string{"other", "shop"} {
				obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind.Kind, "metadata": map[string]any{"name": "p"}}}
				if kind.Namespaced {
					obj.SetNamespace(name)
				}
				if namespace == "" || namespace == name {
					objects = append(objects, obj)
				}
			}
			return page(objects)
		},
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() != "alice" || !a.IsResourceRequest() {
				return authorizer.DecisionDeny, "", errors.New("asked about somebody else")
			}
			right := fmt.Sprintf("%s %s/%s/%s %s/%s", a.GetVerb(), a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName())
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, right)
			if w.granted[right] {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "no rule", w.authorizing
		}),
	}
}

// create posts a review as alice, in a namespace if it is a LocalReview. It returns the
// first message of the answer, or its status.
func (w *world) create(t *testing.T, namespace, spec string) (string, error) {
	t.Helper()
	status, err := w.status(t, namespace, spec)
	if err != nil {
		return "", err
	}
	if status.Allowed || len(status.Verdicts) != 1 {
		t.Fatalf("status: %+v", status)
	}
	return status.Verdicts[0].Violations[0].Message, nil
}

// status is the whole answer.
func (w *world) status(t *testing.T, namespace, spec string) (status v1alpha1.ReviewStatus, err error) {
	t.Helper()
	ctx := genericapirequest.WithUser(context.Background(), &user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"dev", "system:authenticated"}})
	var s v1alpha1.ReviewSpec
	if err := yaml.UnmarshalStrict([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "mine", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}
	if namespace == "" {
		out, err := NewREST(w.backend()).Create(ctx, &v1alpha1.Review{ObjectMeta: meta, Spec: s}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		if err != nil {
			return status, err
		}
		answer := out.(*v1alpha1.Review)
		if answer.Name != "mine" || answer.ManagedFields != nil {
			t.Errorf("metadata: %v", answer.ObjectMeta)
		}
		return answer.Status, nil
	}
	out, err := NewREST(w.backend()).Local().Create(genericapirequest.WithNamespace(ctx, namespace), &v1alpha1.LocalReview{ObjectMeta: meta, Spec: s}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return status, err
	}
	return out.(*v1alpha1.LocalReview).Status, nil
}

const pod = "object: {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}}\n"

func TestUsers(t *testing.T) {
	for _, test := range []struct {
		name, userInfo string
		asked          []string
		want           string
	}{
		{"the requester", "", nil, `p alice 1 ["dev", "system:authenticated"] {}`},
		{"the requester, named", "userInfo: {username: alice, uid: '1', groups: [system:authenticated, dev]}", nil, `p alice 1 ["dev", "system:authenticated"] {}`},
		{"the requester with less", "userInfo: {username: alice}", []string{"impersonate /users/ /alice"}, `p alice  ["system:authenticated"] {}`},
		{"somebody else", "userInfo: {username: bob, uid: '2', groups: [ops], extra: {scopes: [a, b], team: [c]}}", []string{
			"impersonate /users/ /bob", "impersonate /groups/ /ops",
			"impersonate authentication.k8s.io/userextras/scopes /a", "impersonate authentication.k8s.io/userextras/scopes /b",
			"impersonate authentication.k8s.io/userextras/team /c", "impersonate authentication.k8s.io/uids/ /2",
		}, `p bob 2 ["ops", "system:authenticated"] {"scopes": ["a", "b"], "team": ["c"]}`},
		{
			"a service account", "userInfo: {username: 'system:serviceaccount:shop:bot'}",
			[]string{"impersonate /serviceaccounts/ shop/bot"},
			`p system:serviceaccount:shop:bot  ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"] {}`,
		},
		{"nobody", "userInfo: {username: 'system:anonymous'}", []string{"impersonate /users/ /system:anonymous"}, `p system:anonymous  ["system:unauthenticated"] {}`},
		{
			"administrators", "userInfo: {username: bob, groups: ['system:masters']}",
			[]string{"impersonate /users/ /bob", "impersonate /groups/ /system:masters"},
			`p bob  ["system:masters", "system:authenticated"] {}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.asked...)
			got, err := w.create(t, "", pod+test.userInfo)
			if err != nil || got != test.want {
				t.Errorf("%q, %v, want %q", got, err, test.want)
			}
			if diff := cmp.Diff(test.asked, w.asked); diff != "" {
				t.Errorf("rights that were asked for (-want +got):\n%s", diff)
			}
			// Each of the rights is needed.
			for i := range test.asked {
				w := newWorld(t, test.asked...)
				delete(w.granted, test.asked[i])
				if _, err := w.create(t, "", pod+test.userInfo); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `user "alice" cannot impersonate it`) {
					t.Errorf("without %s: %v", test.asked[i], err)
				}
			}
		})
	}
}

func TestReferences(t *testing.T) {
	for _, test := range []struct {
		name, namespace, resource string
		granted                   []string
		want, status              string
		read                      []string
	}{
		{"granted", "", "{apiVersion: v1, kind: Pod, namespace: shop, name: q}", []string{"get /pods/ shop/q"}, `q alice 1 ["dev", "system:authenticated"] {}`, "", []string{"shop/q"}},
		{"by default", "", "{apiVersion: v1, kind: Pod, name: q}", []string{"get /pods/ default/q"}, `q alice 1 ["dev", "system:authenticated"] {}`, "", []string{"default/q"}},
		{"in no namespace", "", "{apiVersion: v1, kind: Node, namespace: shop, name: n1}", []string{"get /nodes/ /n1"}, `n1 alice 1 ["dev", "system:authenticated"] {}`, "", []string{"/n1"}},
		{"not granted", "", "{apiVersion: v1, kind: Pod, namespace: shop, name: q}", []string{"get /pods/ other/q"}, "", `pods "q" is forbidden: user "alice" cannot get it in the namespace "shop": no rule`, nil},
		{"absent", "", "{apiVersion: v1, kind: Pod, namespace: shop, name: absent}", []string{"get /pods/ shop/absent"}, "", `pods "absent" not found`, []string{"shop/absent"}},
		{"absent and not granted", "", "{apiVersion: v1, kind: Pod, namespace: shop, name: absent}", nil, "", `pods "absent" is forbidden`, nil},
		{"of no kind", "", "{apiVersion: v1, kind: Absent, name: q}", nil, "", `spec.resource.kind: Invalid value: "Absent": there is no kind Absent in v1 that can be listed`, nil},
		{"of no version", "", "{apiVersion: a/b/c, kind: Pod, name: q}", nil, "", `spec.resource.apiVersion: Invalid value: "a/b/c"`, nil},
		{"local", "shop", "{apiVersion: v1, kind: Pod, name: q}", []string{"get /pods/ shop/q"}, `q alice 1 ["dev", "system:authenticated"] {}`, "", []string{"shop/q"}},
		{"local, elsewhere", "shop", "{apiVersion: v1, kind: Pod, namespace: other, name: q}", []string{"get /pods/ other/q"}, "", `spec.resource.namespace: Invalid value: "other": a LocalReview is for objects in its namespace, shop`, nil},
		{"local, in none", "shop", "{apiVersion: v1, kind: Node, name: n1}", []string{"get /nodes/ /n1"}, "", `spec.resource.kind: Invalid value: "Node": a LocalReview is for objects in its namespace`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.granted...)
			got, err := w.create(t, test.namespace, "resource: "+test.resource)
			if got != test.want || (err == nil) != (test.status == "") || err != nil && !strings.Contains(err.Error(), test.status) {
				t.Errorf("%q, %v, want %q %q", got, err, test.want, test.status)
			}
			if diff := cmp.Diff(test.read, w.read); diff != "" {
				t.Errorf("what was read (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStatuses are those of the API.
func TestStatuses(t *testing.T) {
	code := func(err error) int32 {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			t.Fatalf("error %v", err)
		}
		return status.Status().Code
	}
	w := newWorld(t)
	w.waiting = errors.New("Namespaces are being listed")
	_, err := w.create(t, "", pod)
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != notReadyRetrySeconds || code(err) != http.StatusServiceUnavailable ||
		!strings.Contains(err.Error(), "reviews.policy.example.io cannot be answered at the moment: Namespaces are being listed") {
		t.Errorf("before the policies are loaded: %v", err)
	}
	w = newWorld(t)
	w.authorizing = errors.New("the cluster does not answer")
	if _, err := w.create(t, "", "resource: {apiVersion: v1, kind: Pod, name: q}"); code(err) != http.StatusInternalServerError || len(w.read) > 0 {
		t.Errorf("while rights are not known: %v, read %v", err, w.read)
	}
	_, err = newWorld(t).create(t, "shop", "object: {}")
	if code(err) != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), "LocalReview.policy.example.io") {
		t.Errorf("an invalid LocalReview: %v", err)
	}
	if _, err := NewREST(newWorld(t).backend()).Create(context.Background(), &v1alpha1.Review{}, nil, nil); code(err) != http.StatusUnprocessableEntity {
		t.Errorf("an empty review: %v", err)
	}
	if _, err := NewREST(newWorld(t).backend()).Create(context.Background(), &v1alpha1.AuditRun{}, nil, nil); code(err) != http.StatusBadRequest {
		t.Errorf("no review: %v", err)
	}
	refuse := func(context.Context, runtime.Object) error {
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("admission"))
	}
	if _, err := NewREST(newWorld(t).backend()).Create(context.Background(), &v1alpha1.Review{}, refuse, nil); code(err) != http.StatusForbidden {
		t.Errorf("refused by admission: %v", err)
	}
}

// TestDeadline answers Timeout when a policy takes longer than the request may.
func TestDeadline(t *testing.T) {
	w := newWorld(t)
	endless := strings.Replace(strings.Split(policies, "\n---\n")[0], "u := input", "count([1 | x := numbers.range(1, 3000)[_]; y := numbers.range(1, 3000)[_]; z := numbers.range(1, 3000)[_]; x + y + z < 0]) > 0; u := input", 1)
	w.set = policy.Compile(context.Background(), policy.Inputs{
		Templates:   []*unstructured.Unstructured{parse(t, endless)},
		Constraints: []*unstructured.Unstructured{parse(t, strings.Split(policies, "\n---\n")[1])},
	}, nil)
	ctx, cancel := context.WithTimeout(genericapirequest.WithUser(context.Background(), &user.DefaultInfo{Name: "alice"}), 200*time.Millisecond)
	defer cancel()
	review := &v1alpha1.Review{Spec: v1alpha1.ReviewSpec{Object: &runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}`)}}}
	_, err := NewREST(w.backend()).Create(ctx, review, nil, nil)
	if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "0 of 1 objects were judged") {
		t.Errorf("error: %v", err)
	}
}

// TestNothingIsKept: there are no methods to read, change or delete by.
func TestNothingIsKept(t *testing.T) {
	for _, storage := range []any{NewREST(Backend{}), NewREST(Backend{}).Local()} {
		for name, is := range map[string]bool{
			"Getter":          implements[rest.Getter](storage),
			"Lister":          implements[rest.Lister](storage),
			"Watcher":         implements[rest.Watcher](storage),
			"Updater":         implements[rest.Updater](storage),
			"GracefulDeleter": implements[rest.GracefulDeleter](storage),
			"NamedCreater":    implements[rest.NamedCreater](storage),
		} {
			if is {
				t.Errorf("%T is a %s", storage, name)
			}
		}
	}
}

func implements[T any](v any) bool {
	_, ok := v.(T)
	return ok
}
