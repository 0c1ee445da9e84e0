package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

const (
	memoShards = 16
	// memoBytes bounds the memory of the memo of installed policies, about.
	memoBytes = 64 << 20
	// memoKeyBytes is the length of a projection's key from which a key is replaced by its hash.
	memoKeyBytes = 256
	// memoEntryBytes is what an entry takes besides its key and its violations.
	memoEntryBytes = 128
)

// memo remembers what programs said of the projections of objects, so that objects
// that look the same to a program are evaluated once: the Pods of a ReplicaSet, or an
// object of which only the status has changed. It forgets what was not asked for the
// longest. Messages have placeholders for the texts that programs only show.
type memo struct {
	seed maphash.Seed
	// shardBytes bounds the memory of a shard, about. Half of it is for what was used
	// since the last time that half was full.
	shardBytes int
	shards     [memoShards]memoShard
	// constraints is how many have been told apart so far.
	constraints atomic.Uint64
}

type memoShard struct {
	mu sync.Mutex // protects the fields below
	// recent has what was entered or used since old was replaced.
	recent, old map[string][]Violation
	// bytes of recent.
	bytes int
}

// newMemo returns a memo that takes about as much memory.
func newMemo(bytes int) *memo {
	return &memo{seed: maphash.MakeSeed(), shardBytes: bytes / memoShards}
}

// Tags in front of the keys of projections: those that are as they are, and hashes.
const (
	keyAsItIs = 'k'
	keyHash   = 'h'
)

// shorten replaces a projection's key, which has a tag in front, by its hash if it is
// long, in place.
func shorten(key []byte) []byte {
	if len(key) <= memoKeyBytes {
		return key
	}
	sum := sha256.Sum256(key)
	return append(append(key[:0], keyHash), sum[:]...)
}

// memoKey appends the key of a constraint and a projection to dst.
func memoKey(dst []byte, constraint uint64, projection []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, constraint), projection...)
}

func (m *memo) shard(key []byte) *memoShard {
	return &m.shards[maphash.Bytes(m.seed, key)%memoShards]
}

// get returns what was said; the violations must not be modified.
func (m *memo) get(key []byte) (violations []Violation, ok bool) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if violations, ok = s.recent[string(key)]; ok {
		return violations, true
	}
	if violations, ok = s.old[string(key)]; ok {
		s.put(string(key), violations, m.shardBytes)
	}
	return violations, ok
}

func (m *memo) put(key []byte, violations []Violation) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(string(key), violations, m.shardBytes)
}

// put enters what was said, in a shard of a size; the caller holds mu.
func (s *memoShard) put(key string, violations []Violation, limit int) {
	size := memoEntryBytes + len(key)
	for i := range violations {
		size += memoEntryBytes + len(violations[i].Message) + len(violations[i].Details)
	}
	if size > limit/8 {
		return
	}
	if s.bytes+size > limit/2 {
		s.old, s.recent, s.bytes = s.recent, nil, 0
	}
	if s.recent == nil {
		s.recent = map[string][]Violation{}
	}
	s.recent[key] = violations
	s.bytes += size
}
