package index_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

// TestSelectorUnderWrites selects rows while they go and others come, as many in each
// transaction: a list has always as many, whether it is of one page or more, and at
// whichever revision.
func TestSelectorUnderWrites(t *testing.T) {
	const namespaces, rows, selected, transactions = 40, 800, 60, 300
	db := indextest.MustOpen(t, schemas)
	key := func(i int) index.Key {
		return index.Key{Namespace: fmt.Sprintf("ns-%02d", i%namespaces), Name: fmt.Sprintf("row-%04d", i)}
	}
	put := func(tx *index.Tx, i int, color string) error {
		return tx.Put("a", key(i), []byte("{}"), index.Attrs{Fields: []string{color, "1"}})
	}
	_, err := db.Update(t.Context(), func(tx *index.Tx) error {
		for i := range rows {
			color := "blue"
			if i < selected {
				color = "red"
			}
			if err := put(tx, i, color); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, limit := range []int{0, 7, 25, 59} {
		wg.Go(func() {
			for ctx.Err() == nil {
				q := index.Query{Table: "a", Terms: []index.Term{{Field: "color", Value: "red"}}, Limit: limit}
				n := 0
				for {
					page, err := db.List(context.Background(), q)
					if err != nil {
						t.Error(err)
						return
					}
					n += len(page.Rows)
					if !page.More {
						break
					}
					q.Revision, q.After = page.Revision, &page.Rows[len(page.Rows)-1].Key
				}
				if n != selected {
					t.Errorf("with limit %d: %d rows, want %d", limit, n, selected)
					return
				}
			}
		})
	}
	red := make([]int, selected)
	for i := range red {
		red[i] = i
	}
	for i := range transactions {
		_, err := db.Update(t.Context(), func(tx *index.Tx) error {
			at := rand.IntN(selected)
			before := red[at]
			after := rand.IntN(rows)
			for slices.Contains(red, after) {
				after = rand.IntN(rows)
			}
			red[at] = after
			if err := put(tx, after, "red"); err != nil {
				return err
			}
			if i%2 == 0 {
				return put(tx, before, "blue")
			}
			return tx.Delete("a", key(before))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	wg.Wait()
}
