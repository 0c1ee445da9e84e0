package index

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
)

// Get returns a row at a revision; 0 means the current one. It returns
// ErrNotFound, ErrCompacted or ErrFutureRevision.
func (db *DB) Get(t Table, k Key, revision uint64) (*Row, error) {
	if _, err := db.table(t); err != nil {
		return nil, err
	}
	if revision == 0 {
		revision = db.Revision()
	}
	var row *Row
	err := db.view(revision, func(tx *bbolt.Tx) error {
		var err error
		row, err = versionAt(tx, t, encodeKey(k), revision)
		return err
	})
	if err == nil && row == nil {
		err = ErrNotFound
	}
	return row, err
}

// view runs fn in a read transaction that has a revision.
func (db *DB) view(revision uint64, fn func(*bbolt.Tx) error) error {
	return db.do(func() error {
		return db.bolt.View(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(bucketMeta)
			current, err := metaUint64(meta, keyRevision)
			if err != nil {
				return err
			}
			compacted, err := metaUint64(meta, keyCompacted)
			if err != nil {
				return err
			}
			switch {
			case revision > current:
				return fmt.Errorf("%w: %d is above %d", ErrFutureRevision, revision, current)
			case revision < compacted:
				return fmt.Errorf("%w: %d is below %d", ErrCompacted, revision, compacted)
			}
			return fn(tx)
		})
	})
}

// List returns the rows that a query selects, in the order of their keys.
func (db *DB) List(ctx context.Context, q Query) (*Page, error) {
	table, err := db.table(q.Table)
	if err != nil {
		return nil, err
	}
	revision, total := q.Revision, int64(-1)
	db.mu.RLock()
	if revision == 0 {
		revision = db.revision
	}
	if revision == db.revision {
		total = db.postings[table].count(q.Namespace)
	}
	db.mu.RUnlock()
	var page *Page
	err = db.view(revision, func(tx *bbolt.Tx) error {
		r := reader{db: db, bolt: tx, table: table, query: &q, revision: revision, total: total}
		inFile, err := metaUint64(tx.Bucket(bucketMeta), keyRevision)
		if err != nil {
			return err
		}
		r.current = inFile == revision
		page, err = r.list(ctx)
		return err
	})
	return page, err
}

// Count returns the number of current rows that satisfy the terms.
func (db *DB) Count(t Table, terms ...Term) (int64, error) {
	table, err := db.table(t)
	if err != nil {
		return 0, err
	}
	db.mu.RLock()
	p := db.postings[table]
	n := p.rows.GetCardinality()
	exact := true
	if len(terms) > 0 {
		found, isExact := p.find(terms)
		exact = isExact && found != nil
		if exact {
			n = found.GetCardinality()
		}
	}
	db.mu.RUnlock()
	if exact {
		return int64(n), nil
	}
	page, err := db.List(context.Background(), Query{Table: t, Terms: terms})
	if err != nil {
		return 0, err
	}
	return int64(len(page.Rows)), nil
}

// reader answers one query in one transaction.
type reader struct {
	db       *DB
	bolt     *bbolt.Tx
	table    int
	query    *Query
	revision uint64
	// current is true if revision is that of the transaction.
	current bool
	// touched are rows that the postings may not know as they are: those written by
	// the transaction itself.
	touched map[Key]struct{}
	// total is the number of rows in the query's namespace, or -1 if it is not known.
	total int64

	page Page
	// examined counts rows, so that a long scan notices that it is not wanted any more.
	examined int
}

// errEnough ends an iteration.
var errEnough = errors.New("enough rows")

func (r *reader) list(ctx context.Context) (*Page, error) {
	r.page = Page{Revision: r.revision}
	keys, narrowed, err := r.candidates()
	if err != nil {
		return nil, err
	}
	if narrowed {
		err = r.visitKeys(ctx, keys)
	} else {
		err = r.scan(ctx)
	}
	if err != nil && err != errEnough { //nolint:errorlint // a mark of this package that is never wrapped
		return nil, err
	}
	if r.page.Remaining, err = r.remaining(); err != nil {
		return nil, err
	}
	return &r.page, nil
}

