package index

import (
	"os"

	"go.etcd.io/bbolt"
)

// Level says how much of the quota is in use, and what has to give way.
type Level int

const (
	// LevelFine means that there is room.
	LevelFine Level = iota
	// LevelShort means that the history window is a tenth of what it should be.
	LevelShort
	// LevelLow means, besides, that callers are not to write what can be done without.
	LevelLow
	// LevelFull means that callers are not to write what is not there yet. What is left
	// is for what makes room.
	LevelFull
)

// levelPercent are the parts of the quota at which levels begin. A level ends
// levelSlack percent below its beginning, so that it does not come and go all the time.
var levelPercent = map[Level]int64{LevelShort: 70, LevelLow: 80, LevelFull: 90}

const (
	levelSlack = 5
	// shortHistory is what part of the history window is kept from LevelShort on.
	shortHistory = 10
)

// String implements fmt.Stringer.
func (l Level) String() string {
	return [...]string{"fine", "short", "low", "full"}[l]
}

// next returns the level that follows l when used of quota bytes are in use.
func (l Level) next(used, quota int64) Level {
	if quota <= 0 {
		return LevelFine
	}
	out := LevelFine
	for _, level := range []Level{LevelShort, LevelLow, LevelFull} {
		at := levelPercent[level]
		if level <= l {
			at -= levelSlack
		}
		if used >= quota/100*at {
			out = level
		}
	}
	return out
}

// Space is the room that an index takes, in bytes.
type Space struct {
	// File is the size of the file.
	File int64
	// Used is the size of the pages in use, which the quota is about. What the file has
	// besides is used again, or goes when the file is shrunk.
	Used int64
	// History is what superseded versions of rows take of it.
	History int64
	// Quota is the limit on Used, 0 if there is none.
	Quota int64
	// Level says how much of the quota is in use.
	Level Level
}

// Space returns how much room the index takes, as of the last transaction.
func (db *DB) Space() Space {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.space
}

// Level returns how much of the quota is in use, as of the last transaction.
func (db *DB) Level() Level { return db.Space().Level }

// measure takes note of the room that the index takes. The caller holds writeMu, and
// history is what has been added to the history since the last time.
func (db *DB) measure(history int64) {
	var size int64
	err := db.bolt.View(func(tx *bbolt.Tx) error {
		size = tx.Size()
		return nil
	})
	if err != nil {
		return // it is being closed
	}
	used := size - int64(db.bolt.Stats().FreeAlloc)
	db.mu.Lock()
	before := db.space.Level
	db.space.History += history
	db.space.Used, db.space.Quota = used, max(db.opts.Quota, 0)
	db.space.Level = before.next(used, db.opts.Quota)
	if info, err := os.Stat(db.path); err == nil {
		db.space.File = info.Size()
	}
	risen := db.space.Level > before
	db.mu.Unlock()
	if risen {
		select {
		case db.pressed <- struct{}{}:
		default:
		}
	}
}

// Full tells whether the index is full, or will be with what the transaction has written.
func (tx *Tx) Full() bool {
	s := tx.db.Space()
	// Pages may be no more than half full.
	estimate := s.Used + 2*(tx.written+tx.history)
	return s.Level.next(estimate, s.Quota) == LevelFull
}
