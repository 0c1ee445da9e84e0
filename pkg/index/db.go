package index

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// formatVersion of the file. docs/index-format.md describes it.
const formatVersion = 1

// Buckets and keys of the file.
var (
	bucketMeta  = []byte("meta")
	bucketLive  = []byte("live")  // by table: current rows by key
	bucketHist  = []byte("hist")  // by table: superseded rows by key and revision
	bucketIDs   = []byte("ids")   // by table: keys by create revision
	bucketLog   = []byte("log")   // changes by revision
	bucketState = []byte("state") // private state of the writer, by bucket

	keyFormat    = []byte("format")
	keyRevision  = []byte("revision")
	keyCompacted = []byte("compacted")
)

// format is the value of keyFormat.
type format struct {
	Program string   `json:"program"`
	Version int      `json:"version"`
	Tables  []Schema `json:"tables"`
}

const program = "policy-apiserver index"

// DB is an open index. Its methods may be called by any goroutine.
type DB struct {
	opts      Options
	path      string
	bolt      *bbolt.DB
	tables    map[Table]int
	recovered error

	damaged atomic.Pointer[error]
	closed  atomic.Bool

	writeMu sync.Mutex // allows only one writer at a time, and orders the hooks
	hooks   []func([]Change)
	// swapMu protects bolt: those who use it have read locks, and who replaces it, which
	// takes writeMu as well, has the lock.
	swapMu  sync.RWMutex
	pressed chan struct{} // gets a value when Level has risen
	// noShrinkBefore is only used by Open and Run.
	noShrinkBefore time.Time

	mu        sync.RWMutex // protects the fields below
	revision  uint64
	compacted uint64
	postings  []*postings // by table
	groups    []*groups   // by table
	space     Space
}

// Open opens the index of a folder, or makes one. A file that is damaged or has
// other tables is set aside; Recovered tells. It returns ErrLocked if another
// process has the file and ErrNewerFormat if a newer version of this program
// wrote it.
func Open(opts Options) (*DB, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	path := filepath.Join(opts.Dir, fileName)
	var recovered error
	if _, err := os.Stat(path + suspectSuffix); err == nil {
		recovered = fmt.Errorf("%w: damage was found while it was in use", ErrDamaged)
	} else {
		db, err := open(path, opts)
		if err == nil {
			return db, nil
		}
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, errOtherTables) {
			return nil, err
		}
		recovered = err
	}
	aside := asideName(path, opts.Now())
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("set the damaged index aside: %w", err)
	}
	if err := os.Remove(path + suspectSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the mark of the damaged index: %w", err)
	}
	db, err := open(path, opts)
	if err != nil {
		return nil, err
	}
	db.recovered = fmt.Errorf("the index was set aside as %s: %w", aside, recovered)
	return db, nil
}

// tidy makes the file smaller if that is worth it, and removes old ones.
func (db *DB) tidy() {
	if err := os.Remove(db.path + shrinkSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		db.warn("A copy of the index that was not finished cannot be removed", err)
	}
	if err := removeAside(db.path, db.opts.Now()); err != nil {
		db.warn("Files that were set aside cannot be removed", err)
	}
	db.measure(0)
	db.shrinkIfWasteful()
}

var errOtherTables = errors.New("index has other tables")

func open(path string, opts Options) (*DB, error) {
	db := &DB{opts: opts, path: path, tables: make(map[Table]int, len(opts.Tables)), pressed: make(chan struct{}, 1)}
	for i, schema := range opts.Tables {
		db.tables[schema.Table] = i
		db.postings = append(db.postings, newPostings(schema))
		db.groups = append(db.groups, newGroups(schema))
	}
	err := guard(func() error {
		var err error
		db.bolt, err = bbolt.Open(path, 0o600, db.boltOptions())
		return err
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: %w", path, ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, fmt.Errorf("open %s: %w: %w", path, ErrDamaged, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := guard(db.initialise); err != nil {
		_ = db.closeBolt() // it could not be used anyway
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.tidy()
	if err := db.Damaged(); err != nil {
		_ = db.closeBolt()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

func (db *DB) boltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout:         max(db.opts.LockTimeout, time.Millisecond),
		InitialMmapSize: initialMmapSize,
		// The list of free pages is written with each commit. Without it bbolt looks for
		// them when it opens the file, in a goroutine of its own, where a panic on a
		// damaged page cannot be caught.
		NoFreelistSync: false,
		FreelistType:   bbolt.FreelistMapType,
	}
}

// guard runs fn and turns a panic or a memory fault, which bbolt answers damaged
// pages with, into ErrDamaged.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return fn()
}

// do guards an operation on the open file and remembers damage.
func (db *DB) do(fn func() error) error {
	if db.closed.Load() {
		return ErrClosed
	}
	if err := db.damaged.Load(); err != nil {
		return *err
	}
	err := func() error {
		db.swapMu.RLock()
		defer db.swapMu.RUnlock()
		return guard(fn)
	}()
	switch {
	case errors.Is(err, ErrDamaged):
		db.damaged.CompareAndSwap(nil, &err)
		// The next Open sets the file aside even if it cannot find the damage itself.
		// If the mark cannot be made there is nothing better to do than to go on
		// refusing.
		_ = os.WriteFile(db.path+suspectSuffix, []byte(err.Error()+"\n"), 0o600)
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		return ErrClosed
	}
	return err
}

// initialise makes the buckets of a new file, or verifies those of an old one and
// builds the postings.
func (db *DB) initialise() error {
	err := db.bolt.Update(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(bucketMeta); meta != nil {
			return db.verifyFormat(meta)
		}
		return db.create(tx)
	})
	if err != nil {
		return err
	}
	return db.bolt.View(func(tx *bbolt.Tx) error {
		if err := db.verifyEntries(tx); err != nil {
			return err
		}
		var err error
		meta := tx.Bucket(bucketMeta)
		if db.revision, err = metaUint64(meta, keyRevision); err != nil {
			return err
		}
		db.compacted, err = metaUint64(meta, keyCompacted)
		return err
	})
}

