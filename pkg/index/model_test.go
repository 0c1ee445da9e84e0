package index_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

var schemas = []index.Schema{
	{Table: "a", Fields: []string{"color", "size"}, GroupBy: []string{"size", "color"}},
	{Table: "b", Fields: []string{"color"}},
}

// model is the naive oracle: a full copy of all rows for each revision.
type model struct {
	states  map[uint64]map[string]index.Row // by revision, then table/key
	current uint64
	log     []index.Change
	times   map[uint64]time.Time
}

func rowKey(t index.Table, k index.Key) string {
	return string(t) + "|" + k.Namespace + "\x00" + k.Name
}

func (m *model) apply(t index.Table, revision uint64, k index.Key, row *index.Row, now time.Time) {
	next := maps.Clone(m.states[m.current])
	change := index.Change{Table: t, Revision: revision}
	if old, ok := next[rowKey(t, k)]; ok {
		change.Old = &old
	}
	if row == nil {
		delete(next, rowKey(t, k))
	} else {
		next[rowKey(t, k)] = *row
		change.New = row
	}
	m.states[revision], m.current, m.times[revision] = next, revision, now
	m.log = append(m.log, change)
}

func (m *model) list(q index.Query) (rows []index.Row, more bool) {
	state := m.states[q.Revision]
	keys := make([]string, 0, len(state))
	for key := range state {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		row := state[key]
		if rowKey(q.Table, row.Key) != key || q.Namespace != "" && row.Namespace != q.Namespace || q.Name != "" && row.Name != q.Name {
			continue
		}
		if q.Scope != nil && !slices.Contains(scopes[q.Scope], row.Namespace+"|"+groupOf(q.Table, row)) {
			continue
		}
		if q.After != nil && key <= rowKey(q.Table, *q.After) || !satisfies(q.Table, row, q.Terms) || q.Match != nil && !q.Match(&row) {
			continue
		}
		if q.Limit > 0 && len(rows) == q.Limit {
			return rows, true
		}
		rows = append(rows, row)
	}
	return rows, false
}

// scopes are those that a test has made, as a list of namespace|group.
var scopes = map[*index.Scope][]string{}

func groupOf(t index.Table, row index.Row) string {
	if t == "a" {
		return row.Fields[1] + "\x00" + row.Fields[0]
	}
	return ""
}

// drawScope takes some of the groups that the index has at a revision, which are at
// least those that the oracle has.
func (m *model) drawScope(t *rapid.T, db *index.DB, table index.Table, revision uint64) *index.Scope {
	known := map[string]bool{}
	all, err := db.AllGroups(table, revision)
	if err != nil || !slices.IsSorted(all) {
		t.Fatalf("all groups %q: %v", all, err)
	}
	var spans []index.Span
	var names []string
	namespaces, err := db.Namespaces(table, revision)
	if err != nil || !slices.IsSorted(namespaces) {
		t.Fatalf("namespaces %q: %v", namespaces, err)
	}
	for _, namespace := range namespaces {
		groups, err := db.Groups(table, namespace, revision)
		if err != nil || len(groups) == 0 || !slices.IsSorted(groups) {
			t.Fatalf("groups of %q: %q, %v", namespace, groups, err)
		}
		span := index.Span{Namespace: namespace}
		for _, group := range groups {
			known[namespace+"|"+group] = true
			if !slices.Contains(all, group) {
				t.Fatalf("group %q of %q is not in %q", group, namespace, all)
			}
			if rapid.Bool().Draw(t, "in scope") {
				span.Groups = append(span.Groups, group)
				names = append(names, namespace+"|"+group)
			}
		}
		if len(span.Groups) > 0 || rapid.Bool().Draw(t, "empty span") {
			spans = append(spans, span)
		}
	}
	for key, row := range m.states[revision] {
		if strings.HasPrefix(key, string(table)+"|") && !known[row.Namespace+"|"+groupOf(table, row)] {
			t.Fatalf("%s at revision %d is in none of the groups %v", key, revision, known)
		}
	}
	scope := index.NewScope(spans...)
	scopes[scope] = names
	return scope
}

