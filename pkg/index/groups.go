package index

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
)

// Scope is a set of groups of rows, namespace by namespace. It cannot be changed.
type Scope struct {
	namespaces []string // sorted
	groups     map[string][]string
}

// Span is the part of a Scope that is in one namespace.
type Span struct {
	// Namespace, which is empty for cluster-scoped rows.
	Namespace string
	// Groups of the namespace, as DB.Groups returns them.
	Groups []string
}

// NewScope returns the scope of these spans, each of another namespace. Without
// any it is empty and selects nothing.
func NewScope(spans ...Span) *Scope {
	s := &Scope{groups: make(map[string][]string, len(spans))}
	for _, span := range spans {
		s.namespaces = append(s.namespaces, span.Namespace)
		s.groups[span.Namespace] = span.Groups
	}
	slices.Sort(s.namespaces)
	return s
}

func (s *Scope) hasNamespace(namespace string) bool {
	_, ok := s.groups[namespace]
	return ok
}

func (s *Scope) has(namespace, group string) bool {
	return slices.Contains(s.groups[namespace], group)
}

// groups count the rows of a table by namespace and by the values of the fields of
// Schema.GroupBy.
type groups struct {
	positions []int // of the fields
	// populations by namespace and group.
	populations map[string]map[string]*population
	namespaces  []string // of populations, sorted
	// totals are the populations of all namespaces together.
	totals map[string]*population
	// changed is the revision of the last change in each namespace.
	changed map[string]uint64
}

// population of a group.
type population struct {
	rows uint64
	// gone is the revision at which the last row went, if rows is 0. Before that
	// revision the group may have had rows.
	gone uint64
}

func newGroups(schema Schema) *groups {
	g := &groups{populations: map[string]map[string]*population{}, totals: map[string]*population{}, changed: map[string]uint64{}}
	for _, field := range schema.GroupBy {
		g.positions = append(g.positions, slices.Index(schema.Fields, field))
	}
	return g
}

// groupSeparator is between the values of a group.
const groupSeparator = "\x00"

// of returns the group of a row.
func (g *groups) of(row *Row) string {
	if len(g.positions) == 0 {
		return ""
	}
	values := make([]string, len(g.positions))
	for i, position := range g.positions {
		if position >= 0 && position < len(row.Fields) {
			values[i] = row.Fields[position]
		}
	}
	return strings.Join(values, groupSeparator)
}

// GroupValues returns the values of the fields of Schema.GroupBy that rows of a
// group have.
func GroupValues(group string) []string { return strings.Split(group, groupSeparator) }

// each calls fn for the population of a row's group in its namespace, and in all.
func (g *groups) each(row *Row, fn func(*population)) {
	group := g.of(row)
	total := g.totals[group]
	if total == nil {
		total = &population{}
		g.totals[group] = total
	}
	fn(total)
	fn(g.population(row.Namespace, group))
}

func (g *groups) population(namespace, group string) *population {
	in := g.populations[namespace]
	if in == nil {
		in = map[string]*population{}
		g.populations[namespace] = in
		at, _ := slices.BinarySearch(g.namespaces, namespace)
		g.namespaces = slices.Insert(g.namespaces, at, namespace)
	}
	p := in[group]
	if p == nil {
		p = &population{}
		in[group] = p
	}
	return p
}

// change counts a change at a revision; either version may be nil.
func (g *groups) change(before, after *Row, revision uint64) {
	for _, row := range []*Row{before, after} {
		if row != nil {
			g.changed[row.Namespace] = max(g.changed[row.Namespace], revision)
		}
	}
	if after != nil {
		g.each(after, func(p *population) { p.rows++ })
	}
	if before == nil {
		return
	}
	g.each(before, func(p *population) {
		if p.rows--; p.rows == 0 {
			p.gone = revision
		}
	})
}

// superseded notes a version of a row that is history.
func (g *groups) superseded(row *Row, at uint64) {
	g.changed[row.Namespace] = max(g.changed[row.Namespace], at)
	g.each(row, func(p *population) { p.gone = max(p.gone, at) })
}

// forget drops groups that had no rows at or after a revision.
func (g *groups) forget(revision uint64) {
	over := func(_ string, p *population) bool { return p.rows == 0 && p.gone <= revision }
	maps.DeleteFunc(g.totals, over)
	kept := g.namespaces[:0]
	for _, namespace := range g.namespaces {
		in := g.populations[namespace]
		maps.DeleteFunc(in, over)
		if len(in) == 0 {
			delete(g.populations, namespace)
			delete(g.changed, namespace)
			continue
		}
		kept = append(kept, namespace)
	}
	clear(g.namespaces[len(kept):])
	g.namespaces = kept
}

// at tells whether the group may have had rows at a revision.
func (p *population) at(revision uint64) bool { return p.rows > 0 || p.gone > revision }

// rowsIn returns how many rows the namespaces of a scope have: what a scan of the
// scope looks at.
func (g *groups) rowsIn(s *Scope) uint64 {
	n := uint64(0)
	for _, namespace := range s.namespaces {
		for _, p := range g.populations[namespace] {
			n += p.rows
		}
	}
	return n
}

// maxCounted is how many rows of one namespace are looked at to count those in scope.
const maxCounted = 10_000

