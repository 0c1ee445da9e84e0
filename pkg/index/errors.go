package index

import "errors"

var (
	// ErrNotFound is returned by Get when there is no such row at the revision.
	ErrNotFound = errors.New("row not found")
	// ErrCompacted is returned when a revision is asked for that is older than the
	// history window.
	ErrCompacted = errors.New("revision is older than the history window")
	// ErrFutureRevision is returned when a revision is asked for that has not been
	// written yet.
	ErrFutureRevision = errors.New("revision has not been written yet")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("index is closed")
	// ErrLocked is returned by Open when another process holds the file.
	ErrLocked = errors.New("index is in use by another process")
	// ErrNewerFormat is returned by Open when the file was written by a newer
	// version of this program.
	ErrNewerFormat = errors.New("index has a newer format")
	// ErrDamaged is returned by Open, and by any operation that finds the file
	// inconsistent. The file is never served after it.
	ErrDamaged = errors.New("index is damaged")
)
