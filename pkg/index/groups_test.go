package index_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

// TestScopeOfFewNamespaces lists three namespaces of many, and counts the rows that
// are looked at.
func TestScopeOfFewNamespaces(t *testing.T) {
	db := indextest.MustOpen(t, schemas)
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for i := range 20_000 {
			attrs := index.Attrs{Fields: []string{"red", fmt.Sprint(i % 2)}}
			if err := tx.Put("a", index.Key{Namespace: fmt.Sprintf("ns-%04d", i%1000), Name: fmt.Sprintf("row-%05d", i)}, []byte("{}"), attrs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	group := "0\x00red"
	for name, test := range map[string]struct {
		query          index.Query
		rows, examined int
	}{
		"three namespaces":             {index.Query{Scope: scopeOf(group, "ns-0002", "ns-0500", "ns-0998")}, 60, 60},
		"a namespace of them":          {index.Query{Namespace: "ns-0500", Scope: scopeOf(group, "ns-0002", "ns-0500", "ns-0998")}, 20, 20},
		"a namespace beside them":      {index.Query{Namespace: "ns-0501", Scope: scopeOf(group, "ns-0002", "ns-0500", "ns-0998")}, 0, 0},
		"behind a key":                 {index.Query{After: &index.Key{Namespace: "ns-0500", Name: "zzz"}, Scope: scopeOf(group, "ns-0002", "ns-0500", "ns-0998")}, 20, 20},
		"with a selector for all":      {index.Query{Terms: []index.Term{{Field: "color", Value: "red"}}, Scope: scopeOf(group, "ns-0002")}, 20, 20},
		"another group of a namespace": {index.Query{Scope: scopeOf(group, "ns-0003")}, 0, 0},
		"no namespace":                 {index.Query{Scope: index.NewScope()}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			examined := 0
			test.query.Table = "a"
			test.query.Match = func(*index.Row) bool { examined++; return true }
			page, err := db.List(context.Background(), test.query)
			if err != nil || len(page.Rows) != test.rows || examined != test.examined {
				t.Errorf("%d rows of %d, want %d of %d; %v", len(page.Rows), examined, test.rows, test.examined, err)
			}
		})
	}
}

func scopeOf(group string, namespaces ...string) *index.Scope {
	var spans []index.Span
	for _, namespace := range namespaces {
		spans = append(spans, index.Span{Namespace: namespace, Groups: []string{group}})
	}
	return index.NewScope(spans...)
}

// TestGroupsOfThePast are known until the history is compacted, over a restart too.
func TestGroupsOfThePast(t *testing.T) {
	now := time.Now()
	opts := index.Options{Dir: t.TempDir(), Tables: schemas, History: time.Minute, Now: func() time.Time { return now }}
	db, err := index.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { indextest.MustClose(t, db) })
	write := func(fn func(tx *index.Tx) error) uint64 {
		revision, err := db.Update(context.Background(), fn)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	key := index.Key{Namespace: "n", Name: "a"}
	there := write(func(tx *index.Tx) error {
		return tx.Put("a", key, nil, index.Attrs{Fields: []string{"red", "1"}})
	})
	other := write(func(tx *index.Tx) error {
		return tx.Put("a", key, nil, index.Attrs{Fields: []string{"blue", "1"}})
	})
	gone := write(func(tx *index.Tx) error { return tx.Delete("a", key) })
	check := func(revision uint64, want ...string) {
		t.Helper()
		got, err := db.Groups("a", "n", revision)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("groups at %d (-want +got):\n%s", revision-there, diff)
		}
		namespaces, err := db.Namespaces("a", revision)
		if err != nil || len(namespaces) != min(1, len(want)) {
			t.Errorf("namespaces at %d: %q, %v", revision-there, namespaces, err)
		}
	}
	for range 2 {
		check(there, "1\x00blue", "1\x00red")
		check(other, "1\x00blue")
		check(gone)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if db, err = index.Open(opts); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Minute)
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	check(there)
}
