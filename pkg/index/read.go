package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
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
		row, err = versionsOf(tx, t).at(encodeKey(k), revision)
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
	r := reader{db: db, table: table, query: &q, revision: q.Revision, total: -1}
	for done := false; !done; {
		db.mu.RLock()
		if r.revision == 0 {
			r.revision = db.revision
		}
		if r.revision == db.revision {
			r.total = db.postings[table].count(q.Namespace)
		}
		next := r.plan()
		db.mu.RUnlock()
		err := db.view(r.revision, func(tx *bbolt.Tx) error {
			inFile, err := metaUint64(tx.Bucket(bucketMeta), keyRevision)
			if err != nil {
				return err
			}
			r.bolt, r.current = tx, inFile == r.revision
			done, err = r.run(ctx, next, inFile)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return &r.page, nil
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

// reader answers one query, in one transaction or more.
type reader struct {
	db       *DB
	bolt     *bbolt.Tx // of this round
	table    int
	query    *Query
	revision uint64
	// current is true if revision is that of the transaction.
	current bool
	// touched are rows that the postings may not know as they are: those written by the
	// transaction itself. nil if the transaction is one that reads only.
	touched map[Key]struct{}
	// planned is true once a round has been planned. found are the rows that the query's
	// terms select, nil if the postings cannot tell; next is the namespace to go on with.
	planned bool
	found   *roaring64.Bitmap
	next    string
	// total is the number of rows in the query's namespace, or -1 if it is not known.
	total int64

	page Page
	// examined counts rows, so that a long scan notices that it is not wanted any more.
	examined int
}

// errEnough ends an iteration.
var errEnough = errors.New("enough rows")

// run looks at the rows of a round, and tells whether the page is done.
func (r *reader) run(ctx context.Context, in round, inFile uint64) (done bool, err error) {
	r.page.Revision = r.revision
	err = r.look(ctx, in, inFile)
	if err != nil && err != errEnough { //nolint:errorlint // a mark of this package that is never wrapped
		return false, err
	}
	if r.next = in.next; err == nil && !in.last {
		return false, nil
	}
	r.page.Remaining, err = r.remaining()
	return true, err
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

// scan visits the rows in the order of their keys: those of the namespaces in scope,
// or all.
func (r *reader) scan(ctx context.Context) error {
	q := r.query
	if q.Scope == nil {
		first, prefix := r.bounds()
		return r.scanRange(ctx, first, prefix, nil)
	}
	for _, namespace := range q.Scope.namespaces {
		if q.Namespace != "" && namespace != q.Namespace || q.After != nil && namespace < q.After.Namespace {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		prefix := namespacePrefix(namespace)
		if err := r.scanRange(ctx, r.firstOf(prefix), prefix, nil); err != nil {
			return err
		}
	}
	return nil
}

// scanRange visits the rows whose keys have a prefix, from the first key on. At an
// old revision it merges the current rows with the superseded ones. Of the rows without
// a history it only visits members, unless these are nil.
func (r *reader) scanRange(ctx context.Context, first, prefix []byte, members *roaring64.Bitmap) error {
	withAttrs := !r.query.WithoutAttrs || r.query.Match != nil || len(r.query.Terms) > 0 || r.query.Scope != nil
	versions := versionsOf(r.bolt, r.query.Table)
	live := versions.live.Cursor()
	liveKey, liveValue := live.Seek(first)
	var hist *bbolt.Cursor
	var histKey []byte
	if !r.current {
		hist = versions.hist.Cursor()
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
			member := true
			if members != nil {
				member, err = r.isMember(liveKey, liveValue, members)
			}
			if member && err == nil {
				row, err = decodeLiveParts(liveKey, liveValue, withAttrs)
			}
			if row != nil && row.Revision > r.revision {
				row = nil
			}
			liveKey, liveValue = live.Next()
		default:
			if !bytes.HasPrefix(oldKey, prefix) {
				return nil
			}
			key := bytes.Clone(oldKey)
			row, err = versions.at(key, r.revision)
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
