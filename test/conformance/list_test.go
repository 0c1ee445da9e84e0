package conformance

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/rows"
)

var ctx = context.Background()

// TestPages reads a list in pages while it changes: all pages are of the state
// that the first one was of.
func TestPages(t *testing.T) {
	s := start(t)
	s.put(podNames(25)...)
	api := s.client.PolicyV1alpha1().AuditResults("")
	whole, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Items) != 25 || whole.Continue != "" || whole.RemainingItemCount != nil {
		t.Fatalf("whole list: %d items, continue %q", len(whole.Items), whole.Continue)
	}
	for _, selector := range []string{"", "resource.kind=Pod", "resource.name!=p003"} {
		var got []string
		options := metav1.ListOptions{Limit: 7, FieldSelector: selector}
		first := ""
		for page := 0; ; page++ {
			list, err := api.List(ctx, options)
			if err != nil {
				t.Fatalf("page %d: %v", page, err)
			}
			if first == "" {
				first = list.ResourceVersion
			}
			if list.ResourceVersion != first {
				t.Errorf("page %d is of resourceVersion %s, the first of %s", page, list.ResourceVersion, first)
			}
			if page == 0 {
				if known := list.RemainingItemCount != nil; known != (selector == "") {
					t.Errorf("selector %q: remainingItemCount known: %v", selector, known)
				} else if known && *list.RemainingItemCount != 18 {
					t.Errorf("remainingItemCount is %d, want 18", *list.RemainingItemCount)
				}
			}
			got = append(got, names(list)...)
			if list.Continue == "" {
				break
			}
			options.Continue = list.Continue
			// The list changes, in front and behind.
			s.put(result("ns0", "p000a", "new"), result("ns2", "zzz", "new"))
			s.delete("ns0", "p000a")
			s.put(result("ns1", "p010", "changed on page "+first))
		}
		want := names(whole)
		if selector == "resource.name!=p003" {
			want = slices.DeleteFunc(want, func(n string) bool { return n == "ns0/p003" })
		}
		if selector != "" {
			want = append(want, "ns2/zzz") // written during the first round
			slices.Sort(want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("selector %q (-want +got):\n%s", selector, diff)
		}
	}
}