// accept takes a row into the page if the query selects it.
func (r *reader) accept(ctx context.Context, row *Row) error {
	if r.examined++; r.examined%1024 == 0 && ctx.Err() != nil {
		return ctx.Err()
	}
	if !r.selects(row) {
		return nil
	}
	if r.query.Limit > 0 && len(r.page.Rows) == r.query.Limit {
		r.page.More = true
		return errEnough
	}
	r.page.Rows = append(r.page.Rows, row)
	return nil
}

func (r *reader) selects(row *Row) bool {
	q := r.query
	return (q.Namespace == "" || row.Namespace == q.Namespace) &&
		(q.Name == "" || row.Name == q.Name) &&
		r.db.postings[r.table].satisfies(row, q.Terms) &&
		(q.Scope == nil || q.Scope.has(row.Namespace, r.db.groups[r.table].of(row))) &&
		(q.Match == nil || q.Match(row))
}

// bounds returns the first key to look at and the prefix that keys have.
func (r *reader) bounds() (first, prefix []byte) {
	if r.query.Namespace != "" {
		prefix = namespacePrefix(r.query.Namespace)
	}
	return r.firstOf(prefix), prefix
}

// firstOf returns the first key to look at of those with a prefix.
func (r *reader) firstOf(prefix []byte) []byte {
	first := prefix
	if r.query.After != nil {
		if after := append(encodeKey(*r.query.After), 0); bytes.Compare(after, first) > 0 {
			first = after
		}
	}
	return first
}

func namespacePrefix(namespace string) []byte { return []byte(namespace + "\x00") }

