package conformance

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// startShop has findings for alice, who may see Pods of a and everything of b, for bob,
// who may see Secrets of a and all Nodes, and for an auditor.
func startShop(t testing.TB) *tenants {
	tn := startTenants(t)
	tn.set("alice", right{"a", "pods"}, right{"b", unscoped})
	tn.set("bob", right{"a", "secrets"}, right{"", "nodes"})
	tn.set("auditor", right{"", unscoped})
	tn.putObjects(
		kindResult("a", "Pod", "p1", "x"), kindResult("a", "Pod", "p2", "x"), kindResult("a", "Secret", "s1", "x"),
		kindResult("b", "Pod", "p1", "x"), kindResult("b", "Secret", "s1", "x"), kindResult("c", "Pod", "p1", "x"),
		kindClusterResult("Node", "n1"), kindClusterResult("ClusterRole", "r1"),
	)
	return tn
}

// TestScopedLists shows each user what they may see, by any selector, in pages and in
// all representations.
func TestScopedLists(t *testing.T) {
	tn := startShop(t)
	for _, test := range []struct {
		user, namespace string
		options         metav1.ListOptions
		want            []string
	}{
		{"alice", "", metav1.ListOptions{}, []string{"a/pod.p1", "a/pod.p2", "b/pod.p1", "b/secret.s1"}},
		{"alice", "a", metav1.ListOptions{}, []string{"a/pod.p1", "a/pod.p2"}},
		{"alice", "c", metav1.ListOptions{}, []string{}},
		{"alice", "", metav1.ListOptions{FieldSelector: "resource.kind=Secret"}, []string{"b/secret.s1"}},
		{"alice", "", metav1.ListOptions{FieldSelector: "resource.kind!=Secret"}, []string{"a/pod.p1", "a/pod.p2", "b/pod.p1"}},
		{"alice", "", metav1.ListOptions{FieldSelector: "metadata.name=secret.s1"}, []string{"b/secret.s1"}},
		{"alice", "", metav1.ListOptions{FieldSelector: "metadata.namespace=a,metadata.name=secret.s1"}, []string{}},
		{"alice", "", metav1.ListOptions{FieldSelector: "metadata.name="}, []string{}},
		{"alice", "", metav1.ListOptions{LabelSelector: "kind in (Secret, Pod)"}, []string{"a/pod.p1", "a/pod.p2", "b/pod.p1", "b/secret.s1"}},
		{"bob", "", metav1.ListOptions{}, []string{"a/secret.s1"}},
		{"bob", "", metav1.ListOptions{LabelSelector: "kind=Pod"}, []string{}},
		{"nobody", "", metav1.ListOptions{}, []string{}},
		{"auditor", "", metav1.ListOptions{}, []string{"a/pod.p1", "a/pod.p2", "a/secret.s1", "b/pod.p1", "b/secret.s1", "c/pod.p1"}},
	} {
		t.Run(fmt.Sprintf("%s %s %s%s", test.user, test.namespace, test.options.FieldSelector, test.options.LabelSelector), func(t *testing.T) {
			_, client := tn.as(test.user)
			for _, limit := range []int64{0, 1, 2, 500} {
				test.options.Limit, test.options.Continue = limit, ""
				got := []string{}
				for {
					list, err := client.PolicyV1alpha1().AuditResults(test.namespace).List(ctx, test.options)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, names(list)...)
					if n := list.RemainingItemCount; n != nil && len(got)+int(*n) != len(test.want) {
						t.Errorf("after %d of %d, %d remain", len(got), len(test.want), *n)
					}
					if test.options.Continue = list.Continue; list.Continue == "" {
						break
					}
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("limit %d (-want +got):\n%s", limit, diff)
				}
			}
		})
	}
	for user, want := range map[string][]string{"alice": {}, "bob": {"node.n1"}, "auditor": {"clusterrole.r1", "node.n1"}} {
		_, client := tn.as(user)
		list, err := client.PolicyV1alpha1().ClusterAuditResults().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for i := range list.Items {
			got = append(got, list.Items[i].Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("cluster-scoped findings of %s (-want +got):\n%s", user, diff)
		}
	}
	for _, accept := range []string{
		"application/json", "application/yaml",
		"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		body := tn.get(t, "alice", "/auditresults", accept)
		if strings.Count(body, "secret.s1") == 0 || strings.Contains(body, `"namespace":"c"`) || strings.Contains(body, "namespace: c\n") {
			t.Errorf("%s: %s", accept, body)
		}
	}
}

