package feed

import (
	"context"
	"fmt"
	"sync"

	"policy.example.io/policy-apiserver/pkg/index"
)

// Limits of the ring of recent changes.
const (
	maxRecent      = 16384
	maxRecentBytes = 32 << 20
)

// Source of changes: an index.
type Source interface {
	// Revision is the last one committed.
	Revision() uint64
	// Changes after a revision.
	Changes(after uint64, limit int) ([]index.Change, error)
	// OnCommit calls fn with the changes of each commit.
	OnCommit(fn func([]index.Change))
}

// Feed of the changes of an index.
type Feed struct {
	source Source

	mu     sync.Mutex // protects the fields below
	recent []index.Change
	bytes  int
	head   uint64        // the last revision
	wake   chan struct{} // closed with the next commit
}

// New returns the feed of an index that nothing is written to yet.
func New(source Source) *Feed {
	f := &Feed{source: source, wake: make(chan struct{})}
	source.OnCommit(f.committed)
	f.mu.Lock()
	f.head = max(f.head, source.Revision())
	f.mu.Unlock()
	return f
}

// committed takes the changes of a commit into the ring and wakes the readers.
func (f *Feed) committed(changes []index.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recent = append(f.recent, changes...)
	for i := range changes {
		f.bytes += size(&changes[i])
	}
	drop := 0
	for drop < len(f.recent) && (len(f.recent)-drop > maxRecent || f.bytes > maxRecentBytes) {
		f.bytes -= size(&f.recent[drop])
		drop++
	}
	if drop > 0 {
		// Readers have the old array; a new one lets go of what was dropped.
		f.recent = append(make([]index.Change, 0, len(f.recent)-drop+len(changes)), f.recent[drop:]...)
	}
	f.head = changes[len(changes)-1].Revision
	close(f.wake)
	f.wake = make(chan struct{})
}

func size(c *index.Change) int {
	n := 256
	for _, row := range []*index.Row{c.Old, c.New} {
		if row != nil {
			n += len(row.Value)
		}
	}
	return n
}

// Next returns changes after a revision, in order, at most limit and at least
// one: it waits for them until ctx is done. complete is the revision up to which
// nothing is missing. It returns index.ErrCompacted if the revision is older than
// the history window.
func (f *Feed) Next(ctx context.Context, after uint64, limit int) (changes []index.Change, complete uint64, err error) {
	for {
		changes, complete, wake := f.poll(after, limit)
		if len(changes) > 0 {
			return changes, complete, nil
		}
		if complete > after {
			// Older than the ring.
			changes, err := f.source.Changes(after, limit)
			if err != nil {
				return nil, 0, fmt.Errorf("changes after revision %d: %w", after, err)
			}
			if len(changes) > 0 {
				return changes, changes[len(changes)-1].Revision, nil
			}
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// poll returns what the ring has after a revision, the revision up to which the
// answer is complete, and a channel that is closed with the next commit. If the
// ring does not reach back far enough there are no changes and complete is above
// the revision asked for.
func (f *Feed) poll(after uint64, limit int) ([]index.Change, uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head <= after || len(f.recent) == 0 || f.recent[0].Revision > after+1 {
		return nil, f.head, f.wake
	}
	// Revisions in the ring are consecutive.
	start := int(after + 1 - f.recent[0].Revision)
	end := min(start+max(limit, 1), len(f.recent))
	out := f.recent[start:end:end]
	return out, out[len(out)-1].Revision, f.wake
}

// WaitFor returns when a revision has been committed, or when ctx is done.
func (f *Feed) WaitFor(ctx context.Context, revision uint64) error {
	for {
		f.mu.Lock()
		head, wake := f.head, f.wake
		f.mu.Unlock()
		if head >= revision {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Head returns the last revision that readers can know of.
func (f *Feed) Head() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.head
}
