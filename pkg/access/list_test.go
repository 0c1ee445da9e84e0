package access_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	namespaces = 5000
	unscoped   = "auditresults/unscoped"
	// mayReview is how many questions a page may take, less the one by which the server
	// finds out whether a user may list at all.
	mayReview = 19
)

// big has findings on objects of some kinds in some of 5,000 namespaces, or in all if
// none are named, and of one kind in the others.
func big(t testing.TB, kinds int, in ...string) *fixture {
	f := newFixture(t)
	var objects []metav1.Object
	for n := range namespaces {
		here := kinds
		if len(in) > 0 && !slices.Contains(in, fmt.Sprintf("ns-%04d", n)) {
			here = 1
		}
		for k := range here {
			objects = append(objects, finding(fmt.Sprintf("ns-%04d", n), fmt.Sprintf("kind%02d", k), fmt.Sprintf("object-%02d", k)))
		}
	}
	f.put(t, objects...)
	return f
}

// TestThreeOfManyNamespaces counts what a page costs whose user has rights in three of
// 5,000 namespaces, and how many rows the index looks at for it.
func TestThreeOfManyNamespaces(t *testing.T) {
	for _, kinds := range []int{1, 4, 6, 9, 17} {
		t.Run(fmt.Sprintf("%d kinds", kinds), func(t *testing.T) {
			own := []string{"ns-0003", "ns-2500", "ns-4998"}
			f := big(t, kinds, own...)
			var want []string
			for _, namespace := range own {
				for k := range kinds {
					f.grant("tenant", grant{namespace, fmt.Sprintf("kind%02ds", k)})
					want = append(want, fmt.Sprintf("%s/object-%02d", namespace, k))
				}
			}
			f.latency = time.Millisecond
			var page *index.Page
			best := time.Hour // of some times: the machine may have other things to do
			for range 3 {
				examined := 0
				q := index.Query{Table: rows.AuditResults, Limit: 500, Match: func(*index.Row) bool { examined++; return true }}
				fresh, err := access.New(f.access.Config) // nothing is known yet
				if err != nil {
					t.Fatal(err)
				}
				f.take()
				started := time.Now()
				v, err := fresh.View(f.context("tenant"), q.Table)
				if err != nil {
					t.Fatal(err)
				}
				if page, err = v.List(f.context("tenant"), q); err != nil {
					t.Fatal(err)
				}
				best = min(best, time.Since(started))
				asked := len(f.take())
				t.Logf("%d rows with %d questions, after a look at %d", len(page.Rows), asked, examined)
				if asked > mayReview || examined > 3*kinds {
					t.Errorf("the first page took %d questions and a look at %d rows", asked, examined)
				}
			}
			if t.Logf("in %v", best); best > 200*time.Millisecond {
				t.Errorf("the first page took %v", best)
			}
			if complete := len(page.Rows) == 3*kinds; complete == page.More || len(page.Rows) == 0 || kinds <= 6 && !complete {
				t.Errorf("the first page has %d rows, more: %v", len(page.Rows), page.More)
			}
			for _, limit := range []int{0, 2, 500} {
				got, sizes := f.names(t, "tenant", index.Query{Table: rows.AuditResults}, limit)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("in pages of %d (-want +got):\n%s", limit, diff)
				}
				if limit == 500 && len(sizes) > 1 {
					t.Errorf("pages of %v rows, of what is known already", sizes)
				}
			}
		})
	}
}

