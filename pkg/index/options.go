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
)
