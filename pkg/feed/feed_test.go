package feed_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

var tables = []index.Schema{{Table: "a", Fields: []string{"f"}}}

func put(t testing.TB, db *index.DB, name, value string) {
	t.Helper()
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		return tx.Put("a", index.Key{Name: name}, []byte(value), index.Attrs{Fields: []string{"x"}})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestReaders has readers of all speeds follow a writer: each sees every revision
// once and in order.
func TestReaders(t *testing.T) {
	db := indextest.MustOpen(t, tables)
	f := feed.New(db)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const n = 500
	start := db.Revision()
	var wg sync.WaitGroup
	for reader := range 20 {
		wg.Go(func() {
			after := start
			for after < start+n {
				changes, complete, err := f.Next(ctx, after, 1+reader)
				if err != nil {
					t.Errorf("reader %d: %v", reader, err)
					return
				}
				for _, c := range changes {
					if c.Revision != after+1 {
						t.Errorf("reader %d: revision %d after %d", reader, c.Revision, after)
					}
					after = c.Revision
				}
				if complete != after {
					t.Errorf("reader %d: complete up to %d, the last change is %d", reader, complete, after)
				}
				time.Sleep(time.Duration(reader) * 100 * time.Microsecond)
			}
		})
	}
	for i := range n {
		put(t, db, fmt.Sprint(i%10), fmt.Sprint(i))
	}
	wg.Wait()
	if err := f.WaitFor(ctx, start+n); err != nil {
		t.Error(err)
	}
}

// TestOldRevisions reads what the ring does not have from the index, and what the
// index does not have not at all.
func TestOldRevisions(t *testing.T) {
	now := time.Now()
	db := indextest.MustOpen(t, tables, func(o *index.Options) {
		o.History = time.Minute
		o.Now = func() time.Time { return now }
	})
	start := db.Revision()
	put(t, db, "before", "1")
	f := feed.New(db)
	changes, _, err := f.Next(context.Background(), start, 10)
	if err != nil || len(changes) != 1 || changes[0].New.Name != "before" {
		t.Fatalf("changes before the feed: %v, %v", changes, err)
	}
	now = now.Add(2 * time.Minute)
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Next(context.Background(), start, 10); !errors.Is(err, index.ErrCompacted) {
		t.Errorf("changes after a compacted revision: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := f.Next(ctx, db.Revision(), 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no changes: %v", err)
	}
}