// TestContinueAfterCompaction gets 410 with a token to go on with.
func TestContinueAfterCompaction(t *testing.T) {
	s := start(t)
	s.put(podNames(10)...)
	api := s.client.PolicyV1alpha1().AuditResults("")
	first, err := api.List(ctx, metav1.ListOptions{Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	s.put(result("ns2", "zzz", "x"))
	s.compact()
	_, err = api.List(ctx, metav1.ListOptions{Limit: 4, Continue: first.Continue})
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("a page of a compacted list: %v", err)
	}
	token := err.(apierrors.APIStatus).Status().Continue
	if token == "" {
		t.Fatal("the 410 has no token to go on with")
	}
	rest, err := api.List(ctx, metav1.ListOptions{Continue: token})
	if err != nil {
		t.Fatal(err)
	}
	if got := append(names(first), names(rest)...); len(got) != 11 || got[10] != "ns2/zzz" {
		t.Errorf("the list goes on as %v", got)
	}
	if _, err := api.List(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
		t.Errorf("exact list of a compacted revision: %v", err)
	}
}

func TestResourceVersions(t *testing.T) {
	s := start(t)
	old := s.put(result("a", "one", "x"))
	now := s.put(result("a", "two", "x"))
	future := rows.FormatRevision(now + 1000)
	api := s.client.PolicyV1alpha1().AuditResults("")
	for _, test := range []struct {
		name    string
		options metav1.ListOptions
		want    int
		fails   func(error) bool
	}{
		{"unset", metav1.ListOptions{}, 2, nil},
		{"0", metav1.ListOptions{ResourceVersion: "0"}, 2, nil},
		{"N without limit", metav1.ListOptions{ResourceVersion: rows.FormatRevision(old)}, 2, nil},
		{"N with limit is exact", metav1.ListOptions{ResourceVersion: rows.FormatRevision(old), Limit: 10}, 1, nil},
		{"not older than", metav1.ListOptions{ResourceVersion: rows.FormatRevision(old), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Limit: 10}, 2, nil},
		{"exact", metav1.ListOptions{ResourceVersion: rows.FormatRevision(old), ResourceVersionMatch: metav1.ResourceVersionMatchExact}, 1, nil},
		{"no number", metav1.ListOptions{ResourceVersion: "abc"}, 0, apierrors.IsBadRequest},
		{"match without version", metav1.ListOptions{ResourceVersionMatch: metav1.ResourceVersionMatchExact}, 0, apierrors.IsInvalid},
		{"garbage token", metav1.ListOptions{Continue: "garbage"}, 0, apierrors.IsBadRequest},
		{"unknown field", metav1.ListOptions{FieldSelector: "spec.x=y"}, 0, apierrors.IsBadRequest},
	} {
		t.Run(test.name, func(t *testing.T) {
			list, err := api.List(ctx, test.options)
			if test.fails != nil {
				if !test.fails(err) {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != test.want || list.ResourceVersion == "" {
				t.Errorf("%d items at %q, want %d", len(list.Items), list.ResourceVersion, test.want)
			}
		})
	}
	// The client would ask again and again.
	for _, query := range []string{"resourceVersion=" + future, "resourceVersionMatch=Exact&resourceVersion=" + future} {
		got := s.do(http.MethodGet, root+"/auditresults?"+query, "")
		if got.code != http.StatusGatewayTimeout || got.header.Get("Retry-After") != "1" || !strings.Contains(got.body, "ResourceVersionTooLarge") {
			t.Errorf("%s: %d: %s", query, got.code, got.body)
		}
	}
}

func TestGet(t *testing.T) {
	s := start(t)
	old := s.put(result("a", "one", "x"))
	now := s.put(result("a", "two", "x"))
	for _, test := range []struct {
		name, version string
		code          int
	}{
		{"one", "", http.StatusOK},
		{"one", "0", http.StatusOK},
		{"two", rows.FormatRevision(old), http.StatusOK}, // not older than that
		{"one", rows.FormatRevision(now), http.StatusOK},
		{"three", "", http.StatusNotFound},
		{"one", "x", http.StatusBadRequest},
		{"one", rows.FormatRevision(now + 1000), http.StatusGatewayTimeout},
	} {
		got := s.do(http.MethodGet, root+"/namespaces/a/auditresults/"+test.name+"?resourceVersion="+test.version, "")
		if got.code != test.code {
			t.Errorf("%s at %q: %d, want %d: %s", test.name, test.version, got.code, test.code, got.body)
		}
		var obj v1alpha1.AuditResult
		want := map[string]uint64{"one": old, "two": now}[test.name]
		if got.code == http.StatusOK {
			if s.into(got, &obj); obj.ResourceVersion != rows.FormatRevision(want) || obj.Kind != "AuditResult" {
				t.Errorf("%s at %q: %+v", test.name, test.version, obj)
			}
		}
	}
	// A revision that is written while the request waits.
	done := make(chan answer)
	go func() {
		done <- s.do(http.MethodGet, root+"/namespaces/a/auditresults/three?resourceVersion="+rows.FormatRevision(now+1), "")
	}()
	s.put(result("a", "three", "x"))
	if got := <-done; got.code != http.StatusOK {
		t.Errorf("waiting for a revision: %d: %s", got.code, got.body)
	}
}

// TestTokens refuses continue tokens that are not of the list they are used for.
func TestTokens(t *testing.T) {
	s := start(t)
	s.put(podNames(9)...)
	page, err := s.client.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{Limit: 2, FieldSelector: "resource.kind=Pod", LabelSelector: "pod"})
	if err != nil {
		t.Fatal(err)
	}
	token := page.Continue
	const selectors = "fieldSelector=resource.kind%3DPod&labelSelector=pod&"
	for query, code := range map[string]int{
		"/auditresults?" + selectors + "continue=" + token:                                    http.StatusOK,
		"/auditresults?" + selectors + "resourceVersion=0&continue=" + token:                  http.StatusOK,
		"/auditresults?" + selectors + "resourceVersion=7&continue=" + token:                  http.StatusBadRequest,
		"/auditresults?" + selectors + "continue=" + token[1:]:                                http.StatusBadRequest,
		"/auditresults?" + selectors + "continue=" + token[:len(token)-4]:                     http.StatusBadRequest,
		"/auditresults?" + selectors + "continue=e30":                                         http.StatusBadRequest,
		"/auditresults?continue=" + token:                                                     http.StatusBadRequest,
		"/auditresults?fieldSelector=resource.kind%3DPod&continue=" + token:                   http.StatusBadRequest,
		"/auditresults?fieldSelector=resource.kind%3DJob&labelSelector=pod&continue=" + token: http.StatusBadRequest,
		"/namespaces/ns0/auditresults?" + selectors + "continue=" + token:                     http.StatusBadRequest,
		"/clusterauditresults?" + selectors + "continue=" + token:                             http.StatusBadRequest,
	} {
		if got := s.do(http.MethodGet, root+query, ""); got.code != code {
			t.Errorf("%s: %d, want %d: %s", query, got.code, code, got.body)
		}
	}
}

// TestTokenOfANewerIndex is what happens when an old copy of the index is put
// back: 410, so that clients list anew, and not an error of the server.
func TestTokenOfANewerIndex(t *testing.T) {
	s, newer := start(t), start(t)
	s.put(podNames(3)...)
	newer.put(podNames(9)...)
	list, err := newer.client.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if newer.db.Revision() <= s.db.Revision() {
		t.Fatalf("revision %d is not above %d", newer.db.Revision(), s.db.Revision())
	}
	_, err = s.client.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{Limit: 2, Continue: list.Continue})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("the error is %v", err)
	}
}

