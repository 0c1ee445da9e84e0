// Package indextest opens indexes for tests and checks them afterwards.
package indextest

import (
	"context"
	"testing"

	"policy.example.io/policy-apiserver/pkg/index"
)

// MustOpen opens an index in a folder of the test. When the test ends the index
// is checked for consistency, unless damage was found in it, and closed.
func MustOpen(t testing.TB, tables []index.Schema, change ...func(*index.Options)) *index.DB {
	t.Helper()
	opts := index.DefaultOptions()
	opts.Dir = t.TempDir()
	opts.Tables = tables
	for _, fn := range change {
		fn(&opts)
	}
	db, err := index.Open(opts)
	if err != nil {
		t.Fatalf("open index: %v", err)
	}
	t.Cleanup(func() { MustClose(t, db) })
	return db
}

// MustClose checks an index for consistency and closes it.
func MustClose(t testing.TB, db *index.DB) {
	t.Helper()
	if err := db.Check(context.Background()); err != nil && err != index.ErrClosed && db.Damaged() == nil { //nolint:errorlint // returned as it is
		t.Errorf("index is inconsistent: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("close index: %v", err)
	}
}