// TestCost counts the questions that first pages of lists take.
func TestCost(t *testing.T) {
	const kinds = 3
	f := big(t, kinds)
	f.put(t, finding("", "node", "n1"), finding("", "role", "r1"))
	f.grant("auditor", grant{"", unscoped})
	f.grant("viewer", grant{"", "kind00s"}, grant{"", "kind01s"}, grant{"", "kind02s"})
	f.grant("developer", grant{"", "kind00s"}, grant{"ns-0001", "kind01s"})
	f.grant("lead", grant{"ns-0007", unscoped}, grant{"ns-4000", unscoped})
	f.grant("operator", grant{"", "nodes"})
	for _, test := range []struct {
		user  string
		query index.Query
		rows  int
		asked []string
	}{
		{"auditor", index.Query{Table: rows.AuditResults}, 10, []string{" " + unscoped}},
		{"auditor", index.Query{Table: rows.ClusterAuditResults}, 2, []string{" " + unscoped}},
		{"viewer", index.Query{Table: rows.AuditResults}, 10, []string{" " + unscoped, " kind00s", " kind01s", " kind02s"}},
		{"developer", index.Query{Table: rows.AuditResults}, 10, []string{" " + unscoped, " kind00s", "ns-0001 kind01s"}},
		{"developer", index.Query{Table: rows.AuditResults, Namespace: "ns-0001"}, 2, []string{" " + unscoped, "ns-0001 kind00s", "ns-0001 kind01s"}},
		{"lead", index.Query{Table: rows.AuditResults}, 2 * kinds, []string{" " + unscoped, "ns-0007 " + unscoped, "ns-4000 " + unscoped}},
		{"lead", index.Query{Table: rows.AuditResults, Namespace: "ns-0008"}, 0, []string{" " + unscoped}},
		{"operator", index.Query{Table: rows.ClusterAuditResults}, 1, []string{" " + unscoped, " nodes"}},
		{"operator", index.Query{Table: rows.AuditResults}, 0, []string{" " + unscoped}},
		{"nobody", index.Query{Table: rows.AuditResults}, 0, []string{" " + unscoped}},
		{"nobody", index.Query{Table: rows.AuditRuns}, 0, nil},
	} {
		t.Run(test.user+" "+string(test.query.Table)+" "+test.query.Namespace, func(t *testing.T) {
			fresh, err := access.New(f.access.Config) // nothing is known yet
			if err != nil {
				t.Fatal(err)
			}
			f.take()
			v, err := fresh.View(f.context(test.user), test.query.Table)
			if err != nil {
				t.Fatal(err)
			}
			test.query.Limit = 10
			page, err := v.List(f.context(test.user), test.query)
			if err != nil || len(page.Rows) != test.rows {
				t.Fatalf("%+v, %v, want %d rows", page, err, test.rows)
			}
			asked := f.take()
			slices.Sort(asked)
			if diff := cmp.Diff(test.asked, asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if _, err = v.List(f.context(test.user), test.query); err != nil || len(f.take()) != 0 {
				t.Errorf("what is known is asked again: %v", err)
			}
		})
	}
}

// TestRemaining counts visible rows only.
func TestRemaining(t *testing.T) {
	f := newFixture(t)
	for _, namespace := range []string{"a", "b", "c", "d"} {
		f.put(t, finding(namespace, "pod", "p1"), finding(namespace, "pod", "p2"), finding(namespace, "secret", "p3"), finding(namespace, "secret", "p4"))
	}
	f.grant("tenant", grant{"a", "pods"}, grant{"b", "secrets"}, grant{"d", unscoped})
	for limit, want := range map[int]int64{1: -1, 2: -1, 3: 5, 4: 4, 5: 3, 7: 1, 8: 0} {
		page, err := f.view(t, "tenant", rows.AuditResults).List(f.context("tenant"), index.Query{Table: rows.AuditResults, Limit: limit})
		if err != nil || page.Remaining != want || page.More != (want != 0) || len(page.Rows) != limit {
			t.Errorf("limit %d: %d rows, %d remaining, more: %v, %v; want %d remaining", limit, len(page.Rows), page.Remaining, page.More, err, want)
		}
	}
}

// TestRefused asks single namespaces where RBAC grants all and the authorizer does not
// agree: another one is before RBAC.
func TestRefused(t *testing.T) {
	f := newFixture(t)
	f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"), finding("c", "pod", "p"))
	f.grant("viewer", grant{"", "pods"})
	f.refused = []grant{{"", "pods"}, {"b", "pods"}}
	got, _ := f.names(t, "viewer", index.Query{Table: rows.AuditResults}, 1)
	if diff := cmp.Diff([]string{"a/p", "c/p"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestFailClosed breaks the authorizer for one question after the other. A list fails
// then, or it did not need the question: it is never shorter.
func TestFailClosed(t *testing.T) {
	f := newFixture(t)
	f.put(t, finding("a", "pod", "p"), finding("a", "secret", "s"), finding("b", "pod", "p"), finding("b", "secret", "s"))
	f.grant("tenant", grant{"a", "pods"}, grant{"a", "secrets"}, grant{"b", unscoped})
	list := func() (*index.Page, error) {
		fresh, err := access.New(f.access.Config)
		if err != nil {
			t.Fatal(err)
		}
		v, err := fresh.View(f.context("tenant"), rows.AuditResults)
		if err != nil {
			return nil, err
		}
		return v.List(f.context("tenant"), index.Query{Table: rows.AuditResults})
	}
	page, err := list()
	if err != nil || len(page.Rows) != 4 {
		t.Fatalf("%+v, %v", page, err)
	}
	asked := f.take()
	if len(asked) != 4 {
		t.Fatalf("asked %q", asked)
	}
	for _, question := range asked {
		f.broken = func(a authorizer.Attributes) bool {
			namespace, resource, _ := strings.Cut(question, " ")
			resource, _, _ = strings.Cut(resource, "/")
			return a.GetNamespace() == namespace && a.GetResource() == resource
		}
		if page, err := list(); !errors.Is(err, access.ErrUnavailable) {
			t.Errorf("without an answer to %q: %+v, %v", question, page, err)
		}
	}
	f.broken = nil
	f.notSynced = true
	if page, err := list(); !errors.Is(err, access.ErrUnavailable) {
		t.Errorf("without grants: %+v, %v", page, err)
	}
}

// TestUnknownKind is hidden from all but those who see everything.
func TestUnknownKind(t *testing.T) {
	for name, change := range map[string]func(*access.Config){"rbac": func(*access.Config) {}, "none": unnarrowed} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, change)
			f.put(t, finding("a", "pod", "p"), finding("a", "Unknown kind", "u"), finding("b", "Unknown kind", "u"))
			f.grant("tenant", grant{"", "pods"}, grant{"a", "Unknown kinds"}, grant{"", ""})
			f.grant("lead", grant{"a", unscoped})
			f.grant("auditor", grant{"", unscoped})
			for user, want := range map[string][]string{"tenant": {"a/p"}, "lead": {"a/p", "a/u"}, "auditor": {"a/p", "a/u", "b/u"}} {
				got, _ := f.names(t, user, index.Query{Table: rows.AuditResults}, 0)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", user, diff)
				}
			}
		})
	}
}