func (db *DB) create(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucket(bucketMeta)
	if err != nil {
		return err
	}
	data, err := json.Marshal(format{Program: program, Version: formatVersion, Tables: db.opts.Tables})
	if err != nil {
		return fmt.Errorf("encode the format: %w", err)
	}
	first := encodeUint64(uint64(db.opts.Now().UnixMicro()))
	for _, entry := range []struct{ key, value []byte }{{keyFormat, data}, {keyRevision, first}, {keyCompacted, first}} {
		if err := meta.Put(entry.key, seal(entry.key, entry.value)); err != nil {
			return err
		}
	}
	for _, name := range [][]byte{bucketLive, bucketHist, bucketIDs} {
		parent, err := tx.CreateBucket(name)
		if err != nil {
			return err
		}
		for _, schema := range db.opts.Tables {
			if _, err := parent.CreateBucket([]byte(schema.Table)); err != nil {
				return err
			}
		}
	}
	for _, name := range [][]byte{bucketLog, bucketState} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return nil
}

func (db *DB) verifyFormat(meta *bbolt.Bucket) error {
	data, err := unseal(keyFormat, meta.Get(keyFormat))
	if err != nil {
		return err
	}
	var f format
	if err := json.Unmarshal(data, &f); err != nil || f.Program != program {
		return fmt.Errorf("%w: the format is unknown: %q", ErrDamaged, data)
	}
	if f.Version > formatVersion {
		return fmt.Errorf("%w: the file has format %d and this program knows up to %d", ErrNewerFormat, f.Version, formatVersion)
	}
	want, err := json.Marshal(db.opts.Tables)
	if err != nil {
		return fmt.Errorf("encode the tables: %w", err)
	}
	if got, err := json.Marshal(f.Tables); err != nil || string(got) != string(want) {
		return errOtherTables
	}
	return nil
}

func metaUint64(meta *bbolt.Bucket, key []byte) (uint64, error) {
	data, err := unseal(key, meta.Get(key))
	if err != nil {
		return 0, err
	}
	d := decoder{data: data}
	v := d.uint64()
	if d.failed {
		return 0, fmt.Errorf("%w: %s", ErrDamaged, key)
	}
	return v, nil
}

// table returns the position of a table.
func (db *DB) table(t Table) (int, error) {
	i, ok := db.tables[t]
	if !ok {
		return 0, fmt.Errorf("the index has no table %q", t)
	}
	return i, nil
}

// Recovered returns why Open set an earlier file aside, nil if it did not.
func (db *DB) Recovered() error { return db.recovered }

// Damaged returns ErrDamaged, with the reason, once damage was found.
func (db *DB) Damaged() error {
	if err := db.damaged.Load(); err != nil {
		return *err
	}
	return nil
}

// Revision returns the last committed revision.
func (db *DB) Revision() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.revision
}

// Compacted returns the oldest revision that can be read.
func (db *DB) Compacted() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.compacted
}

// OnCommit registers a function that gets the changes of each commit, in the
// order of their revisions. It must not block and must not write to the index.
// Functions are registered before the first Update.
func (db *DB) OnCommit(fn func([]Change)) {
	db.writeMu.Lock()
	defer db.writeMu.Unlock()
	db.hooks = append(db.hooks, fn)
}

// Close closes the index after the operations under way have ended. It may be
// called more than once.
func (db *DB) Close() error {
	if db.closed.Swap(true) {
		return nil
	}
	db.swapMu.Lock()
	defer db.swapMu.Unlock()
	return db.closeBolt()
}

func (db *DB) closeBolt() error {
	if db.bolt == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- guard(db.bolt.Close) }()
	if db.damaged.Load() == nil {
		return <-done
	}
	// A transaction that was cut short by damage may never end.
	select {
	case err := <-done:
		return err
	case <-time.After(time.Second):
		return nil
	}
}
