package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// countLine is a summary as it is compared.
func countLine(s *v1alpha1.AuditSummary) string {
	return fmt.Sprintf("%s: %s/%s %s on %s: %d %d %d", s.Namespace, s.Constraint.Kind, s.Constraint.Name, s.EnforcementAction, s.Resource.Kind, s.Totals.Fail, s.Totals.Error, s.Totals.Deferred)
}

func countLines(list *v1alpha1.AuditSummaryList) []string {
	out := []string{}
	for i := range list.Items {
		out = append(out, countLine(&list.Items[i]))
	}
	return out
}

// takeCounts reads the events of a watch of summaries.
func takeCounts(t *testing.T, w watch.Interface, n int) []string {
	t.Helper()
	out := []string{}
	for len(out) < n {
		select {
		case event := <-w.ResultChan():
			switch object := event.Object.(type) {
			case *v1alpha1.AuditSummary:
				out = append(out, fmt.Sprintf("%s %s", event.Type, countLine(object)))
			case *metav1.Status:
				out = append(out, fmt.Sprintf("%s %d", event.Type, object.Code))
			default:
				return append(out, "closed")
			}
		case <-time.After(10 * time.Second):
			return append(out, "nothing")
		}
	}
	return out
}

// TestAuditSummaries counts by namespace, constraint and kind; selects, prints and
// follows the counts, and reads them as they were.
func TestAuditSummaries(t *testing.T) {
	s := start(t)
	s.summarized.Store(true)
	warned := kindResult("a", "Pod", "p3", "x")
	warned.EnforcementAction = "warn"
	failed := kindResult("a", "Pod", "p4", "x")
	failed.Result = v1alpha1.ResultError
	first := s.put(kindResult("a", "Pod", "p1", "x"), kindResult("a", "Pod", "p2", "x"), warned, failed, kindResult("a", "Secret", "s1", "x"), kindResult("b", "Pod", "p1", "x"))
	all := []string{
		"a: NeedLabel/owner deny on Pod: 2 1 0", "a: NeedLabel/owner warn on Pod: 1 0 0", "a: NeedLabel/owner deny on Secret: 1 0 0", "b: NeedLabel/owner deny on Pod: 1 0 0",
	}
	api := s.client.PolicyV1alpha1()
	for _, test := range []struct {
		namespace string
		options   metav1.ListOptions
		want      []string
	}{
		{"", metav1.ListOptions{}, all},
		{"a", metav1.ListOptions{}, all[:3]},
		{"", metav1.ListOptions{FieldSelector: "resource.kind=Pod,enforcementAction=deny"}, []string{all[0], all[3]}},
		{"", metav1.ListOptions{FieldSelector: "constraint.engine=ValidatingAdmissionPolicy"}, nil},
		{"", metav1.ListOptions{LabelSelector: v1alpha1.LabelResourceKind + "=Secret"}, all[2:3]},
	} {
		list, err := api.AuditSummaries(test.namespace).List(ctx, test.options)
		if err != nil {
			t.Fatal(err)
		}
		got := countLines(list)
		// Names end in hashes, so the order within a namespace is any.
		if !sameLines(test.want, got) {
			t.Errorf("%q by %q%q is %q, want %q", test.namespace, test.options.FieldSelector, test.options.LabelSelector, got, test.want)
		}
	}
	var table metav1.Table
	s.into(s.do(http.MethodGet, root+"/namespaces/b/auditsummaries", asTable), &table)
	if len(table.Rows) != 1 || !strings.HasPrefix(fmt.Sprint(table.Rows[0].Cells[0]), "owner.pod.") {
		t.Errorf("the table is %+v", table.Rows)
	}

	w, err := api.AuditSummaries("a").Watch(ctx, metav1.ListOptions{ResourceVersion: rows.FormatRevision(first), FieldSelector: "enforcementAction=deny"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.put(kindResult("a", "Pod", "p1", "says something else"), kindResult("b", "Pod", "p2", "x")) // no news of a
	s.put(kindResult("a", "Pod", "p4", "x"))
	s.delete("a", "secret.s1")
	s.put(kindResult("a", "Job", "j1", "x"))
	want := []string{"MODIFIED a: NeedLabel/owner deny on Pod: 3 0 0", "DELETED a: NeedLabel/owner deny on Secret: 1 0 0", "ADDED a: NeedLabel/owner deny on Job: 1 0 0"}
	if diff := cmp.Diff(want, takeCounts(t, w, 3)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	old, err := api.AuditSummaries("").List(ctx, metav1.ListOptions{ResourceVersion: rows.FormatRevision(first), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil || !sameLines(all, countLines(old)) {
		t.Errorf("the counts were %q, want %q: %v", countLines(old), all, err)
	}
}

func sameLines(want, got []string) bool {
	count := map[string]int{}
	for _, line := range want {
		count[line]++
	}
	for _, line := range got {
		count[line]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestScopedSummaries shows each user the counts of what they may see, and no others.
func TestScopedSummaries(t *testing.T) {
	tn := startTenants(t)
	tn.summarized.Store(true)
	tn.set("alice", right{"a", "pods"}, right{"b", unscoped})
	tn.set("bob", right{"a", "secrets"})
	tn.set("auditor", right{"", unscoped})
	tn.put(
		kindResult("a", "Pod", "p1", "x"), kindResult("a", "Pod", "p2", "x"), kindResult("a", "Secret", "s1", "x"),
		kindResult("b", "Pod", "p1", "x"), kindResult("b", "Secret", "s1", "x"), kindResult("c", "Pod", "p1", "x"),
	)
	pods, secrets := "a: NeedLabel/owner deny on Pod: 2 0 0", "a: NeedLabel/owner deny on Secret: 1 0 0"
	others := []string{"b: NeedLabel/owner deny on Pod: 1 0 0", "b: NeedLabel/owner deny on Secret: 1 0 0"}
	for user, want := range map[string][]string{
		"alice": append([]string{pods}, others...), "bob": {secrets}, "nobody": {},
		"auditor": append([]string{pods, secrets, "c: NeedLabel/owner deny on Pod: 1 0 0"}, others...),
	} {
		_, client := tn.as(user)
		for _, limit := range []int64{0, 1, 2} {
			got, options := []string{}, metav1.ListOptions{Limit: limit}
			for {
				list, err := client.PolicyV1alpha1().AuditSummaries("").List(ctx, options)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, countLines(list)...)
				if n := list.RemainingItemCount; n != nil && len(got)+int(*n) != len(want) {
					t.Errorf("%s: after %d of %d, %d remain", user, len(got), len(want), *n)
				}
				if options.Continue = list.Continue; list.Continue == "" {
					break
				}
			}
			if !sameLines(want, got) {
				t.Errorf("%s sees %q, want %q", user, got, want)
			}
		}
	}

	name := func(kind string) string {
		r := kindResult("a", kind, "x", "x")
		return v1alpha1.AuditSummaryName(r.Constraint, v1alpha1.KindReference{Kind: kind}, "deny")
	}
	_, alice := tn.as("alice")
	api := alice.PolicyV1alpha1().AuditSummaries("a")
	if got, err := api.Get(ctx, name("Pod"), metav1.GetOptions{}); err != nil || countLine(got) != pods {
		t.Errorf("of Pods: %v, %v", got, err)
	}
	hidden := tn.get(t, "alice", "/namespaces/a/auditsummaries/"+name("Secret"), "application/json")
	missing := tn.get(t, "alice", "/namespaces/a/auditsummaries/"+name("Missing"), "application/json")
	if want := strings.ReplaceAll(missing, name("Missing"), name("Secret")); hidden != want || !strings.Contains(hidden, `"code":404`) {
		t.Errorf("hidden: %s\nmissing: %s", hidden, missing)
	}

	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	tn.put(kindResult("a", "Secret", "s2", "hidden"), kindResult("c", "Pod", "p2", "hidden"), kindResult("a", "Pod", "p3", "x"))
	if diff := cmp.Diff([]string{"MODIFIED a: NeedLabel/owner deny on Pod: 3 0 0"}, takeCounts(t, w, 1)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	tn.set("alice", right{"a", "secrets"})
	if diff := cmp.Diff([]string{"ERROR 410", "closed"}, takeCounts(t, w, 2)); diff != "" {
		t.Errorf("the end (-want +got):\n%s", diff)
	}
	if list, err = api.List(ctx, metav1.ListOptions{}); err != nil || !sameLines([]string{"a: NeedLabel/owner deny on Secret: 2 0 0"}, countLines(list)) {
		t.Errorf("the list afterwards: %q, %v", countLines(list), err)
	}
}

// counts are the summaries that a user sees: the oracle counts the findings that they see.
func (m *scopeModel) counts(user, namespace string) []string {
	totals := map[string]*v1alpha1.AuditSummary{}
	for _, r := range m.findings {
		if !m.sees(user, r) || namespace != "" && namespace != r.Namespace {
			continue
		}
		key := r.Namespace + "/" + r.Resource.Kind
		if totals[key] == nil {
			totals[key] = &v1alpha1.AuditSummary{
				ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace}, Constraint: r.Constraint,
				Resource: v1alpha1.KindReference{Kind: r.Resource.Kind}, EnforcementAction: r.EnforcementAction,
			}
		}
		if r.Result == v1alpha1.ResultError {
			totals[key].Totals.Error++
		} else {
			totals[key].Totals.Fail++
		}
	}
	out := []string{}
	for _, s := range totals {
		out = append(out, countLine(s))
	}
	return out
}

// compareCounts lists the summaries as a user.
func (m *scopeModel) compareCounts(t *testing.T, random *rand.Rand, user, what string) {
	_, client := m.as(user)
	namespace := append(modelNamespaces, "", "")[random.IntN(7)]
	options, got := metav1.ListOptions{Limit: int64(random.IntN(4))}, []string{}
	for {
		list, err := client.PolicyV1alpha1().AuditSummaries(namespace).List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			options.Continue, got = "", []string{}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got = append(got, countLines(list)...)
		if options.Continue = list.Continue; list.Continue == "" {
			break
		}
	}
	if want := m.counts(user, namespace); !sameLines(want, got) {
		t.Errorf("%s: %s counts %q in %q, want %q", what, user, got, namespace, want)
	}
}

// awaitCounts waits until what is followed for a user has the summaries that its user sees.
func (m *scopeModel) awaitCounts(t *testing.T, user string, store cache.Store, what string) {
	want := m.counts(user, "")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := []string{}
		for _, object := range store.List() {
			if s, ok := object.(*v1alpha1.AuditSummary); ok {
				got = append(got, countLine(s))
			}
		}
		if sameLines(want, got) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: what %s has followed is %q, want %q", what, user, got, want)
		}
	}
}
