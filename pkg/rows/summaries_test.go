package rows_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// group is what the results of one summary have in common, written out.
func group(namespace string, c v1alpha1.ConstraintReference, apiGroup, kind, action string) string {
	return fmt.Sprintf("%s: %s %s/%s %s on %s.%s", namespace, c.Engine, c.Kind, c.Name, action, kind, apiGroup)
}

// naiveCounts counts the results that there are at a revision.
func naiveCounts(t failer, db *index.DB, revision uint64) map[string]v1alpha1.ResultTotals {
	t.Helper()
	out := map[string]v1alpha1.ResultTotals{}
	for _, row := range list(t, db, rows.AuditResults, revision) {
		var r v1alpha1.AuditResult
		if err := rows.Decode(row, &r); err != nil {
			t.Fatal(err)
		}
		key := group(r.Namespace, r.Constraint, r.Resource.APIGroup, r.Resource.Kind, r.EnforcementAction)
		totals := out[key]
		switch r.Result {
		case v1alpha1.ResultFail:
			totals.Fail++
		case v1alpha1.ResultError:
			totals.Error++
		case v1alpha1.ResultDeferred:
			totals.Deferred++
		}
		out[key] = totals
	}
	return out
}

// summaries returns what the summaries say.
func summaries(t failer, db *index.DB, revision uint64) map[string]v1alpha1.ResultTotals {
	t.Helper()
	out := map[string]v1alpha1.ResultTotals{}
	for _, row := range list(t, db, rows.AuditSummaries, revision) {
		var s v1alpha1.AuditSummary
		if err := rows.Decode(row, &s); err != nil {
			t.Fatal(err)
		}
		key := group(s.Namespace, s.Constraint, s.Resource.APIGroup, s.Resource.Kind, s.EnforcementAction)
		if _, twice := out[key]; twice {
			t.Fatalf("%s is counted twice", key)
		}
		if s.Name == "" || s.UID == "" || s.CreationTimestamp.IsZero() || s.Constraint.UID != "" || s.Constraint.Generation != 0 {
			t.Fatalf("%s is %+v", key, s)
		}
		out[key] = s.Totals
	}
	return out
}

func list(t failer, db *index.DB, table index.Table, revision uint64) []*index.Row {
	t.Helper()
	page, err := db.List(context.Background(), index.Query{Table: table, Revision: revision})
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

func drawResult(t *rapid.T) *v1alpha1.AuditResult {
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	return &v1alpha1.AuditResult{
		ObjectMeta: metav1.ObjectMeta{Namespace: pick("namespace", "a", "b"), Name: pick("name", "r1", "r2", "r3", "r4", "r5", "r6")},
		Finding: v1alpha1.Finding{
			Constraint: v1alpha1.ConstraintReference{
				Engine: v1alpha1.Engine(pick("engine", "Gatekeeper", "ValidatingAdmissionPolicy")),
				Kind:   pick("constraint", "k", "K"), Name: pick("of name", "c", "d"), UID: "u", Generation: 2,
			},
			Resource:          v1alpha1.ResourceReference{APIGroup: pick("apiGroup", "", "apps"), Kind: pick("kind", "Pod", "Job"), Name: "x"},
			EnforcementAction: pick("action", "deny", "warn", ""),
			Result:            v1alpha1.Result(pick("result", "fail", "error", "deferred")),
			Message:           pick("message", "x", "y"),
		},
	}
}

// change puts or deletes a result in a transaction.
func change(t *rapid.T, tx *index.Tx) error {
	object := drawResult(t)
	if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		if err := tx.Delete(rows.AuditResults, index.Key{Namespace: object.Namespace, Name: object.Name}); !errors.Is(err, index.ErrNotFound) {
			return err
		}
		return nil
	}
	row, err := rows.Encode(object)
	if err != nil {
		return err
	}
	return tx.Put(row.Table, row.Key, row.Value, row.Attrs)
}

// TestSummarize changes results at random, in transactions some of which fail, closes
// and opens the index in between, and compares the summaries with a count of the
// results: now and at all revisions at which a transaction ended.
func TestSummarize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "rows") //nolint:usetesting // one for each check, gone when it ends
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		opts := index.DefaultOptions()
		opts.Dir, opts.Tables = dir, rows.Schemas()
		db, err := index.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := db.Check(context.Background()); err != nil {
				t.Error(err)
			}
			db.Close()
		}()
		revisions := []uint64{db.Revision()}
		write := func(t *rapid.T, failure error) {
			revision, err := db.Update(context.Background(), func(tx *index.Tx) error {
				for range rapid.IntRange(1, 5).Draw(t, "changes") {
					if err := change(t, tx); err != nil {
						return err
					}
				}
				if err := rows.Summarize(tx, time.Unix(1_700_000_000, 0)); err != nil {
					return err
				}
				return failure
			})
			if !errors.Is(err, failure) {
				t.Fatal(err)
			}
			if failure == nil {
				revisions = append(revisions, revision)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) { write(t, nil) },
			"fail":  func(t *rapid.T) { write(t, errors.New("disk full")) },
			"reopen": func(t *rapid.T) {
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if db, err = index.Open(opts); err != nil || db.Recovered() != nil {
					t.Fatal(err, db.Recovered())
				}
			},
			"": func(t *rapid.T) {
				for _, revision := range []uint64{revisions[len(revisions)-1], rapid.SampledFrom(revisions).Draw(t, "revision")} {
					if diff := cmp.Diff(naiveCounts(t, db, revision), summaries(t, db, revision)); diff != "" {
						t.Fatalf("at %d (-count +summaries):\n%s", revision, diff)
					}
				}
			},
		})
	})
}

