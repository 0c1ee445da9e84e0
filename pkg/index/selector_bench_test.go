package index_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

// BenchmarkSelectedPage reads a page of rows that a selector selects, of 200,000: one row
// in twenty, in a hundred and in ten thousand; in 1,000 namespaces, and all in one.
func BenchmarkSelectedPage(b *testing.B) {
	const rows = 200_000
	for _, namespaces := range []int{1000, 1} {
		db := indextest.MustOpen(b, []index.Schema{{Table: "a", Fields: []string{"hundredth", "twentieth", "rare"}}}, func(o *index.Options) { o.History = time.Hour })
		key := func(i int) index.Key {
			return index.Key{Namespace: fmt.Sprintf("ns-%04d", i%namespaces), Name: fmt.Sprintf("row-%06d", i)}
		}
		for from := 0; from < rows; from += 10_000 {
			_, err := db.Update(b.Context(), func(tx *index.Tx) error {
				for i := from; i < from+10_000; i++ {
					n := uint32(i) * 2654435761 >> 8 // spread over the namespaces
					attrs := index.Attrs{Fields: []string{fmt.Sprint(n % 100), fmt.Sprint(n % 20), fmt.Sprint(n % 10_000)}}
					if err := tx.Put("a", key(i), make([]byte, 500), attrs); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		for _, field := range []string{"hundredth", "twentieth", "rare"} {
			terms := []index.Term{{Field: field, Value: "3"}}
			all, err := db.List(b.Context(), index.Query{Table: "a", Terms: terms})
			if err != nil {
				b.Fatal(err)
			}
			for _, limit := range []int{500, 50} {
				for _, old := range []bool{false, true} {
					middle := all.Rows[len(all.Rows)/2].Key
					query := index.Query{Table: "a", Terms: terms, After: &middle, Limit: limit, WithoutAttrs: true}
					name := fmt.Sprintf("namespaces=%d/%s/page=%d", namespaces, field, limit)
					if old {
						query.Revision = db.Revision() - 1000
						name += "/old"
					}
					b.Run(name, func(b *testing.B) {
						for b.Loop() {
							if _, err := db.List(context.Background(), query); err != nil {
								b.Fatal(err)
							}
						}
					})
				}
			}
		}
	}
}
