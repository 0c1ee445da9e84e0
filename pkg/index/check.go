package index

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
	"go.etcd.io/bbolt"
)

// verifyEntries verifies the checksum of each entry and builds the postings.
func (db *DB) verifyEntries(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketLive, bucketHist, bucketIDs, bucketLog, bucketState} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: bucket %s is missing", ErrDamaged, name)
		}
	}
	for i, schema := range db.opts.Tables {
		t := []byte(schema.Table)
		live, ids, hist := tx.Bucket(bucketLive).Bucket(t), tx.Bucket(bucketIDs).Bucket(t), tx.Bucket(bucketHist).Bucket(t)
		if live == nil || ids == nil || hist == nil {
			return fmt.Errorf("%w: table %s is missing", ErrDamaged, t)
		}
		err := live.ForEach(func(k, v []byte) error {
			row, err := decodeLive(k, v)
			if err != nil {
				return err
			}
			db.postings[i].change(nil, row)
			db.groups[i].change(nil, row, row.Revision)
			return nil
		})
		if err != nil {
			return err
		}
		if err := forEachSealed(ids); err != nil {
			return err
		}
		err = hist.ForEach(func(k, v []byte) error {
			row, superseded, err := decodeHistory(k, v)
			if err != nil {
				return err
			}
			db.groups[i].superseded(row, superseded)
			db.space.History += int64(len(k) + len(v))
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := forEachSealed(tx.Bucket(bucketLog)); err != nil {
		return err
	}
	state := tx.Bucket(bucketState)
	return state.ForEach(func(name, _ []byte) error { return forEachSealed(state.Bucket(name)) })
}

func forEachSealed(bucket *bbolt.Bucket) error {
	return bucket.ForEach(func(k, v []byte) error {
		_, err := unseal(k, v)
		return err
	})
}

// Check verifies the whole index: bbolt's pages, the checksums, and that rows,
// ids, history, log and postings agree. It is slow and meant for tests and for
// diagnosis. It holds up the writer.
func (db *DB) Check(ctx context.Context) error {
	db.writeMu.Lock()
	defer db.writeMu.Unlock()
	return db.do(func() error {
		return db.bolt.View(func(tx *bbolt.Tx) error {
			for err := range tx.Check() {
				return fmt.Errorf("%w: %w", ErrDamaged, err)
			}
			for i := range db.opts.Tables {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := db.checkTable(tx, i); err != nil {
					return fmt.Errorf("table %s: %w", db.opts.Tables[i].Table, err)
				}
			}
			return db.checkLog(tx)
		})
	})
}

func (db *DB) checkTable(tx *bbolt.Tx, table int) error {
	t := []byte(db.opts.Tables[table].Table)
	live, ids := tx.Bucket(bucketLive).Bucket(t), tx.Bucket(bucketIDs).Bucket(t)
	fresh := newPostings(db.opts.Tables[table])
	fresh.seed = db.postings[table].seed
	groups := newGroups(db.opts.Tables[table])
	rows := 0
	err := live.ForEach(func(k, v []byte) error {
		row, err := decodeLive(k, v)
		if err != nil {
			return err
		}
		rows++
		if row.Revision > db.Revision() {
			return fmt.Errorf("%w: row %q has revision %d above %d", ErrDamaged, k, row.Revision, db.Revision())
		}
		id := encodeUint64(row.CreateRevision)
		if payload, err := unseal(id, ids.Get(id)); err != nil || string(payload) != string(k) {
			return fmt.Errorf("%w: the id of row %q leads to %q (%w)", ErrDamaged, k, payload, err)
		}
		fresh.change(nil, row)
		groups.change(nil, row, row.Revision)
		return nil
	})
	if err != nil {
		return err
	}
	if err := compareGroups(db.groups[table], groups); err != nil {
		return err
	}
	if n := ids.Stats().KeyN; n != rows {
		return fmt.Errorf("%w: %d ids for %d rows", ErrDamaged, n, rows)
	}
	return comparePostings(db.postings[table], fresh)
}

// comparePostings compares the postings in use with fresh ones. Those in use may
// have turned to hashed ones earlier, at a time of more values.
func comparePostings(used, fresh *postings) error {
	if !used.rows.Equals(fresh.rows) {
		return fmt.Errorf("%w: postings have %d rows, want %d", ErrDamaged, used.rows.GetCardinality(), fresh.rows.GetCardinality())
	}
	if !maps.EqualFunc(used.namespaces, fresh.namespaces, (*roaring64.Bitmap).Equals) {
		return fmt.Errorf("%w: the rows by namespace differ", ErrDamaged)
	}
	compare := func(name string, u, f *valuePostings) error {
		if f == nil {
			f = newValuePostings()
		}
		if u == nil {
			return fmt.Errorf("%w: no postings of %s", ErrDamaged, name)
		}
		want := map[uint64]*roaring64.Bitmap{}
		for value, b := range f.exact {
			if u.exact != nil {
				if got := u.exact[value]; got == nil || !got.Equals(b) {
					return fmt.Errorf("%w: postings of %s=%s differ", ErrDamaged, name, value)
				}
				continue
			}
			h := used.hash(value)
			if want[h] == nil {
				want[h] = roaring64.New()
			}
			want[h].Or(b)
		}
		if u.exact != nil {
			if f.exact != nil && len(u.exact) != len(f.exact) {
				return fmt.Errorf("%w: postings of %s have %d values, want %d", ErrDamaged, name, len(u.exact), len(f.exact))
			}
			return nil
		}
		for h, b := range f.hashed {
			want[h] = b
		}
		for h, b := range u.hashed {
			if w := want[h]; w == nil && !b.IsEmpty() || w != nil && !w.Equals(b) {
				return fmt.Errorf("%w: hashed postings of %s differ", ErrDamaged, name)
			}
		}
		return nil
	}
	for i, field := range used.schema.Fields {
		if err := compare(field, used.fields[i], fresh.fields[i]); err != nil {
			return err
		}
	}
	for label, u := range used.labels {
		if err := compare(label, u, fresh.labels[label]); err != nil {
			return err
		}
	}
	for label := range fresh.labels {
		if used.labels[label] == nil {
			return fmt.Errorf("%w: no postings of label %s", ErrDamaged, label)
		}
	}
	return nil
}

// checkLog verifies that each change can be read, that revisions are within
// bounds, and that history has nothing that the log does not lead to.
func (db *DB) checkLog(tx *bbolt.Tx) error {
	compacted, revision := db.Compacted(), db.Revision()
	superseded := 0
	err := tx.Bucket(bucketLog).ForEach(func(k, v []byte) error {
		change, err := db.change(tx, k, v)
		if err != nil {
			return err
		}
		if change.Revision <= compacted || change.Revision > revision {
			return fmt.Errorf("%w: the log has revision %d outside of (%d, %d]", ErrDamaged, change.Revision, compacted, revision)
		}
		if change.Old == nil && change.New == nil {
			return fmt.Errorf("%w: revision %d changes nothing", ErrDamaged, change.Revision)
		}
		if change.Old != nil {
			superseded++
		}
		return nil
	})
	if err != nil {
		return err
	}
	inHistory, size := 0, int64(0)
	for _, schema := range db.opts.Tables {
		err := tx.Bucket(bucketHist).Bucket([]byte(schema.Table)).ForEach(func(k, v []byte) error {
			inHistory++
			size += int64(len(k) + len(v))
			return nil
		})
		if err != nil {
			return err
		}
	}
	if counted := db.Space().History; counted != size {
		return fmt.Errorf("%w: history has %d bytes, %d are counted", ErrDamaged, size, counted)
	}
	if inHistory != superseded {
		return errors.Join(ErrDamaged, fmt.Errorf("history has %d versions, the log leads to %d", inHistory, superseded))
	}
	return nil
}
