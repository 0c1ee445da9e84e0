package index

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// A bbolt file never gets smaller: pages that are free are used again. When more than
// half of the file is free its content is copied to another file, which takes its place.
// Until the rename, which is one step, the old file is what there is; a copy that was not
// finished is removed by the next Open. Readers go on meanwhile, the writer waits.

const (
	// shrinkSuffix marks a copy that is being made.
	shrinkSuffix = ".shrinking"
	// shrinkBatch bounds the bytes of one transaction of the copy.
	shrinkBatch = 4 << 20
)

// wasteful tells whether it is worth it to shrink the file.
func (s Space) wasteful(above int64) bool {
	return s.File >= above && s.File-s.Used > s.File/2
}

// Shrink copies what is in use to a file of its own, which takes the place of the old
// one. After an error the old one is in use as before.
func (db *DB) Shrink() error {
	db.writeMu.Lock()
	defer db.writeMu.Unlock()
	if err := db.shrink(); err != nil {
		return fmt.Errorf("shrink the index: %w", err)
	}
	return nil
}

func (db *DB) shrink() error {
	path := db.path + shrinkSuffix
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	options := db.boltOptions()
	options.NoSync = true // until the copy is complete
	target, err := bbolt.Open(path, 0o600, options)
	if err != nil {
		return err
	}
	err = db.do(func() error { return bbolt.Compact(target, db.bolt, shrinkBatch) })
	if err == nil {
		target.NoSync = false
		err = target.Sync()
	}
	if err == nil {
		err = db.swap(path, target)
	}
	if err != nil {
		return errors.Join(err, target.Close(), os.Remove(path))
	}
	db.measure(0)
	return nil
}

// swap puts a copy in the place of the file in use.
func (db *DB) swap(path string, target *bbolt.DB) error {
	db.swapMu.Lock()
	defer db.swapMu.Unlock()
	if db.closed.Load() {
		return ErrClosed
	}
	if err := os.Rename(path, db.path); err != nil {
		return err
	}
	old := db.bolt
	db.bolt = target
	// Should the machine fail before the folder is written, the old file is there again,
	// with the same content. What is written to the copy from now on would be lost, so
	// the folder comes first.
	err := syncFolder(filepath.Dir(db.path))
	if closeErr := guard(old.Close); closeErr != nil {
		db.warn("The file that the index was copied from cannot be closed", closeErr)
	}
	if err != nil {
		db.warn("The folder of the index cannot be synced", err)
	}
	return nil
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// shrinkIfWasteful shrinks the file if that is worth it, and tells of errors.
func (db *DB) shrinkIfWasteful() {
	if !db.Space().wasteful(db.opts.ShrinkAbove) || !db.opts.Now().After(db.noShrinkBefore) {
		return
	}
	if err := db.Shrink(); err != nil && !errors.Is(err, ErrClosed) {
		db.noShrinkBefore = db.opts.Now().Add(shrinkRetry)
		db.warn("The index cannot be made smaller; it stays as it is", err)
	}
}

func (db *DB) warn(message string, err error) {
	if db.opts.Warn != nil {
		db.opts.Warn(message, err)
	}
}