func satisfies(t index.Table, row index.Row, terms []index.Term) bool {
	for _, term := range terms {
		value, ok := row.Labels[term.Label]
		if term.Field != "" {
			for _, s := range schemas {
				for i, f := range s.Fields {
					if s.Table == t && f == term.Field {
						value, ok = row.Fields[i], true
					}
				}
			}
		}
		if !ok || value != term.Value {
			return false
		}
	}
	return true
}

// TestModel does random writes, compactions and reopenings, and after each of
// them random reads at random revisions, and compares them with the oracle's.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "index") //nolint:usetesting // one for each check, gone when it ends
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}()
		now := time.UnixMicro(1_700_000_000_000_000)
		opts := index.Options{Dir: dir, Tables: schemas, History: time.Minute, Now: func() time.Time { return now }}
		db, err := index.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := db.Check(context.Background()); err != nil {
				t.Errorf("inconsistent at the end: %v", err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}()
		first := db.Revision()
		m := &model{states: map[uint64]map[string]index.Row{first: {}}, current: first, times: map[uint64]time.Time{}}
		oldest := first

		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) { m.write(t, db, now) },
			"rollback": func(t *rapid.T) {
				boom := errors.New("boom")
				_, err := db.Update(context.Background(), func(tx *index.Tx) error {
					if err := tx.Put("a", index.Key{Name: "rollback"}, []byte("x"), index.Attrs{Fields: []string{"red", "1"}}); err != nil {
						return err
					}
					return boom
				})
				if !errors.Is(err, boom) {
					t.Fatalf("error of the transaction: %v", err)
				}
			},
			"wait": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second) },
			"compact": func(t *rapid.T) {
				if err := db.Compact(context.Background()); err != nil {
					t.Fatal(err)
				}
				for revision, at := range m.times {
					if !at.After(now.Add(-time.Minute)) {
						oldest = max(oldest, revision)
					}
				}
				if got := db.Compacted(); got != oldest {
					t.Fatalf("compacted to %d, want %d", got, oldest)
				}
			},
			"reopen": func(t *rapid.T) {
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if db, err = index.Open(opts); err != nil {
					t.Fatal(err)
				}
				if db.Recovered() != nil {
					t.Fatal(db.Recovered())
				}
			},
			"list":    func(t *rapid.T) { m.checkList(t, db, oldest) },
			"count":   func(t *rapid.T) { m.checkCount(t, db) },
			"changes": func(t *rapid.T) { m.checkChanges(t, db, oldest) },
			"": func(t *rapid.T) {
				if db.Revision() != m.current {
					t.Fatalf("revision %d, want %d", db.Revision(), m.current)
				}
			},
		})
	})
}

func drawKey(t *rapid.T) index.Key {
	return index.Key{
		Namespace: rapid.SampledFrom([]string{"", "n", "n1", "z"}).Draw(t, "namespace"),
		Name:      rapid.SampledFrom([]string{"a", "ab", "b", "b.c", "c"}).Draw(t, "name"),
	}
}

