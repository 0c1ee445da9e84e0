package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/registry/review"
	engine "policy.example.io/policy-apiserver/pkg/review"
)

// policies has one constraint, which needs a label of everything.
type policies struct{ set *policy.Set }

const needOwner = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: needlabel}
spec:
  crd: {spec: {names: {kind: NeedLabel}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": "no owner", "details": {"label": "owner"}}] { not input.review.object.metadata.labels.owner }
`

func newPolicies(t testing.TB) *policies {
	t.Helper()
	parse := func(text string) *unstructured.Unstructured {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
			t.Fatal(err)
		}
		return obj
	}
	return &policies{policy.Compile(context.Background(), policy.Inputs{
		Templates:   []*unstructured.Unstructured{parse(needOwner)},
		Constraints: []*unstructured.Unstructured{parse("{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: NeedLabel, metadata: {name: owner}, spec: {}}")},
	}, nil)}
}

func (p *policies) Set() *policy.Set                            { return p.set }
func (p *policies) Missing() []string                           { return nil }
func (p *policies) Namespace(string) *unstructured.Unstructured { return nil }

func (p *policies) Kind(gk schema.GroupKind) (policy.Kind, bool, error) {
	return policy.Kind{GroupVersionKind: gk.WithVersion("v1"), Resource: "pods", Namespaced: true}, gk.Kind == "Pod", nil
}

func (p *policies) Kinds() (preferred, others []policy.Kind, failed map[string]error) {
	kind, _, _ := p.Kind(schema.GroupKind{Kind: "Pod"})
	return []policy.Kind{kind}, nil, nil
}

func (p *policies) Namespaces() []string { return []string{"a", "b"} }

func (s *server) reviews() review.Backend {
	return review.Backend{
		Policies: func() (engine.Policies, error) {
			if p := s.policies.Load(); p != nil {
				return p, nil
			}
			return nil, errors.New("Namespaces are being listed")
		},
		Read: func(_ context.Context, kind policy.Kind, _, name string) (*unstructured.Unstructured, error) {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kind.Resource}, name)
		},
		// Pods one to three in a and b, the first of each with an owner, a Pod a page.
		List: func(_ context.Context, _ policy.Kind, namespace, _ string, page func([]*unstructured.Unstructured) error) error {
			for _, in := range []string{"a", "b"} {
				for n, name := range []string{"one", "two", "three"} {
					labels := ""
					if n == 0 {
						labels = `"owner":"me"`
					}
					obj := &unstructured.Unstructured{}
					if err := obj.UnmarshalJSON([]byte(podNamed(in, name, labels))); err != nil {
						return err
					}
					if namespace != "" && namespace != in {
						continue
					}
					if err := page([]*unstructured.Unstructured{obj}); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
}

// post sends a body.
func (s *server) post(path, contentType, accept, body string) answer {
	s.Helper()
	request, err := http.NewRequest(http.MethodPost, s.config.Host+root+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", accept)
	response, err := s.http.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	out, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(out)}
}

func podNamed(namespace, name, labels string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"labels":{%s}}}`, name, namespace, labels)
}

