package index

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// Changes returns the changes of all tables after a revision, at most limit of
// them, in the order of their revisions. It returns ErrCompacted if some of them
// are not known any more and ErrFutureRevision if the revision has not been
// written.
func (db *DB) Changes(after uint64, limit int) ([]Change, error) {
	var out []Change
	err := db.view(after, func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketLog).Cursor()
		for k, v := c.Seek(encodeUint64(after + 1)); k != nil && len(out) < limit; k, v = c.Next() {
			change, err := db.change(tx, k, v)
			if err != nil {
				return err
			}
			out = append(out, *change)
		}
		return nil
	})
	return out, err
}

// change reads the versions that a log entry speaks of.
func (db *DB) change(tx *bbolt.Tx, k, v []byte) (*Change, error) {
	payload, err := unseal(k, v)
	if err != nil {
		return nil, err
	}
	entry, err := decodeLogEntry(payload, len(db.opts.Tables))
	if err != nil {
		return nil, err
	}
	d := decoder{data: k}
	change := &Change{Table: db.opts.Tables[entry.table].Table, Revision: d.uint64()}
	key := encodeKey(entry.key)
	if entry.previous != 0 {
		if change.Old, err = versionOf(tx, change.Table, key, entry.previous); err != nil {
			return nil, err
		}
	}
	if !entry.deleted {
		if change.New, err = versionOf(tx, change.Table, key, change.Revision); err != nil {
			return nil, err
		}
	}
	return change, nil
}

// compactBatch bounds the log entries that one transaction of Compact drops, so
// that the writer never waits for long.
const compactBatch = 5000

// Compact drops what is older than the history window, which is shorter when room is
// short.
func (db *DB) Compact(ctx context.Context) error {
	window := max(db.opts.History, 0)
	if db.Level() >= LevelShort {
		window /= shortHistory
	}
	cutoff := db.opts.Now().Add(-window).UnixMilli()
	for {
		n, err := db.compactBatch(cutoff)
		if err != nil || n < compactBatch {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (db *DB) compactBatch(cutoff int64) (int, error) {
	db.writeMu.Lock()
	defer db.writeMu.Unlock()
	n, freed := 0, int64(0)
	horizon := db.Compacted()
	err := db.do(func() error {
		return db.bolt.Update(func(tx *bbolt.Tx) error {
			log := tx.Bucket(bucketLog)
			type dropped struct {
				key   []byte
				entry *logEntry
			}
			var drop []dropped
			c := log.Cursor()
			for k, v := c.First(); k != nil && len(drop) < compactBatch; k, v = c.Next() {
				payload, err := unseal(k, v)
				if err != nil {
					return err
				}
				entry, err := decodeLogEntry(payload, len(db.opts.Tables))
				if err != nil {
					return err
				}
				if entry.time > cutoff {
					break
				}
				drop = append(drop, dropped{append([]byte{}, k...), entry})
			}
			if n = len(drop); n == 0 {
				return nil
			}
			for _, d := range drop {
				if err := log.Delete(d.key); err != nil {
					return err
				}
				if d.entry.previous == 0 {
					continue
				}
				t := []byte(db.opts.Tables[d.entry.table].Table)
				key := historyKey(encodeKey(d.entry.key), d.entry.previous)
				hist := tx.Bucket(bucketHist).Bucket(t)
				if sealed := hist.Get(key); sealed != nil {
					freed += int64(len(key) + len(sealed))
				}
				if err := hist.Delete(key); err != nil {
					return err
				}
			}
			d := decoder{data: drop[n-1].key}
			horizon = d.uint64()
			return tx.Bucket(bucketMeta).Put(keyCompacted, seal(keyCompacted, encodeUint64(horizon)))
		})
	})
	if err != nil {
		return 0, fmt.Errorf("compact the index: %w", err)
	}
	db.mu.Lock()
	db.compacted = horizon
	for _, g := range db.groups {
		g.forget(horizon)
	}
	db.mu.Unlock()
	db.measure(-freed)
	return n, nil
}

// Run compacts the index from time to time until ctx is done or compacting fails.
func (db *DB) Run(ctx context.Context) error {
	tidied := db.opts.Now()
	for {
		interval := min(max(db.opts.History/10, time.Second), time.Minute)
		if db.Level() >= LevelShort {
			interval = min(interval, pressedInterval)
		}
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
		case <-db.pressed:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		if err := db.Compact(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if now := db.opts.Now(); now.Sub(tidied) >= housekeeping {
			tidied = now
			if err := removeAside(db.path, now); err != nil {
				db.warn("Files that were set aside cannot be removed", err)
			}
			db.shrinkIfWasteful()
		}
	}
}