// TestSummarizeWritesWhatChanged and nothing else: results that say something else of
// the same objects change no summary.
func TestSummarizeWritesWhatChanged(t *testing.T) {
	db := indextest.MustOpen(t, rows.Schemas())
	put := func(results ...*v1alpha1.AuditResult) (changed []string) {
		t.Helper()
		before := db.Revision()
		_, err := db.Update(t.Context(), func(tx *index.Tx) error {
			for _, r := range results {
				row, err := rows.Encode(r)
				if err != nil {
					return err
				}
				if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
					return err
				}
			}
			return rows.Summarize(tx, time.Unix(1_700_000_000, 0))
		})
		if err != nil {
			t.Fatal(err)
		}
		changes, err := db.Changes(before, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			if c.Table == rows.AuditSummaries {
				var s v1alpha1.AuditSummary
				if err := rows.Decode(c.New, &s); err != nil {
					t.Fatal(err)
				}
				changed = append(changed, fmt.Sprintf("%s/%s %d %d", s.Namespace, s.Constraint.Name, s.Totals.Fail, s.Totals.Error))
			}
		}
		return changed
	}
	one := func(namespace, name, constraint, message string, result v1alpha1.Result) *v1alpha1.AuditResult {
		return &v1alpha1.AuditResult{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Finding: v1alpha1.Finding{
				Constraint: v1alpha1.ConstraintReference{Engine: v1alpha1.EngineGatekeeper, Kind: "K", Name: constraint},
				Resource:   v1alpha1.ResourceReference{Kind: "Pod", Name: name}, Result: result, Message: message,
			},
		}
	}
	for _, step := range []struct {
		put  []*v1alpha1.AuditResult
		want []string
	}{
		{
			[]*v1alpha1.AuditResult{one("a", "p", "c", "x", "fail"), one("a", "q", "c", "x", "fail"), one("b", "p", "c", "x", "fail"), one("a", "r", "d", "x", "fail")},
			[]string{"a/c 2 0", "a/d 1 0", "b/c 1 0"},
		},
		{[]*v1alpha1.AuditResult{one("a", "p", "c", "y", "fail"), one("a", "q", "c", "y", "fail")}, nil},
		{[]*v1alpha1.AuditResult{one("a", "p", "c", "y", "error"), one("a", "q", "c", "z", "fail")}, []string{"a/c 1 1"}},
		{[]*v1alpha1.AuditResult{one("a", "p", "c", "y", "fail"), one("a", "q", "c", "z", "error")}, nil},
	} {
		if diff := cmp.Diff(step.want, put(step.put...)); diff != "" {
			t.Errorf("summaries changed (-want +got):\n%s", diff)
		}
	}
}

// TestSummarizeDamaged has the index made anew if a summary cannot be right.
func TestSummarizeDamaged(t *testing.T) {
	opts := index.DefaultOptions()
	opts.Dir, opts.Tables = t.TempDir(), rows.Schemas()
	db, err := index.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	object := &v1alpha1.AuditResult{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Finding: v1alpha1.Finding{Result: v1alpha1.ResultFail}}
	row, err := rows.Encode(object)
	if err != nil {
		t.Fatal(err)
	}
	uncounted := func(tx *index.Tx) error { return tx.Put(row.Table, row.Key, row.Value, row.Attrs) }
	if _, err := db.Update(t.Context(), uncounted); err != nil {
		t.Fatal(err)
	}
	_, err = db.Update(t.Context(), func(tx *index.Tx) error {
		if err := tx.Delete(row.Table, row.Key); err != nil {
			return err
		}
		return rows.Summarize(tx, time.Now())
	})
	if !errors.Is(err, index.ErrDamaged) || db.Damaged() == nil {
		t.Fatalf("a result that was not counted is taken off: %v", err)
	}
	db.Close()
	if db, err = index.Open(opts); err != nil || db.Recovered() == nil {
		t.Fatalf("the index is not made anew: %v", err)
	}
	indextest.MustClose(t, db)
}

// BenchmarkSummarize writes transactions of 1000 results, of 100 groups, with and
// without their summaries.
func BenchmarkSummarize(b *testing.B) {
	for _, summarized := range []bool{false, true} {
		b.Run(fmt.Sprintf("summarized=%v", summarized), func(b *testing.B) {
			db := indextest.MustOpen(b, rows.Schemas())
			for n := 0; b.Loop(); n++ {
				_, err := db.Update(b.Context(), func(tx *index.Tx) error {
					for i := range 1000 {
						row, err := rows.Encode(&v1alpha1.AuditResult{
							ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", n%10), Name: fmt.Sprintf("%06d-%04d", n, i)},
							Finding: v1alpha1.Finding{
								Constraint: v1alpha1.ConstraintReference{Engine: v1alpha1.EngineGatekeeper, Kind: "K", Name: fmt.Sprint(i % 100)},
								Resource:   v1alpha1.ResourceReference{Kind: "Pod", Name: "x"}, Result: v1alpha1.ResultFail,
							},
						})
						if err != nil {
							return err
						}
						if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
							return err
						}
					}
					if !summarized {
						return nil
					}
					return rows.Summarize(tx, time.Now())
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