// TestReviews answers through the typed client.
func TestReviews(t *testing.T) {
	s := start(t)
	s.policies.Store(newPolicies(t))
	spec := v1alpha1.ReviewSpec{Objects: []runtime.RawExtension{{Raw: []byte(podNamed("a", "bad", ""))}, {Raw: []byte(podNamed("a", "good", `"owner":"me"`))}}}
	want := v1alpha1.ReviewStatus{
		Evaluated: 2, Failed: 1,
		Verdicts: []v1alpha1.ReviewVerdict{
			{Result: v1alpha1.ReviewFail, Violations: []v1alpha1.Violation{{Message: "no owner", Details: &runtime.RawExtension{Raw: []byte(`{"label":"owner"}`)}}}},
			{Result: v1alpha1.ReviewPass, Index: 1},
		},
		Notes: []string{"there is no Namespace a; it can be given in spec.namespaceObjects"},
	}
	for i, name := range []string{"bad", "good"} {
		want.Verdicts[i].Resource = v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Pod", Namespace: "a", Name: name}
		want.Verdicts[i].Constraint = v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "NeedLabel", Name: "owner"}
		want.Verdicts[i].EnforcementAction, want.Verdicts[i].EnforcementActions = "deny", []string{"deny"}
	}
	check := func(what string, got v1alpha1.ReviewStatus) {
		t.Helper()
		if got.PolicyDigest == "" || got.Duration.Duration <= 0 {
			t.Errorf("%s: digest %q, duration %v", what, got.PolicyDigest, got.Duration)
		}
		got.PolicyDigest, got.Duration = "", metav1.Duration{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	cluster, err := s.client.PolicyV1alpha1().Reviews().Create(context.Background(), &v1alpha1.Review{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("review", cluster.Status)
	local, err := s.client.PolicyV1alpha1().LocalReviews("a").Create(context.Background(), &v1alpha1.LocalReview{Spec: spec}, metav1.CreateOptions{DryRun: []string{"All"}})
	if err != nil {
		t.Fatal(err)
	}
	check("local review", local.Status)
	if _, err := s.client.PolicyV1alpha1().LocalReviews("b").Create(context.Background(), &v1alpha1.LocalReview{Spec: spec}, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("objects of another namespace: %v", err)
	}
}

// TestReviewsAreNotKept: nothing but create, of YAML as well as JSON.
func TestReviewsAreNotKept(t *testing.T) {
	s := start(t)
	s.policies.Store(newPolicies(t))
	body := "apiVersion: policy.example.io/v1alpha1\nkind: Review\nspec:\n  object: " + podNamed("a", "p", "") + "\n"
	got := s.post("/reviews", "application/yaml", "application/yaml", body)
	if got.code != http.StatusCreated || !strings.Contains(got.body, "message: no owner") || strings.Contains(got.body, "managedFields") {
		t.Errorf("%d: %s", got.code, got.body)
	}
	if got := s.post("/reviews", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io", body); got.code != http.StatusNotAcceptable {
		t.Errorf("as a table: %d: %s", got.code, got.body)
	}
	for _, collection := range []string{"/reviews", "/namespaces/a/localreviews"} {
		for _, test := range []struct{ method, path string }{
			{http.MethodGet, collection}, {http.MethodDelete, collection},
		} {
			if got := s.do(test.method, root+test.path, ""); got.code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", test.method, test.path, got.code)
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if got := s.do(method, root+collection+"/one", ""); got.code != http.StatusNotFound && got.code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s/one: %d", method, collection, got.code)
			}
		}
	}
}

// TestReviewsThatAreWrong has a status for each way to be wrong.
func TestReviewsThatAreWrong(t *testing.T) {
	s := start(t)
	s.policies.Store(newPolicies(t))
	wrap := func(spec string) string {
		return `{"apiVersion":"policy.example.io/v1alpha1","kind":"Review","spec":` + spec + `}`
	}
	many := strings.TrimSuffix(strings.Repeat(podNamed("a", "p", "")+",", 101), ",")
	for name, test := range map[string]struct {
		body string
		code int
		want string
	}{
		"unknown kind":     {wrap(`{"object":{"apiVersion":"shop.example/v1","kind":"Offer","metadata":{"name":"o"}}}`), 422, `spec.object.kind: Invalid value: \"Offer\": the cluster has no kind Offer in shop.example/v1`},
		"no kind":          {wrap(`{"object":{"metadata":{"name":"o"}}}`), 422, "spec.object.apiVersion: Required value"},
		"nothing":          {wrap(`{}`), 422, "exactly one of object, objects, resource and scope"},
		"too many objects": {wrap(`{"objects":[` + many + `]}`), 422, "spec.objects: Too many: 101: must have at most 100 items"},
		"3 MB of object":   {wrap(`{"object":` + podNamed("a", "p", `"a":"`+strings.Repeat("x", 3<<20)+`"`) + `}`), 413, "limit is 3145728"},
		"nested deeply":    {wrap(`{"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}}`), 400, "exceeded max depth"},
		"no JSON":          {"{", 400, ""},
		"no objects":       {wrap(`{"objects":[null,7,"x",{}],"namespaceObjects":[{"kind":7}]}`), 422, "spec.objects[0]: Required value"},
		"absent reference": {wrap(`{"resource":{"apiVersion":"v1","kind":"Pod","namespace":"a","name":"p"}}`), 404, `pods \"p\" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.post("/reviews", "application/json", "application/json", test.body)
			if got.code != test.code || !strings.Contains(got.body, test.want) {
				t.Errorf("%d: %.1000s", got.code, got.body)
			}
		})
	}
	unknown := s.post("/reviews?fieldValidation=Strict", "application/json", "application/json", wrap(`{"objekt":{}}`))
	if unknown.code != http.StatusBadRequest || !strings.Contains(unknown.body, `unknown field \"spec.objekt\"`) {
		t.Errorf("an unknown field: %d: %s", unknown.code, unknown.body)
	}
	s.policies.Store(nil)
	got := s.post("/reviews", "application/json", "application/json", wrap(`{"object":`+podNamed("a", "p", "")+`}`))
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("before the policies are loaded: %d, Retry-After %q: %s", got.code, got.header.Get("Retry-After"), got.body)
	}
}
