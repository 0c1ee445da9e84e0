package index_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

func fill(t testing.TB, db *index.DB, n int) {
	t.Helper()
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for i := range n {
			k := index.Key{Namespace: fmt.Sprintf("ns%d", i%7), Name: fmt.Sprintf("row-%04d", i)}
			if err := tx.Put("a", k, fmt.Appendf(nil, "value of %s/%s", k.Namespace, k.Name), index.Attrs{Fields: []string{"red", fmt.Sprint(i)}}); err != nil {
				return err
			}
		}
		return tx.State("s").Put("k", []byte("v"))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func options(dir string) index.Options {
	opts := index.DefaultOptions()
	opts.Dir, opts.Tables, opts.LockTimeout = dir, schemas, 50*time.Millisecond
	return opts
}

// TestDamage overwrites, zeroes or cuts off parts of a file at random. What comes
// of it is either the index as it was or a new one, and never a wrong row.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	db, err := index.Open(options(dir))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, db, 2000)
	revision := db.Revision()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	used := len(bytes.TrimRight(good, "\x00"))
	recovered := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 2))
		damaged := append([]byte(nil), good...)
		at := random.IntN(used)
		switch random.IntN(4) {
		case 0:
			damaged[at] ^= byte(1 + random.IntN(255))
		case 1:
			page := damaged[at/4096*4096:]
			for i := range min(4096, len(page)) {
				page[i] = byte(random.Uint32())
			}
		case 2:
			clear(damaged[at/4096*4096 : min(at/4096*4096+4096, len(damaged))])
		case 3:
			damaged = damaged[:at]
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "index.db"), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := index.Open(options(dir))
		if err != nil {
			t.Fatalf("seed %d: open: %v", seed, err)
		}
		page, err := db.List(context.Background(), index.Query{Table: "a"})
		switch {
		case db.Recovered() != nil:
			recovered++
			if err != nil || len(page.Rows) != 0 || db.Revision() <= revision {
				t.Errorf("seed %d: a new index has rows or old revisions: %v, %d", seed, err, db.Revision())
			}
			fill(t, db, 10)
		case err != nil && !errors.Is(err, index.ErrDamaged):
			t.Errorf("seed %d: list: %v", seed, err)
		case err == nil && len(page.Rows) != 2000:
			t.Errorf("seed %d: %d rows", seed, len(page.Rows))
		case err == nil:
			for _, row := range page.Rows {
				if string(row.Value) != fmt.Sprintf("value of %s/%s", row.Namespace, row.Name) {
					t.Errorf("seed %d: row %s has value %q", seed, row.Name, row.Value)
				}
			}
		}
		if err := db.Close(); err != nil && !errors.Is(err, index.ErrDamaged) {
			t.Errorf("seed %d: close: %v", seed, err)
		}
	}
	if recovered < 15 {
		t.Errorf("only %d of 60 damaged files were noticed", recovered)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	db, err := index.Open(options(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := index.Open(options(dir)); !errors.Is(err, index.ErrLocked) {
		t.Errorf("open of a locked index: %v", err)
	}
	fill(t, db, 1)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.List(context.Background(), index.Query{Table: "a"}); !errors.Is(err, index.ErrClosed) {
		t.Errorf("list after close: %v", err)
	}
	other := options(dir)
	other.Tables = schemas[:1]
	db, err = index.Open(other)
	if err != nil || db.Recovered() == nil {
		t.Fatalf("open with other tables: %v", err)
	}
	indextest.MustClose(t, db)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Open(options(file)); err == nil {
		t.Error("a file was opened as data directory")
	}
}

func TestEmptyFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "index.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := index.Open(options(dir))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, db, 3)
	indextest.MustClose(t, db)
}

func BenchmarkPage(b *testing.B) {
	db := indextest.MustOpen(b, schemas)
	fill(b, db, 20_000)
	for b.Loop() {
		page, err := db.List(context.Background(), index.Query{Table: "a", Limit: 500, After: &index.Key{Namespace: "ns3", Name: "row-1000"}})
		if err != nil || len(page.Rows) != 500 {
			b.Fatal(err)
		}
	}
}

func BenchmarkSelector(b *testing.B) {
	db := indextest.MustOpen(b, schemas)
	fill(b, db, 20_000)
	for b.Loop() {
		page, err := db.List(context.Background(), index.Query{Table: "a", Terms: []index.Term{{Field: "size", Value: "777"}}})
		if err != nil || len(page.Rows) != 1 {
			b.Fatal(err)
		}
	}
}