// TestSelectors selects by fields and labels, alone and together.
func TestSelectors(t *testing.T) {
	s := start(t)
	s.put(podNames(9)...)
	for _, test := range []struct {
		namespace, fields, labels string
		want                      int
	}{
		{"", "resource.name=p004", "", 1},
		{"ns0", "resource.name=p004", "", 0},
		{"", "metadata.name=p004,resource.kind=Pod", "", 1},
		{"", "metadata.namespace=ns1", "", 3},
		{"ns0", "metadata.namespace=ns1", "", 0},
		{"", "resource.kind!=Pod", "", 0},
		{"", "owner.kind=", "", 9},
		{"", "", "pod=p001", 1},
		{"", "", "pod in (p001,p002)", 2},
		{"", "", "pod notin (p001,p002)", 7},
		{"", "", "!pod", 0},
		{"", "resource.namespace=ns1", "pod!=p001", 2},
	} {
		list, err := s.client.PolicyV1alpha1().AuditResults(test.namespace).List(ctx, metav1.ListOptions{FieldSelector: test.fields, LabelSelector: test.labels})
		if err != nil || len(list.Items) != test.want {
			t.Errorf("%+v: %d items, %v", test, len(list.Items), err)
		}
	}
}

// TestNotReady answers 503 with Retry-After, and discovery all the same.
func TestNotReady(t *testing.T) {
	s := start(t)
	s.ready.Store(false)
	for path, want := range map[string]int{
		"/apis/policy.example.io/v1alpha1/auditresults":                      http.StatusServiceUnavailable,
		"/apis/policy.example.io/v1alpha1/auditresults?watch=true":           http.StatusServiceUnavailable,
		"/apis/policy.example.io/v1alpha1/namespaces/a/auditresults/x":       http.StatusServiceUnavailable,
		"/apis/policy.example.io/v1alpha1":                                   http.StatusOK,
		"/openapi/v2":                                                        http.StatusOK,
		"/openapi/v3/apis/policy.example.io/v1alpha1":                        http.StatusOK,
		"/apis/policy.example.io/v1alpha1/namespaces/a/auditresults?limit=x": http.StatusBadRequest,
	} {
		got := s.do(http.MethodGet, path, "")
		if got.code != want {
			t.Errorf("%s: %d, want %d: %s", path, got.code, want, got.body)
		}
		if want == http.StatusServiceUnavailable && (got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "first audit")) {
			t.Errorf("%s: Retry-After %q, %s", path, got.header.Get("Retry-After"), got.body)
		}
	}
}

// TestStalled serves what there is, with a warning that kubectl prints.
func TestStalled(t *testing.T) {
	s := start(t)
	s.put(result("shop", "cart", "bad"))
	for _, path := range []string{
		"/apis/policy.example.io/v1alpha1/auditresults",
		"/apis/policy.example.io/v1alpha1/namespaces/shop/auditresults/cart",
	} {
		if warning := s.do(http.MethodGet, path, "").header.Get("Warning"); warning != "" {
			t.Errorf("%s: warning %q", path, warning)
		}
		s.stale.Store(true)
		got := s.do(http.MethodGet, path, "")
		if want := `299 - "what is shown may be out of date: since noon nothing can be written: disk full"`; got.code != http.StatusOK || got.header.Get("Warning") != want {
			t.Errorf("%s: %d, warning %q", path, got.code, got.header.Get("Warning"))
		}
		s.stale.Store(false)
	}
}
