package conformance

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

const newConstraint = `{"apiVersion":"constraints.gatekeeper.sh/v1beta1","kind":"NeedLabel","metadata":{"name":"new"},"spec":{"enforcementAction":"warn"}}`

// TestCandidates judges by a policy that is not installed what exists, through the typed
// client.
func TestCandidates(t *testing.T) {
	s := start(t)
	s.policies.Store(newPolicies(t))
	limit := int32(1)
	spec := v1alpha1.ReviewSpec{
		Scope:             &v1alpha1.ReviewScope{Limit: &limit},
		CandidatePolicies: []runtime.RawExtension{{Raw: []byte(newConstraint)}},
	}
	constraint := v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "NeedLabel", Name: "new"}
	totals := func(n int64) v1alpha1.ReviewTotals { return v1alpha1.ReviewTotals{FailedObjects: n, Failed: n} }
	all := v1alpha1.ReviewImpact{
		Complete: true, Objects: 6,
		Kinds:       []v1alpha1.ReviewCount{{Kind: "Pod", Objects: 6, ReviewTotals: totals(4)}},
		Counts:      []v1alpha1.ReviewCount{{Namespace: "a", Kind: "Pod", Objects: 3, ReviewTotals: totals(2)}, {Namespace: "b", Kind: "Pod", Objects: 3, ReviewTotals: totals(2)}},
		Constraints: []v1alpha1.ReviewConstraintCount{{Constraint: constraint, EnforcementActions: []string{"warn"}, Evaluated: 6, ReviewTotals: totals(4)}},
	}
	local := v1alpha1.ReviewImpact{
		Complete: true, Objects: 3,
		Kinds:       []v1alpha1.ReviewCount{{Kind: "Pod", Objects: 3, ReviewTotals: totals(2)}},
		Counts:      []v1alpha1.ReviewCount{{Namespace: "b", Kind: "Pod", Objects: 3, ReviewTotals: totals(2)}},
		Constraints: []v1alpha1.ReviewConstraintCount{{Constraint: constraint, EnforcementActions: []string{"warn"}, Evaluated: 3, ReviewTotals: totals(2)}},
	}
	check := func(what string, status *v1alpha1.ReviewStatus, want v1alpha1.ReviewImpact, first v1alpha1.ResourceReference) {
		t.Helper()
		if diff := cmp.Diff(&want, status.Impact); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if !status.Allowed || status.Evaluated != want.Objects || len(status.Verdicts) != 1 || status.Verdicts[0].Resource != first || status.Verdicts[0].Violations[0].Message != "no owner" {
			t.Errorf("%s: %+v", what, status)
		}
	}
	pod := v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Pod", Namespace: "a", Name: "two"}
	review, err := s.client.PolicyV1alpha1().Reviews().Create(context.Background(), &v1alpha1.Review{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("review", &review.Status, all, pod)
	pod.Namespace = "b"
	localReview, err := s.client.PolicyV1alpha1().LocalReviews("b").Create(context.Background(), &v1alpha1.LocalReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("local review", &localReview.Status, local, pod)
}

// TestCandidatesThatAreWrong have a status that names them.
func TestCandidatesThatAreWrong(t *testing.T) {
	s := start(t)
	s.policies.Store(newPolicies(t))
	wrap := func(spec string) string {
		return `{"apiVersion":"policy.example.io/v1alpha1","kind":"Review","spec":{` + spec + `}}`
	}
	broken := `{"apiVersion":"templates.gatekeeper.sh/v1","kind":"ConstraintTemplate","metadata":{"name":"broken"},"spec":{"crd":{"spec":{"names":{"kind":"Broken"}}},"targets":[{"target":"admission.k8s.gatekeeper.sh","rego":"package a\nviolation[{\"msg\": msg}] { msg := nonsense(7) }"}]}}`
	many := strings.TrimSuffix(strings.Repeat(newConstraint+",", 101), ",")
	for name, test := range map[string]struct {
		spec string
		code int
		want string
	}{
		"too many":                 {`"scope":{},"candidatePolicies":[` + many + `]`, 422, "spec.candidatePolicies: Too many: 101"},
		"too large":                {`"scope":{},"candidatePolicies":[` + strings.Replace(newConstraint, "warn", strings.Repeat("x", 2<<20), 1) + `]`, 422, "may be 1048576; try fewer at a time"},
		"twice":                    {`"scope":{},"candidatePolicies":[` + newConstraint + "," + newConstraint + `]`, 422, "spec.candidatePolicies[1]: Duplicate value"},
		"not compiling":            {`"scope":{},"candidatePolicies":[` + broken + `]`, 422, `spec.candidatePolicies[0]: Invalid value: \"ConstraintTemplate broken\": template broken: rego:2`},
		"without template":         {`"scope":{},"candidatePolicies":[` + strings.Replace(newConstraint, "NeedLabel", "Absent", 1) + `]`, 422, "there is no ConstraintTemplate absent"},
		"no policy":                {`"scope":{},"candidatePolicies":[` + podNamed("a", "p", "") + `]`, 422, "v1 Pod is no kind of policies"},
		"an unknown kind in scope": {`"scope":{"kinds":[{"kind":"Absent"}]}`, 422, `spec.scope.kinds[0].kind: Invalid value: \"Absent\"`},
		"no objects":               {`"candidatePolicies":[` + newConstraint + `]`, 422, "exactly one of object, objects, resource and scope"},
		"nulls":                    {`"scope":{},"candidatePolicies":[null,7,"x",{}]`, 422, "spec.candidatePolicies[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.post("/reviews", "application/json", "application/json", wrap(test.spec))
			if got.code != test.code || !strings.Contains(got.body, test.want) {
				t.Errorf("%d: %.1000s", got.code, got.body)
			}
		})
	}
	if got := s.post("/reviews", "application/json", "application/json", wrap(`"scope":{},"candidatePolicies":[`+newConstraint+`]`)); got.code != http.StatusCreated {
		t.Errorf("after the others: %d: %s", got.code, got.body)
	}
}