// TestGet shows a finding, or there is none.
func TestGet(t *testing.T) {
	f := newFixture(t)
	f.put(t, finding("a", "pod", "p"), finding("a", "secret", "s"), finding("", "node", "n"))
	f.grant("tenant", grant{"a", "pods"}, grant{"", "nodes"})
	for _, test := range []struct {
		table index.Table
		key   index.Key
		want  error
	}{
		{rows.AuditResults, index.Key{Namespace: "a", Name: "p"}, nil},
		{rows.AuditResults, index.Key{Namespace: "a", Name: "s"}, index.ErrNotFound},
		{rows.AuditResults, index.Key{Namespace: "a", Name: "x"}, index.ErrNotFound},
		{rows.ClusterAuditResults, index.Key{Name: "n"}, nil},
	} {
		row, err := f.view(t, "tenant", test.table).Get(f.context("tenant"), test.key, 0)
		if !errors.Is(err, test.want) || (row == nil) != (err != nil) {
			t.Errorf("%v: %v, %v, want %v", test.key, row, err, test.want)
		}
	}
}

// TestModel compares lists with those of an oracle that asks about each row.
func TestModel(t *testing.T) {
	kinds := []string{"pod", "secret", "job", "Unknown kind"}
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t, func(config *access.Config) {
			if rapid.Bool().Draw(rt, "unnarrowed") {
				config.Narrower = nil
			}
		})
		inNamespaces := []string{"a", "b", "c", "d", "e"}
		table := rapid.SampledFrom([]index.Table{rows.AuditResults, rows.AuditResults, rows.ClusterAuditResults}).Draw(rt, "table")
		if table == rows.ClusterAuditResults {
			inNamespaces = []string{""}
		}
		keys := map[string]bool{}
		var objects []metav1.Object
		for i := range rapid.IntRange(0, 40).Draw(rt, "findings") {
			o := finding(rapid.SampledFrom(inNamespaces).Draw(rt, "namespace"), rapid.SampledFrom(kinds).Draw(rt, "kind"), fmt.Sprintf("o%02d", i))
			keys[o.GetNamespace()+"/"+o.GetName()] = true
			objects = append(objects, o)
		}
		f.put(t, objects...)
		resources := []string{"pods", "secrets", "jobs", unscoped}
		draw := func(label string) grant {
			return grant{rapid.SampledFrom(append(inNamespaces, "", "elsewhere")).Draw(rt, label+" in"), rapid.SampledFrom(resources).Draw(rt, label)}
		}
		for range rapid.IntRange(0, 6).Draw(rt, "grants") {
			f.grant("user", draw("grant"))
		}
		for range rapid.IntRange(0, 2).Draw(rt, "refusals") {
			f.refused = append(f.refused, draw("refused"))
		}
		q := index.Query{Table: table}
		if table == rows.AuditResults {
			q.Namespace = rapid.SampledFrom(append(inNamespaces, "", "")).Draw(rt, "of")
		}
		if rapid.Bool().Draw(rt, "selected") {
			q.Match = func(row *index.Row) bool { return row.Name[2]%2 == 0 }
		}
		may := func(namespace, resource string) bool {
			// Who may get something in all namespaces may in each, unless it is only one that
			// is asked for: then the authorizer is asked about that.
			asked := []string{"", namespace}
			if q.Namespace != "" && resource != unscoped {
				asked = asked[1:]
			}
			for _, in := range asked {
				if covers(f.grants["user"], in, resource) && !slices.Contains(f.refused, grant{in, resource}) {
					return true
				}
			}
			return false
		}
		var want []string
		all, err := f.db.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range all.Rows {
			kind := rows.Field(table, row, "resource.kind")
			if may("", unscoped) || may(row.Namespace, unscoped) && table == rows.AuditResults || kind != "Unknown kind" && may(row.Namespace, kind+"s") {
				want = append(want, row.Namespace+"/"+row.Name)
			}
		}
		got, sizes := f.names(t, "user", q, rapid.IntRange(0, 7).Draw(rt, "limit"))
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Errorf("in pages of %v (-want +got):\n%s", sizes, diff)
		}
	})
}
