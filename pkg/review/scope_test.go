package review

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// fakeReader has objects, two a page, and may refuse "verb resource namespace/name".
type fakeReader struct {
	objects []*unstructured.Unstructured
	refused map[string]bool
	failing map[string]error // lists, by resource
	paged   func()           // called before each page

	mu     sync.Mutex // protects the fields below
	listed []string
}

func newFakeReader(t testing.TB, manifests ...string) *fakeReader {
	t.Helper()
	r := &fakeReader{refused: map[string]bool{}, failing: map[string]error{}}
	for _, manifest := range manifests {
		r.objects = append(r.objects, parse(t, manifest))
	}
	return r
}

func (r *fakeReader) Allowed(_ context.Context, reading Reading) error {
	what := fmt.Sprintf("%s %s %s/%s", reading.Verb, reading.Kind.Resource, reading.Namespace, reading.Name)
	if r.refused[what] {
		return errors.New("you may not " + what)
	}
	return nil
}

func (r *fakeReader) Get(_ context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	for _, obj := range r.objects {
		if obj.GroupVersionKind() == kind.GroupVersionKind && obj.GetNamespace() == namespace && obj.GetName() == name {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kind.Resource}, name)
}

func (r *fakeReader) List(_ context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
	r.mu.Lock()
	r.listed = append(r.listed, kind.Resource+" "+namespace)
	r.mu.Unlock()
	wanted, err := labels.Parse(selector)
	if err != nil {
		return err
	}
	var objects []*unstructured.Unstructured
	flush := func() error {
		if r.paged != nil {
			r.paged()
		}
		err := page(objects)
		objects = nil
		return err
	}
	for _, obj := range r.objects {
		if obj.GroupVersionKind() != kind.GroupVersionKind || namespace != "" && obj.GetNamespace() != namespace || !wanted.Matches(labels.Set(obj.GetLabels())) {
			continue
		}
		if objects = append(objects, obj.DeepCopy()); len(objects) == 2 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := r.failing[kind.Resource]; err != nil {
		return err
	}
	return flush()
}

// shop has Pods, ConfigMaps and Namespaces with and without owners.
func shop(t testing.TB) *fakeReader {
	t.Helper()
	return newFakeReader(t,
		"{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {owner: me}}}",
		"{apiVersion: v1, kind: Namespace, metadata: {name: bank}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c1, namespace: bank}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c2, namespace: shop, labels: {owner: me, tier: web}}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: bank}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: p2, namespace: shop}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: p3, namespace: shop, labels: {tier: web}}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: p4, namespace: shop, labels: {owner: me}}}",
	)
}

// impactLines are an answer: its lines, and those of the impact.
func impactLines(status *v1alpha1.ReviewStatus) []string {
	i := status.Impact
	out := append(lines(status), fmt.Sprintf("complete=%v objects=%d", i.Complete, i.Objects))
	totals := func(t v1alpha1.ReviewTotals) string {
		return fmt.Sprintf("%d %d %d %d", t.FailedObjects, t.Failed, t.Errors, t.Deferred)
	}
	for _, c := range i.Kinds {
		out = append(out, fmt.Sprintf("kind %s %d: %s", c.Kind, c.Objects, totals(c.ReviewTotals)))
	}
	for _, c := range i.Counts {
		out = append(out, fmt.Sprintf("count %s/%s %d: %s", c.Namespace, c.Kind, c.Objects, totals(c.ReviewTotals)))
	}
	for _, c := range i.Constraints {
		out = append(out, fmt.Sprintf("constraint %s %v %d: %s", c.Constraint.Name, c.EnforcementActions, c.Evaluated, totals(c.ReviewTotals)))
	}
	for _, n := range i.NotJudged {
		out = append(out, fmt.Sprintf("not %s/%s %s: %s", n.Namespace, n.Kind, n.Reason, n.Message))
	}
	return out
}

func TestScope(t *testing.T) {
	for _, test := range []struct {
		name, namespace, spec string
		change                func(*world, *fakeReader)
		want                  []string
	}{
		{"installed policies", "", "scope: {}", nil, []string{
			"allowed=true 12 5 0 0",
			"0 ConfigMap bank/c1 owner [warn] fail no owner",
			"0 Namespace /bank owner [warn] fail no owner",
			"0 Pod bank/p1 owner [warn] fail no owner",
			"0 Pod shop/p2 owner [warn] fail no owner",
			"0 Pod shop/p3 owner [warn] fail no owner",
			"there is no Namespace bank; it can be given in spec.namespaceObjects",
			"complete=true objects=8",
			"kind ConfigMap 2: 1 1 0 0", "kind Namespace 2: 1 1 0 0", "kind Pod 4: 3 3 0 0", "kind Deployment 0: 0 0 0 0",
			"count /Namespace 2: 1 1 0 0", "count bank/ConfigMap 1: 1 1 0 0", "count bank/Pod 1: 1 1 0 0", "count shop/Pod 3: 2 2 0 0",
			"constraint owner [warn] 8: 5 5 0 0", "constraint privileged [deny] 4: 0 0 0 0",
		}},
		{"of a kind, with a limit", "", "constraints: [{kind: Owner}]\nscope: {kinds: [{kind: Pod}], limit: 1}", nil, []string{
			"allowed=true 4 3 0 0",
			"0 Pod bank/p1 owner [warn] fail no owner",
			"there is no Namespace bank; it can be given in spec.namespaceObjects",
			"the first 1 of 3 findings are listed",
			"complete=true objects=4", "kind Pod 4: 3 3 0 0", "count bank/Pod 1: 1 1 0 0", "count shop/Pod 3: 2 2 0 0", "constraint owner [warn] 4: 3 3 0 0",
		}},
		{"of labels", "", "constraints: [{kind: Owner}]\nscope: {labelSelector: {matchLabels: {tier: web}}, kinds: [{kind: Pod}, {kind: ConfigMap}]}", nil, []string{
			"allowed=true 2 1 0 0",
			"0 Pod shop/p3 owner [warn] fail no owner",
			"complete=true objects=2", "kind ConfigMap 1: 0 0 0 0", "kind Pod 1: 1 1 0 0", "count shop/Pod 1: 1 1 0 0", "constraint owner [warn] 2: 1 1 0 0",
		}},
		{"of a namespace", "", "constraints: [{kind: Owner}]\nscope: {namespaces: [bank, bank]}", nil, []string{
			"allowed=true 2 2 0 0",
			"0 ConfigMap bank/c1 owner [warn] fail no owner",
			"0 Pod bank/p1 owner [warn] fail no owner",
			"objects that are in no namespace are outside the scope, though constraints select some",
			"there is no Namespace bank; it can be given in spec.namespaceObjects",
			"complete=true objects=2",
			"kind ConfigMap 1: 1 1 0 0", "kind Pod 1: 1 1 0 0", "kind Deployment 0: 0 0 0 0",
			"count bank/ConfigMap 1: 1 1 0 0", "count bank/Pod 1: 1 1 0 0", "constraint owner [warn] 2: 2 2 0 0",
		}},
		{"local", "shop", "constraints: [{kind: Privileged}]\nscope: {}", nil, []string{
			"allowed=true 3 0 0 0", "complete=true objects=3", "kind Pod 3: 0 0 0 0", "constraint privileged [deny] 3: 0 0 0 0",
		}},
		{"where it may not be read", "", "constraints: [{kind: Owner}]\nscope: {kinds: [{kind: Pod}, {kind: Namespace}]}", func(w *world, r *fakeReader) {
			w.namespaces["bank"] = parse(t, "{apiVersion: v1, kind: Namespace, metadata: {name: bank}}")
			r.refused["list pods /"], r.refused["list pods bank/"] = true, true
		}, []string{
			"allowed=false 5 3 0 0",
			"0 Namespace /bank owner [warn] fail no owner", "0 Pod shop/p2 owner [warn] fail no owner", "0 Pod shop/p3 owner [warn] fail no owner",
			"complete=false objects=5", "kind Namespace 2: 1 1 0 0", "kind Pod 3: 2 2 0 0", "count /Namespace 2: 1 1 0 0", "count shop/Pod 3: 2 2 0 0",
			"constraint owner [warn] 5: 3 3 0 0", "not bank/Pod Forbidden: you may not list pods bank/",
		}},
		{"where it may not be read, without the names of namespaces", "", "constraints: [{kind: Owner}]\nscope: {kinds: [{kind: Pod}, {kind: Namespace}]}", func(w *world, r *fakeReader) {
			w.namespaces["bank"] = parse(t, "{apiVersion: v1, kind: Namespace, metadata: {name: bank}}")
			r.refused["list pods /"], r.refused["list pods bank/"], r.refused["list namespaces /"] = true, true, true
		}, []string{
			"allowed=false 3 2 0 0",
			"0 Pod shop/p2 owner [warn] fail no owner", "0 Pod shop/p3 owner [warn] fail no owner",
			"complete=false objects=3", "kind Pod 3: 2 2 0 0", "count shop/Pod 3: 2 2 0 0",
			"constraint owner [warn] 3: 2 2 0 0", "not /Namespace Forbidden: you may not list namespaces /", "not /Pod Forbidden: you may list them in some namespaces only, or in none",
		}},
		{"what cannot be listed", "", "constraints: [{kind: Owner}]\nscope: {}", func(w *world, r *fakeReader) {
			w.groups = map[string]error{"shop.example": errors.New("down")}
			r.failing["pods"] = errors.New("the server is overloaded")
		}, []string{
			"allowed=false 8 5 0 0",
			"0 ConfigMap bank/c1 owner [warn] fail no owner", "0 Namespace /bank owner [warn] fail no owner",
			"0 Pod bank/p1 owner [warn] fail no owner", "0 Pod shop/p2 owner [warn] fail no owner", "0 Pod shop/p3 owner [warn] fail no owner",
			"there is no Namespace bank; it can be given in spec.namespaceObjects",
			"complete=false objects=8", "kind ConfigMap 2: 1 1 0 0", "kind Namespace 2: 1 1 0 0", "kind Pod 4: 3 3 0 0", "kind Deployment 0: 0 0 0 0",
			"count /Namespace 2: 1 1 0 0", "count bank/ConfigMap 1: 1 1 0 0", "count bank/Pod 1: 1 1 0 0", "count shop/Pod 3: 2 2 0 0",
			"constraint owner [warn] 8: 5 5 0 0",
			"not / Unlisted: the kinds of the API group are not known at the moment: down",
			"not /Pod Unlisted: they cannot be listed, or not all of them: the server is overloaded",
		}},
		{"objects that give errors", "", "constraints: [{kind: Faulty}]\nscope: {kinds: [{kind: ConfigMap}]}", func(w *world, _ *fakeReader) {
			w.set = newWorld(t, template("Faulty", "msg := 7"), constraint("Faulty", "faulty", "")).set
		}, []string{
			"allowed=false 2 0 2 0",
			"0 ConfigMap bank/c1 faulty [deny] errortemplate Faulty: msg of a violation is a number, want a string: 7",
			"0 ConfigMap shop/c2 faulty [deny] errortemplate Faulty: msg of a violation is a number, want a string: 7",
			"there is no Namespace bank; it can be given in spec.namespaceObjects",
			"complete=true objects=2", "kind ConfigMap 2: 0 0 2 0", "count bank/ConfigMap 1: 0 0 1 0", "count shop/ConfigMap 1: 0 0 1 0",
			"constraint faulty [deny] 2: 0 0 2 0",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, r := newWorld(t), shop(t)
			if test.change != nil {
				test.change(w, r)
			}
			status, err := Evaluate(context.Background(), w, Request{Spec: spec(t, test.spec), Namespace: test.namespace, Reader: r})
			if err != nil {
				t.Fatal(err)
			}
			got := impactLines(status)
			// Notes are behind the verdicts, in the order in which they came up.
			if diff := cmp.Diff(test.want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestScopesThatAreWrong(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("a, ", maxScopeNamespaces+1), ", ")
	for _, test := range []struct{ namespace, spec, want string }{
		{"", "scope: {}\nobject: " + goodPod, "spec: Invalid value: 2: a review needs exactly one of object, objects, resource and scope"},
		{"", "scope: {kinds: [{kind: Absent}]}", `spec.scope.kinds[0].kind: Invalid value: "Absent": there is no kind Absent in the API group "" that can be listed`},
		{"", "scope: {kinds: [{apiGroup: apps}]}", "spec.scope.kinds[0].kind: Required value"},
		{"", "scope: {kinds: [{kind: Pod}, {kind: Pod}]}", `spec.scope.kinds[1]: Duplicate value: "Pod"`},
		{"", "scope: {kinds: [{kind: Namespace}], namespaces: [shop]}", `spec.scope.kinds[0].kind: Invalid value: "Namespace": its objects are in no namespace`},
		{"shop", "scope: {kinds: [{kind: Namespace}]}", `spec.scope.kinds[0].kind: Invalid value: "Namespace": its objects are in no namespace`},
		{"shop", "scope: {namespaces: [shop, bank]}", `spec.scope.namespaces[1]: Invalid value: "bank": a LocalReview is for objects in its namespace, shop`},
		{"", "scope: {namespaces: ['']}", "spec.scope.namespaces[0]: Required value"},
		{"", "scope: {namespaces: [" + many + "]}", "spec.scope.namespaces: Too many: 101"},
		{"", "scope: {limit: 1001}", "spec.scope.limit: Invalid value: 1001: it has to be between 0 and 1000"},
		{"", "scope: {limit: -1}", "spec.scope.limit: Invalid value: -1"},
		{"", "scope: {labelSelector: {matchLabels: {'a b': c}}}", `spec.scope.labelSelector.matchLabels: Invalid value: "a b"`},
		{"", "scope: {labelSelector: {matchExpressions: [{key: a, operator: Near}]}}", "spec.scope.labelSelector.matchExpressions[0].operator"},
		{"", "scope: {}\noperation: UPDATE", "spec.operation: Forbidden"},
		{"", "scope: {}\nexplain: true", "spec.explain: Forbidden"},
		{"", "scope: {}\nuserInfo: {username: bob}", "spec.userInfo: Forbidden"},
		{"", "scope: {}\noldObject: " + goodPod, "spec.oldObject: Forbidden"},
	} {
		_, err := Evaluate(context.Background(), newWorld(t), Request{Spec: spec(t, test.spec), Namespace: test.namespace, Reader: shop(t)})
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\n got %v\nwant %s", test.spec, err, test.want)
		}
	}
	_, err := Evaluate(context.Background(), newWorld(t), Request{Spec: spec(t, "scope: {}")})
	if err == nil || !strings.Contains(err.Error(), "spec.scope: Forbidden: there are no live objects here") {
		t.Errorf("without a reader: %v", err)
	}
}

// TestScopeDeadline: what was judged until the time was up is the answer, the rest is
// named; a request that is canceled has none.
func TestScopeDeadline(t *testing.T) {
	endless := template("Endless", `input.review.object.kind == "Pod"; count([x | x := numbers.range(1, 2000)[_]; y := numbers.range(1, 2000)[_]; z := numbers.range(1, 2000)[_]; x + y + z < 0]) > 0; msg := "x"`)
	s := spec(t, "scope: {kinds: [{kind: ConfigMap}, {kind: Pod}]}")
	s.CandidatePolicies = candidatesOf(t, endless, constraint("Endless", "endless", ""))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	status, err := Evaluate(ctx, newWorld(t), Request{Spec: s, Reader: shop(t)})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"allowed=false 2 0 0 0",
		"there is no Namespace bank; it can be given in spec.namespaceObjects",
		"complete=false objects=2", "kind ConfigMap 2: 0 0 0 0", "constraint endless [deny] 2: 0 0 0 0",
		"not /Pod Deadline: the time of the request was up before they were judged; judge a smaller scope, or give the request more time",
	}
	if diff := cmp.Diff(want, impactLines(status)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// There is no time to compile them: that is no fault of theirs.
	late, end := context.WithTimeout(context.Background(), 0)
	defer end()
	var invalid *InvalidError
	if _, err := Evaluate(late, newWorld(t), Request{Spec: s, Reader: shop(t)}); !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &invalid) {
		t.Errorf("without time: %v", err)
	}

	ctx, stop := context.WithCancel(context.Background())
	reader := shop(t)
	reader.paged = stop
	if status, err := Evaluate(ctx, newWorld(t), Request{Spec: s, Reader: reader}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v, %v", status, err)
	}
}

// TestScopeIsStreamed: pages are not kept, and those ahead of the judging are few.
func TestScopeIsStreamed(t *testing.T) {
	var manifests []string
	for n := range 400 {
		manifests = append(manifests, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: c%03d, namespace: shop}}", n))
	}
	reader := newFakeReader(t, manifests...)
	var pages int
	reader.paged = func() { pages++ }
	status, err := Evaluate(context.Background(), newWorld(t), Request{Spec: spec(t, "constraints: [{kind: Owner}]\nscope: {kinds: [{kind: ConfigMap}], limit: 1000}"), Reader: reader})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range status.Verdicts {
		names = append(names, v.Resource.Name)
	}
	if len(names) != 400 || !slices.IsSorted(names) || pages != 201 || status.Failed != 400 {
		t.Errorf("%d findings, sorted %v, of %d pages", len(names), slices.IsSorted(names), pages)
	}
}