// get gets something as a user, whatever the answer is.
func (tn *tenants) get(t testing.TB, user, path, accept string) string {
	t.Helper()
	config, _ := tn.as(user)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodGet, config.Host+root+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestHiddenIsNotFound answers for a hidden finding as for one that is not there.
func TestHiddenIsNotFound(t *testing.T) {
	tn := startShop(t)
	hidden := tn.get(t, "alice", "/namespaces/a/auditresults/secret.s1", "application/json")
	missing := tn.get(t, "alice", "/namespaces/a/auditresults/secret.s2", "application/json")
	if want := strings.ReplaceAll(missing, "s2", "s1"); hidden != want || !strings.Contains(hidden, `"code":404`) {
		t.Errorf("hidden: %s\nmissing: %s", hidden, missing)
	}
	_, client := tn.as("alice")
	if r, err := client.PolicyV1alpha1().AuditResults("a").Get(ctx, "pod.p1", metav1.GetOptions{}); err != nil || r.Name != "pod.p1" {
		t.Errorf("visible: %v", err)
	}
	if _, err := client.PolicyV1alpha1().ClusterAuditResults().Get(ctx, "node.n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("cluster-scoped: %v", err)
	}
}

// TestScopedWatch sends the events of what a user may see, until that changes.
func TestScopedWatch(t *testing.T) {
	tn := startShop(t)
	_, client := tn.as("alice")
	api := client.PolicyV1alpha1().AuditResults("")
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	initial, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: "resource.kind=Secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer initial.Stop()
	tn.put(kindResult("a", "Secret", "s2", "hidden"), kindResult("c", "Pod", "p2", "hidden"), kindResult("a", "Pod", "p1", "new"))
	tn.put(kindResult("b", "Secret", "s1", "new"))
	tn.delete("a", "secret.s1")
	tn.delete("c", "pod.p1")
	tn.delete("a", "pod.p2")
	if diff := cmp.Diff([]string{"MODIFIED pod.p1", "MODIFIED secret.s1", "DELETED pod.p2"}, take(t, w, 3)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ADDED secret.s1", "MODIFIED secret.s1"}, take(t, initial, 2)); diff != "" {
		t.Errorf("events of Secrets (-want +got):\n%s", diff)
	}
	tn.set("alice", right{"a", "secrets"})
	started := time.Now()
	if diff := cmp.Diff([]string{"ERROR 410", "closed"}, take(t, w, 2)); diff != "" {
		t.Errorf("the end (-want +got):\n%s", diff)
	}
	if took := time.Since(started); took > answersTTL+2*time.Second {
		t.Errorf("the watch ends after %v", took)
	}
	list, err = api.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a/secret.s2"}, names(list)); diff != "" {
		t.Errorf("the list afterwards (-want +got):\n%s", diff)
	}
	again, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	tn.put(kindResult("a", "Secret", "s3", "x"))
	if diff := cmp.Diff([]string{"ADDED secret.s3"}, take(t, again, 1)); diff != "" {
		t.Errorf("the watch afterwards (-want +got):\n%s", diff)
	}
}

// TestContinueAfterChange cannot go on with a list after its user may see other things.
func TestContinueAfterChange(t *testing.T) {
	tn := startShop(t)
	_, client := tn.as("alice")
	api := client.PolicyV1alpha1().AuditResults("")
	page, err := api.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, other := tn.as("bob")
	if _, err := other.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{Limit: 1, Continue: page.Continue}); !apierrors.IsResourceExpired(err) {
		t.Errorf("with somebody else's token: %v", err)
	}
	if _, err := api.List(ctx, metav1.ListOptions{Limit: 1, Continue: page.Continue}); err != nil {
		t.Fatal(err)
	}
	tn.set("alice", right{"a", "secrets"})
	time.Sleep(answersTTL)
	// The first request that learns of the change may still be answered.
	if _, err := api.List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = api.List(ctx, metav1.ListOptions{Limit: 1, Continue: page.Continue})
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) || status.Status().Continue != "" {
		t.Errorf("after the change: %v", err)
	}
}

// TestAuthorizerFails with 503, and says no more than that.
func TestAuthorizerFails(t *testing.T) {
	tn := startShop(t)
	tn.mu.Lock()
	tn.broken = true
	tn.mu.Unlock()
	for _, path := range []string{"/auditresults", "/namespaces/a/auditresults", "/namespaces/a/auditresults/pod.p1", "/clusterauditresults", "/auditresults?watch=1"} {
		body := tn.get(t, "alice", path, "application/json")
		if !strings.Contains(body, `"code":503`) || !strings.Contains(body, "retryAfterSeconds") || strings.Contains(body, "webhook") {
			t.Errorf("%s: %s", path, body)
		}
	}
	// These show counts, and are not asked about.
	for _, path := range []string{"/auditruns", "/constraintsummaries"} {
		if body := tn.get(t, "alice", path, "application/json"); !strings.Contains(body, `List"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// TestEmptyScopeIsStable does not have who sees nothing list again and again.
func TestEmptyScopeIsStable(t *testing.T) {
	tn := startShop(t)
	_, client := tn.as("nobody")
	api := client.PolicyV1alpha1().AuditResults("")
	for _, selector := range []string{"", "metadata.name="} {
		list, err := api.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		select {
		case event := <-w.ResultChan():
			t.Errorf("selector %q: %v", selector, event)
		case <-time.After(3 * answersTTL):
		}
	}
}
