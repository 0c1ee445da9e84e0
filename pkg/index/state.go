package index

import (
	"bytes"

	"go.etcd.io/bbolt"
)

// State is a bucket of the writer's private state: keys and values without
// revisions, written in the same transactions as rows.
type State struct {
	parent *bbolt.Bucket
	name   []byte
	tx     *Tx // nil in a read-only transaction
}

// ReadTx is a read-only transaction on the private state. It is valid until the
// function that got it returns.
type ReadTx struct{ bolt *bbolt.Tx }

// View runs fn in a read-only transaction.
func (db *DB) View(fn func(*ReadTx) error) error {
	return db.do(func() error {
		return db.bolt.View(func(bolt *bbolt.Tx) error { return fn(&ReadTx{bolt: bolt}) })
	})
}

// State returns a bucket; Put and Delete on it return an error.
func (tx *ReadTx) State(bucket string) *State {
	return &State{parent: tx.bolt.Bucket(bucketState), name: []byte(bucket)}
}

// State returns a bucket, which is made with the first Put.
func (tx *Tx) State(bucket string) *State {
	return &State{parent: tx.bolt.Bucket(bucketState), name: []byte(bucket), tx: tx}
}

// Get returns a value, nil if there is none. It is valid until the transaction
// ends and must not be modified.
func (s *State) Get(key string) []byte {
	bucket := s.parent.Bucket(s.name)
	if bucket == nil {
		return nil
	}
	sealed := bucket.Get([]byte(key))
	if sealed == nil {
		return nil
	}
	payload, err := unseal([]byte(key), sealed)
	if err != nil {
		panic(err) // as bbolt itself does on damage; the guard of the transaction takes it
	}
	return payload
}

// Put writes a value.
func (s *State) Put(key string, value []byte) error {
	bucket, err := s.parent.CreateBucketIfNotExists(s.name)
	if err != nil {
		return err
	}
	if s.tx != nil {
		s.tx.written += int64(len(key) + sealSize + len(value))
	}
	return bucket.Put([]byte(key), seal([]byte(key), value))
}

// Delete removes a value if it is there.
func (s *State) Delete(key string) error {
	bucket := s.parent.Bucket(s.name)
	if bucket == nil {
		return nil
	}
	return bucket.Delete([]byte(key))
}

// Ascend calls fn for each key that begins with prefix, in order. fn must not
// write to the bucket. The value is valid until fn returns.
func (s *State) Ascend(prefix string, fn func(key string, value []byte) error) error {
	bucket := s.parent.Bucket(s.name)
	if bucket == nil {
		return nil
	}
	c := bucket.Cursor()
	for k, v := c.Seek([]byte(prefix)); k != nil && bytes.HasPrefix(k, []byte(prefix)); k, v = c.Next() {
		payload, err := unseal(k, v)
		if err != nil {
			return err
		}
		if err := fn(string(k), payload); err != nil {
			return err
		}
	}
	return nil
}
