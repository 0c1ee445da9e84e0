package index

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/bbolt"
)

// Tx is a read-write transaction. It is valid until the function that got it
// returns, and sees its own writes.
type Tx struct {
	db       *DB
	bolt     *bbolt.Tx
	now      int64
	revision uint64
	changes  []Change
	history  int64 // bytes added to the history
	written  int64 // bytes of all that was put
}

// Update runs fn in a transaction and commits what it wrote. If fn returns an
// error nothing is written and the error is returned. It returns the last
// committed revision.
func (db *DB) Update(ctx context.Context, fn func(*Tx) error) (uint64, error) {
	db.writeMu.Lock()
	defer db.writeMu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	tx := &Tx{db: db, now: db.opts.Now().UnixMilli(), revision: db.Revision()}
	err := db.do(func() error {
		return db.bolt.Update(func(bolt *bbolt.Tx) error {
			tx.bolt = bolt
			if err := fn(tx); err != nil {
				return err
			}
			if len(tx.changes) == 0 {
				return nil
			}
			return bolt.Bucket(bucketMeta).Put(keyRevision, seal(keyRevision, encodeUint64(tx.revision)))
		})
	})
	if err != nil {
		return 0, err
	}
	db.mu.Lock()
	for i := range tx.changes {
		c := &tx.changes[i]
		db.postings[db.tables[c.Table]].change(c.Old, c.New)
		db.groups[db.tables[c.Table]].change(c.Old, c.New, c.Revision)
	}
	db.revision = tx.revision
	db.mu.Unlock()
	db.measure(tx.history)
	if len(tx.changes) > 0 {
		for _, hook := range db.hooks {
			hook(tx.changes)
		}
	}
	return tx.revision, nil
}

// Changes returns the changes that the transaction has made so far, in order. They must
// not be modified.
func (tx *Tx) Changes() []Change { return slices.Clip(tx.changes) }

// Get returns the current row, ErrNotFound if there is none.
func (tx *Tx) Get(t Table, k Key) (*Row, error) {
	if _, err := tx.db.table(t); err != nil {
		return nil, err
	}
	row, err := liveRow(tx.bolt, t, encodeKey(k))
	if err == nil && row == nil {
		return nil, ErrNotFound
	}
	return row, err
}

// Put writes a row. Nothing happens if the row is there with the same value and
// attributes. The index keeps value and attrs; the caller must not modify them
// any more.
func (tx *Tx) Put(t Table, k Key, value []byte, attrs Attrs) error {
	table, err := tx.db.table(t)
	if err != nil {
		return err
	}
	if err := validKey(k); err != nil {
		return err
	}
	if want := len(tx.db.opts.Tables[table].Fields); len(attrs.Fields) != want {
		return fmt.Errorf("row %s/%s of table %s has %d fields, want %d", k.Namespace, k.Name, t, len(attrs.Fields), want)
	}
	key := encodeKey(k)
	old, err := liveRow(tx.bolt, t, key)
	if err != nil {
		return err
	}
	if old != nil && bytes.Equal(old.Value, value) && slices.Equal(old.Fields, attrs.Fields) && maps.Equal(old.Labels, attrs.Labels) {
		return nil
	}
	tx.revision++
	row := &Row{Key: k, Attrs: attrs, Revision: tx.revision, CreateRevision: tx.revision, Value: value}
	if old != nil {
		row.CreateRevision = old.CreateRevision
	} else {
		id := encodeUint64(row.CreateRevision)
		if err := tx.bolt.Bucket(bucketIDs).Bucket([]byte(t)).Put(id, seal(id, key)); err != nil {
			return err
		}
	}
	sealed := seal(key, encodeRow(row))
	tx.written += int64(len(key) + len(sealed))
	if err := tx.bolt.Bucket(bucketLive).Bucket([]byte(t)).Put(key, sealed); err != nil {
		return err
	}
	return tx.log(table, old, row)
}

// Delete removes a row, ErrNotFound if there is none.
func (tx *Tx) Delete(t Table, k Key) error {
	table, err := tx.db.table(t)
	if err != nil {
		return err
	}
	key := encodeKey(k)
	old, err := liveRow(tx.bolt, t, key)
	if err != nil {
		return err
	}
	if old == nil {
		return ErrNotFound
	}
	tx.revision++
	if err := tx.bolt.Bucket(bucketLive).Bucket([]byte(t)).Delete(key); err != nil {
		return err
	}
	if err := tx.bolt.Bucket(bucketIDs).Bucket([]byte(t)).Delete(encodeUint64(old.CreateRevision)); err != nil {
		return err
	}
	return tx.log(table, old, nil)
}

// log records the change that has the current revision.
func (tx *Tx) log(table int, old, row *Row) error {
	t := tx.db.opts.Tables[table].Table
	entry := logEntry{table: table, deleted: row == nil, time: tx.now}
	if row != nil {
		entry.key = row.Key
	}
	if old != nil {
		entry.key, entry.previous = old.Key, old.Revision
		size, err := putHistory(tx.bolt, t, old, tx.revision)
		if err != nil {
			return err
		}
		tx.history += size
	}
	revision := encodeUint64(tx.revision)
	if err := tx.bolt.Bucket(bucketLog).Put(revision, seal(revision, entry.encode())); err != nil {
		return err
	}
	tx.changes = append(tx.changes, Change{Table: t, Revision: tx.revision, Old: old, New: row})
	return nil
}

// List returns the current rows that a query selects, with the writes of this
// transaction. The query's Revision must be 0.
func (tx *Tx) List(ctx context.Context, q Query) (*Page, error) {
	table, err := tx.db.table(q.Table)
	if err != nil {
		return nil, err
	}
	if q.Revision != 0 {
		return nil, fmt.Errorf("a transaction reads its own revision, not %d", q.Revision)
	}
	touched := map[Key]struct{}{}
	for i := range tx.changes {
		if c := &tx.changes[i]; c.Table == q.Table {
			touched[changeKey(c)] = struct{}{}
		}
	}
	r := reader{db: tx.db, bolt: tx.bolt, table: table, query: &q, revision: tx.revision, current: true, touched: touched, total: -1}
	for done := false; !done; {
		tx.db.mu.RLock()
		next := r.plan()
		tx.db.mu.RUnlock()
		if done, err = r.run(ctx, next, tx.revision); err != nil {
			return nil, err
		}
	}
	return &r.page, nil
}

func changeKey(c *Change) Key {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}