// candidates returns the keys of the rows that may be selected, sorted, if the
// postings narrow them well enough to be better than a scan.
func (r *reader) candidates() (keys []Key, narrowed bool, err error) {
	if r.query.Namespace != "" && r.query.Name != "" {
		return []Key{{Namespace: r.query.Namespace, Name: r.query.Name}}, true, nil
	}
	r.db.mu.RLock()
	p := r.db.postings[r.table]
	found, _ := p.find(r.query.Terms)
	total := p.rows.GetCardinality()
	inScope := total
	if r.query.Scope != nil {
		inScope = r.db.groups[r.table].rowsIn(r.query.Scope)
		found = p.findGroups(r.query.Scope, inScope, found)
	}
	r.db.mu.RUnlock()
	if found == nil {
		return nil, false, nil
	}
	n := found.GetCardinality()
	if n > inScope {
		return nil, false, nil
	}
	// A scan looks at total/n rows to find one; the postings at n rows at once.
	if limit := uint64(r.query.Limit); limit > 0 && n > 0 && limit*total/n < n {
		return nil, false, nil
	}
	set := make(map[Key]struct{}, n)
	ids := r.bolt.Bucket(bucketIDs).Bucket([]byte(r.query.Table))
	for it := found.Iterator(); it.HasNext(); {
		id := encodeUint64(it.Next())
		sealed := ids.Get(id)
		if sealed == nil {
			continue // deleted since, or not yet visible here; the log has it
		}
		payload, err := unseal(id, sealed)
		if err != nil {
			return nil, false, err
		}
		k, err := decodeKey(payload)
		if err != nil {
			return nil, false, err
		}
		set[k] = struct{}{}
	}
	for k := range r.touched {
		set[k] = struct{}{}
	}
	// The postings are those of the present. Rows that have changed since the revision
	// may have been selected then.
	if err := r.changedSince(set); err != nil {
		return nil, false, err
	}
	keys = make([]Key, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return keys, true, nil
}

func (r *reader) changedSince(set map[Key]struct{}) error {
	c := r.bolt.Bucket(bucketLog).Cursor()
	for k, v := c.Seek(encodeUint64(r.revision + 1)); k != nil; k, v = c.Next() {
		payload, err := unseal(k, v)
		if err != nil {
			return err
		}
		entry, err := decodeLogEntry(payload, len(r.db.opts.Tables))
		if err != nil {
			return err
		}
		if entry.table == r.table {
			set[entry.key] = struct{}{}
		}
	}
	return nil
}

func (r *reader) visitKeys(ctx context.Context, keys []Key) error {
	first, prefix := r.bounds()
	for _, k := range keys {
		key := encodeKey(k)
		if bytes.Compare(key, first) < 0 || !bytes.HasPrefix(key, prefix) {
			continue
		}
		if r.query.Scope != nil && !r.query.Scope.hasNamespace(k.Namespace) {
			continue
		}
		row, err := versionAt(r.bolt, r.query.Table, key, r.revision)
		if err != nil {
			return err
		}
		if row == nil {
			continue
		}
		if err := r.accept(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// scan visits the rows in the order of their keys: those of the namespaces in scope,
// or all.
func (r *reader) scan(ctx context.Context) error {
	q := r.query
	if q.Scope == nil {
		first, prefix := r.bounds()
		return r.scanRange(ctx, first, prefix)
	}
	for _, namespace := range q.Scope.namespaces {
		if q.Namespace != "" && namespace != q.Namespace || q.After != nil && namespace < q.After.Namespace {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		prefix := namespacePrefix(namespace)
		if err := r.scanRange(ctx, r.firstOf(prefix), prefix); err != nil {
			return err
		}
	}
	return nil
}

// scanRange visits the rows whose keys have a prefix, from the first key on. At an
// old revision it merges the current rows with the superseded ones.
func (r *reader) scanRange(ctx context.Context, first, prefix []byte) error {
	withAttrs := !r.query.WithoutAttrs || r.query.Match != nil || len(r.query.Terms) > 0 || r.query.Scope != nil
	live := r.bolt.Bucket(bucketLive).Bucket([]byte(r.query.Table)).Cursor()
	liveKey, liveValue := live.Seek(first)
	var hist *bbolt.Cursor
	var histKey []byte
	if !r.current {
		hist = r.bolt.Bucket(bucketHist).Bucket([]byte(r.query.Table)).Cursor()
		histFirst := first
		if r.query.After != nil {
			// Behind all versions of that row.
			if after := historyKey(encodeKey(*r.query.After), ^uint64(0)); bytes.Compare(after, histFirst) > 0 {
				histFirst = after
			}
		}
		histKey, _ = hist.Seek(histFirst)
	}
	for {
		var oldKey []byte
		if histKey != nil {
			var err error
			if oldKey, _, err = splitHistoryKey(histKey); err != nil {
				return err
			}
		}
		var row *Row
		var err error
		switch {
		case liveKey == nil && oldKey == nil:
			return nil
		case oldKey == nil || liveKey != nil && bytes.Compare(liveKey, oldKey) < 0:
			if !bytes.HasPrefix(liveKey, prefix) {
				return nil
			}
			row, err = decodeLiveParts(liveKey, liveValue, withAttrs)
			if row != nil && row.Revision > r.revision {
				row = nil
			}
			liveKey, liveValue = live.Next()
		default:
			if !bytes.HasPrefix(oldKey, prefix) {
				return nil
			}
			key := bytes.Clone(oldKey)
			row, err = versionAt(r.bolt, r.query.Table, key, r.revision)
			if bytes.Equal(liveKey, key) {
				liveKey, liveValue = live.Next()
			}
			// All versions of a row are behind one another.
			histKey, _ = hist.Seek(historyKey(key, ^uint64(0)))
		}
		if err != nil {
			return err
		}
		if row == nil {
			continue
		}
		if err := r.accept(ctx, row); err != nil {
			return err
		}
	}
}

// remaining is Page.Remaining, which takes no look at the rows: the total is known
// where there is no selection, and what is in front of the page where that is
// nothing. Of a scope the rest is counted.
func (r *reader) remaining() (int64, error) {
	q := r.query
	switch {
	case !r.page.More:
		return 0, nil
	case q.Match != nil || q.Name != "" || len(q.Terms) > 0:
		return -1, nil
	case q.Scope != nil && r.current:
		return r.remainingInScope(r.page.Rows[len(r.page.Rows)-1].Key)
	case q.Scope != nil || r.total < 0 || q.After != nil:
		return -1, nil
	}
	return r.total - int64(len(r.page.Rows)), nil
}
