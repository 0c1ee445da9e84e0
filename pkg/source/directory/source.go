package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"policy.example.io/policy-apiserver/pkg/source"
)

const (
	// DefaultMaxFileSize is 64 MiB: more than any manifest that people write, enough
	// for the dump of a kind, and still parsed within a small multiple of itself.
	DefaultMaxFileSize = 64 << 20

	// DefaultRescanInterval is how often the folder is looked through without any
	// sign of a change: file systems in a network do not give one.
	DefaultRescanInterval = 30 * time.Second

	// coalesce is how long further changes are waited for after the first one.
	coalesce = 100 * time.Millisecond
)

// Options of a Source.
type Options struct {
	// MaxFileSize in bytes. A larger file is a problem. 0 means DefaultMaxFileSize.
	MaxFileSize int64
	// RescanInterval is the longest time after which a change is seen. 0 means
	// DefaultRescanInterval.
	RescanInterval time.Duration
}

// Source streams the objects of a folder. It is safe for concurrent use.
type Source struct {
	path    string // absolute
	rescan  time.Duration
	changed chan struct{}

	scanMu  sync.Mutex // held during a scan
	scanner scanner    // protected by scanMu

	mu       sync.Mutex
	current  *snapshot     // protected by mu
	replaced chan struct{} // protected by mu; closed when current is replaced
}

var _ source.Source = (*Source)(nil)

// New reads the folder, or the single file, at path. It returns an error if there is
// none or if the folder itself cannot be read; whatever is wrong inside of it is a
// problem in the inventory.
func New(path string, opts Options) (*Source, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", path, err)
	}
	info, err := os.Stat(absolute)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("source %s: no such folder or file; give the path of a folder with manifests", path)
	case err != nil:
		return nil, fmt.Errorf("source %s: %w", path, cause(err))
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil, fmt.Errorf("source %s is neither a folder nor a regular file; give the path of a folder with manifests", path)
	}
	s := &Source{
		path:    absolute,
		rescan:  cmp.Or(opts.RescanInterval, DefaultRescanInterval),
		changed: make(chan struct{}, 1),
		scanner: scanner{
			root:        absolute,
			single:      !info.IsDir(),
			maxFileSize: cmp.Or(opts.MaxFileSize, DefaultMaxFileSize),
		},
		current:  &snapshot{inventory: &source.Inventory{}},
		replaced: make(chan struct{}),
	}
	if _, err := s.update(); err != nil {
		return nil, fmt.Errorf("source %s: cannot read the folder: %w; make it readable", path, cause(err))
	}
	return s, nil
}

// Inventory implements source.Source. Kinds and problems are those of the last scan.
func (s *Source) Inventory(context.Context) (*source.Inventory, error) {
	snap, _ := s.snapshot()
	inventory := *snap.inventory
	inventory.Kinds = slices.Clone(inventory.Kinds)
	inventory.Unstreamed = slices.Clone(inventory.Unstreamed)
	inventory.Problems = slices.Clone(inventory.Problems)
	return &inventory, nil
}

// Changed implements source.Source. Without Run it gets no value after the first.
func (s *Source) Changed() <-chan struct{} {
	return s.changed
}

// snapshot returns the current snapshot and a channel that is closed when there is a
// newer one.
func (s *Source) snapshot() (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.replaced
}

// update scans the folder and makes the result the current snapshot.
func (s *Source) update() (*scanResult, error) {
	s.scanMu.Lock()
	defer s.scanMu.Unlock()
	result, err := s.scanner.scan()
	last, _ := s.snapshot()
	var next *snapshot
	if err != nil {
		next = last.failed(s.path, err)
	} else {
		next = newSnapshot(result.files, result.problems)
	}

	s.mu.Lock()
	s.current = next
	close(s.replaced)
	s.replaced = make(chan struct{})
	s.mu.Unlock()

	if !slices.Equal(last.inventory.Kinds, next.inventory.Kinds) || !slices.Equal(last.inventory.Unstreamed, next.inventory.Unstreamed) || !slices.Equal(last.inventory.Problems, next.inventory.Problems) {
		select {
		case s.changed <- struct{}{}:
		default: // a value is waiting already
		}
	}
	return result, err
}