func (m *model) write(t *rapid.T, db *index.DB, now time.Time) {
	type op struct {
		table  index.Table
		key    index.Key
		delete bool
		value  string
		attrs  index.Attrs
	}
	ops := make([]op, rapid.IntRange(1, 6).Draw(t, "operations"))
	for i := range ops {
		ops[i] = op{
			table:  rapid.SampledFrom([]index.Table{"a", "b"}).Draw(t, "table"),
			key:    drawKey(t),
			delete: rapid.IntRange(0, 3).Draw(t, "delete") == 0,
			value:  rapid.SampledFrom([]string{"", "v", "w"}).Draw(t, "value"),
		}
		ops[i].attrs.Fields = []string{rapid.SampledFrom([]string{"", "red", "blue"}).Draw(t, "color"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "size")}
		if ops[i].table == "b" {
			ops[i].attrs.Fields = ops[i].attrs.Fields[:1]
		}
		if rapid.Bool().Draw(t, "labelled") {
			ops[i].attrs.Labels = map[string]string{"app": rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "app")}
		}
	}
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for _, o := range ops {
			old, exists := m.states[m.current][rowKey(o.table, o.key)]
			if o.delete {
				err := tx.Delete(o.table, o.key)
				if exists != (err == nil) || !exists && !errors.Is(err, index.ErrNotFound) {
					t.Fatalf("delete of a row that exists=%v: %v", exists, err)
				}
				if exists {
					m.apply(o.table, m.current+1, o.key, nil, now)
				}
				continue
			}
			if err := tx.Put(o.table, o.key, []byte(o.value), o.attrs); err != nil {
				return err
			}
			row := index.Row{Key: o.key, Attrs: o.attrs, Value: []byte(o.value), Revision: m.current + 1, CreateRevision: m.current + 1}
			if exists {
				row.CreateRevision = old.CreateRevision
				if cmp.Equal(old.Attrs, row.Attrs) && cmp.Equal(old.Value, row.Value) {
					continue
				}
			}
			m.apply(o.table, row.Revision, o.key, &row, now)
		}
		q := index.Query{Table: "a", Terms: []index.Term{{Field: "color", Value: "red"}}}
		page, err := tx.List(context.Background(), q)
		if err != nil {
			return err
		}
		q.Revision = m.current
		want, _ := m.list(q)
		if diff := cmp.Diff(want, deref(page.Rows)); diff != "" {
			t.Fatalf("list in the transaction (-want +got):\n%s", diff)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func deref(rows []*index.Row) []index.Row {
	var out []index.Row
	for _, r := range rows {
		out = append(out, *r)
	}
	return out
}

func drawTerms(t *rapid.T, table index.Table) []index.Term {
	candidates := []index.Term{{Field: "color", Value: "red"}, {Field: "color", Value: ""}, {Field: "color", Value: "none"}, {Label: "app", Value: "x"}, {Label: "app", Value: ""}, {Label: "other", Value: "x"}}
	if table == "a" {
		candidates = append(candidates, index.Term{Field: "size", Value: "1"})
	}
	return rapid.SliceOfN(rapid.SampledFrom(candidates), 0, 2).Draw(t, "terms")
}

func (m *model) drawRevision(t *rapid.T, db *index.DB, oldest uint64) uint64 {
	return oldest + rapid.Uint64Range(0, db.Revision()-oldest).Draw(t, "back")
}

func (m *model) checkList(t *rapid.T, db *index.DB, oldest uint64) {
	q := index.Query{Table: rapid.SampledFrom([]index.Table{"a", "b"}).Draw(t, "table"), Revision: m.drawRevision(t, db, oldest)}
	q.Terms = drawTerms(t, q.Table)
	q.Namespace = rapid.SampledFrom([]string{"", "", "n", "n1"}).Draw(t, "namespace")
	q.Name = rapid.SampledFrom([]string{"", "", "", "b"}).Draw(t, "name")
	q.Limit = rapid.IntRange(0, 4).Draw(t, "limit")
	if rapid.Bool().Draw(t, "paged") {
		after := drawKey(t)
		q.After = &after
	}
	if rapid.Bool().Draw(t, "scoped") {
		q.Scope = m.drawScope(t, db, q.Table, q.Revision)
		defer delete(scopes, q.Scope)
	}
	if rapid.Bool().Draw(t, "matched") {
		q.Match = func(r *index.Row) bool { return string(r.Value) != "v" }
	}
	page, err := db.List(context.Background(), q)
	if err != nil {
		t.Fatalf("list %+v: %v", q, err)
	}
	want, more := m.list(q)
	if diff := cmp.Diff(want, deref(page.Rows)); diff != "" || more != page.More || page.Revision != q.Revision {
		t.Fatalf("list %+v: more %v, want %v; revision %d (-want +got):\n%s", q, page.More, more, page.Revision, diff)
	}
	if known := !page.More || q.Revision == db.Revision() && len(q.Terms) == 0 && q.Name == "" && q.Match == nil && q.After == nil; known != (page.Remaining >= 0) {
		t.Fatalf("list %+v: remaining is %d, known: %v", q, page.Remaining, known)
	}
	if page.Remaining >= 0 {
		all := q
		all.Limit = 0
		rest, _ := m.list(all)
		if int(page.Remaining) != len(rest)-len(want) {
			t.Fatalf("remaining %d, want %d", page.Remaining, len(rest)-len(want))
		}
	}
	q.WithoutAttrs = true
	bare, err := db.List(context.Background(), q)
	if err != nil || len(bare.Rows) != len(want) || bare.More != more {
		t.Fatalf("list without attributes %+v: %+v, %v", q, bare, err)
	}
	for i, row := range bare.Rows {
		if string(row.Value) != string(want[i].Value) || row.Key != want[i].Key || row.Revision != want[i].Revision || row.CreateRevision != want[i].CreateRevision {
			t.Fatalf("list without attributes %+v: row %d is %+v, want %+v", q, i, row, want[i])
		}
	}
	for _, row := range want {
		got, err := db.Get(q.Table, row.Key, q.Revision)
		if err != nil || !cmp.Equal(row, *got) {
			t.Fatalf("get %v: %v, %v; want %v", row.Key, got, err, row)
		}
	}
	if _, err := db.List(context.Background(), index.Query{Table: "a", Revision: db.Revision() + 1}); !errors.Is(err, index.ErrFutureRevision) {
		t.Fatalf("list in the future: %v", err)
	}
	if _, err := db.List(context.Background(), index.Query{Table: "a", Revision: oldest - 1}); !errors.Is(err, index.ErrCompacted) {
		t.Fatalf("list of compacted revision: %v", err)
	}
}

func (m *model) checkCount(t *rapid.T, db *index.DB) {
	table := rapid.SampledFrom([]index.Table{"a", "b"}).Draw(t, "table")
	terms := drawTerms(t, table)
	want, _ := m.list(index.Query{Table: table, Terms: terms, Revision: m.current})
	got, err := db.Count(table, terms...)
	if err != nil || int(got) != len(want) {
		t.Fatalf("count %v: %d, %v; want %d", terms, got, err, len(want))
	}
}

func (m *model) checkChanges(t *rapid.T, db *index.DB, oldest uint64) {
	after := m.drawRevision(t, db, oldest)
	limit := rapid.IntRange(1, 10).Draw(t, "limit")
	var want []index.Change
	for _, c := range m.log {
		if c.Revision > after && len(want) < limit {
			want = append(want, c)
		}
	}
	got, err := db.Changes(after, limit)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("changes after %d (-want +got):\n%s", after, diff)
	}
}

func TestManyValuesOfOneField(t *testing.T) {
	db := indextest.MustOpen(t, schemas)
	const n = 6000
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for i := range n {
			attrs := index.Attrs{Fields: []string{fmt.Sprintf("color-%d", i), fmt.Sprint(i % 3)}}
			if err := tx.Put("a", index.Key{Name: fmt.Sprintf("row-%05d", i)}, []byte("{}"), attrs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < n; i += 97 {
		term := index.Term{Field: "color", Value: fmt.Sprintf("color-%d", i)}
		if got, err := db.Count("a", term); err != nil || got != 1 {
			t.Fatalf("count of %v: %d, %v", term, got, err)
		}
		page, err := db.List(context.Background(), index.Query{Table: "a", Terms: []index.Term{term}})
		if err != nil || len(page.Rows) != 1 || page.Rows[0].Name != fmt.Sprintf("row-%05d", i) {
			t.Fatalf("list of %v: %v, %v", term, page, err)
		}
	}
	if got, err := db.Count("a", index.Term{Field: "size", Value: "1"}); err != nil || got != n/3 {
		t.Fatalf("count of size 1: %d, %v", got, err)
	}
}