// remainingInScope is Page.Remaining for a query with a scope: the counts of the
// namespaces behind the last row, and a look at those behind it in its own.
func (r *reader) remainingInScope(last Key) (int64, error) {
	q := r.query
	g := r.db.groups[r.table]
	r.db.mu.RLock()
	counted := r.db.revision == r.revision // the counts are of this revision
	n, here := uint64(0), uint64(0)
	for _, namespace := range q.Scope.namespaces {
		switch in := g.populations[namespace]; {
		case namespace < last.Namespace, q.Namespace != "" && namespace != q.Namespace:
		case namespace == last.Namespace:
			for _, p := range in {
				here += p.rows
			}
		default:
			for _, group := range q.Scope.groups[namespace] {
				if p := in[group]; p != nil {
					n += p.rows
				}
			}
		}
	}
	r.db.mu.RUnlock()
	if !counted || here > maxCounted {
		return -1, nil
	}
	prefix := namespacePrefix(last.Namespace)
	c := r.bolt.Bucket(bucketLive).Bucket([]byte(q.Table)).Cursor()
	for k, v := c.Seek(append(encodeKey(last), 0)); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		row, err := decodeLive(k, v)
		if err != nil {
			return 0, err
		}
		if r.selects(row) {
			n++
		}
	}
	return int64(n), nil
}

// findGroups narrows found to the rows of a scope's groups, of any namespace, where
// that is much less than a scan of the scope looks at. nil stands for all rows. The
// bitmap belongs to the caller.
func (p *postings) findGroups(s *Scope, inScope uint64, found *roaring64.Bitmap) *roaring64.Bitmap {
	groups := map[string]struct{}{}
	for _, in := range s.groups {
		for _, group := range in {
			groups[group] = struct{}{}
		}
	}
	union := roaring64.New()
	for group := range groups {
		var terms []Term
		for i, value := range GroupValues(group) {
			if i < len(p.schema.GroupBy) {
				terms = append(terms, Term{Field: p.schema.GroupBy[i], Value: value})
			}
		}
		rows, _ := p.find(terms)
		if rows == nil {
			return found // nothing is known of this one
		}
		union.Or(rows)
		if union.GetCardinality() > inScope/groupsWorthwhile {
			return found
		}
	}
	if found == nil {
		return union
	}
	found.And(union)
	return found
}

// groupsWorthwhile is how many rows can be scanned in the time in which one is found
// by its id.
const groupsWorthwhile = 8

// Namespaces returns the namespaces in which there may be rows at a revision,
// sorted: all that there are, and perhaps some that had rows later or earlier.
// Cluster-scoped rows are in the namespace "".
func (db *DB) Namespaces(t Table, revision uint64) ([]string, error) {
	table, err := db.table(t)
	if err != nil {
		return nil, err
	}
	db.mu.RLock()
	defer db.mu.RUnlock()
	g := db.groups[table]
	out := make([]string, 0, len(g.namespaces))
	for _, namespace := range g.namespaces {
		for _, p := range g.populations[namespace] {
			if p.at(revision) {
				out = append(out, namespace)
				break
			}
		}
	}
	return out, nil
}

// Groups returns the groups that rows of a namespace may be in at a revision,
// sorted, as Namespaces does.
func (db *DB) Groups(t Table, namespace string, revision uint64) ([]string, error) {
	return db.groupsOf(t, revision, func(g *groups) map[string]*population { return g.populations[namespace] })
}

// AllGroups returns the groups of all namespaces, as Groups does.
func (db *DB) AllGroups(t Table, revision uint64) ([]string, error) {
	return db.groupsOf(t, revision, func(g *groups) map[string]*population { return g.totals })
}

func (db *DB) groupsOf(t Table, revision uint64, populations func(*groups) map[string]*population) ([]string, error) {
	table, err := db.table(t)
	if err != nil {
		return nil, err
	}
	db.mu.RLock()
	defer db.mu.RUnlock()
	var out []string
	for group, p := range populations(db.groups[table]) {
		if p.at(revision) {
			out = append(out, group)
		}
	}
	slices.Sort(out)
	return out, nil
}

// GroupOf returns the group that a row of a table is in.
func (db *DB) GroupOf(t Table, row *Row) (string, error) {
	table, err := db.table(t)
	if err != nil {
		return "", err
	}
	return db.groups[table].of(row), nil
}

// compareGroups compares the counts in use with fresh ones.
func compareGroups(used, fresh *groups) error {
	count := func(g *groups) map[string]uint64 {
		out := map[string]uint64{}
		for namespace, in := range g.populations {
			for group, p := range in {
				if p.rows > 0 {
					out[namespace+groupSeparator+group] = p.rows
				}
			}
		}
		return out
	}
	for group, total := range used.totals {
		rows := uint64(0)
		for _, in := range used.populations {
			if p := in[group]; p != nil {
				rows += p.rows
			}
		}
		if rows != total.rows {
			return fmt.Errorf("%w: group %q has %d rows in namespaces and %d in all", ErrDamaged, group, rows, total.rows)
		}
	}
	u, f := count(used), count(fresh)
	if len(u) != len(f) {
		return fmt.Errorf("%w: %d groups of rows, want %d", ErrDamaged, len(u), len(f))
	}
	for group, n := range f {
		if u[group] != n {
			return fmt.Errorf("%w: group %q has %d rows, want %d", ErrDamaged, group, u[group], n)
		}
	}
	return nil
}
