package index

import "time"

// Options of a DB.
type Options struct {
	// Dir is the folder that the index is in. It is made if it is missing.
	Dir string
	// Tables of the index.
	Tables []Schema
	// History is how long old revisions can be read. 0 or less means that only the
	// current revision can.
	History time.Duration
	// Quota is how many bytes the index may have in use; 0 means that there is no limit.
	// The index itself keeps less history when it is nearly used up. Callers ask Level
	// before they write.
	Quota int64
	// ShrinkAbove is the size of the file in bytes from which on it is made smaller when
	// more than half of it is free.
	ShrinkAbove int64
	// Warn is called with what went wrong without harm to the index. It may be nil.
	Warn func(message string, err error)
	// LockTimeout is how long Open waits for another process to release the file.
	LockTimeout time.Duration
	// Now is the clock.
	Now func() time.Time
}

// DefaultOptions returns options with a history of 10 minutes and a lock timeout
// of one second. Dir and Tables are left to the caller.
func DefaultOptions() Options {
	return Options{
		History:     10 * time.Minute,
		ShrinkAbove: 64 << 20,
		LockTimeout: time.Second,
		Now:         time.Now,
	}
}

const (
	// fileName of the index in its folder.
	fileName = "index.db"
	// suspectSuffix marks a file in which damage was found while it was in use.
	suspectSuffix = ".suspect"

	// initialMmapSize is address space, not memory: mapping the file anew makes the
	// writer wait for all readers, which this avoids up to this size.
	initialMmapSize = 1 << 30

	// housekeeping is how often the file is looked at: whether it is worth it to make it
	// smaller, and whether files that were set aside are old.
	housekeeping = time.Minute
	// shrinkRetry is the wait after the file could not be made smaller.
	shrinkRetry = 10 * time.Minute
	// pressedInterval is how often history is compacted when room is short.
	pressedInterval = 5 * time.Second
)
