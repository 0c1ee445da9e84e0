package access_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/audit"

	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// TestAnnotations tell in the audit log what a request saw.
func TestAnnotations(t *testing.T) {
	f := newFixture(t)
	f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"), finding("c", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"}, grant{"c", "pods"}, grant{"c", unscoped}, grant{"elsewhere", "pods"})
	f.grant("auditor", grant{"", unscoped})
	f.grant("viewer", grant{"", "pods"})
	for _, test := range []struct {
		user  string
		table index.Table
		want  map[string]string
	}{
		{"tenant", rows.AuditResults, map[string]string{access.AnnotationScope: "scoped", access.AnnotationNamespaces: "2", access.AnnotationReviews: "3"}},
		{"tenant", rows.AuditResults, map[string]string{access.AnnotationScope: "scoped", access.AnnotationNamespaces: "2", access.AnnotationReviews: "0"}},
		{"nobody", rows.AuditResults, map[string]string{access.AnnotationScope: "scoped", access.AnnotationNamespaces: "0", access.AnnotationReviews: "1"}},
		{"viewer", rows.AuditResults, map[string]string{access.AnnotationScope: "scoped", access.AnnotationNamespaces: "3", access.AnnotationReviews: "2"}},
		{"auditor", rows.AuditResults, map[string]string{access.AnnotationScope: "unscoped", access.AnnotationReviews: "1"}},
		{"auditor", rows.AuditRuns, nil},
	} {
		ctx := audit.WithAuditContext(f.context(test.user))
		v, err := f.access.View(ctx, test.table)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.List(ctx, index.Query{Table: test.table}); err != nil {
			t.Fatal(err)
		}
		v.Annotate(ctx)
		if diff := cmp.Diff(test.want, audit.AuditContextFrom(ctx).GetEventAnnotations()); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", test.user, test.table, diff)
		}
	}
}
