package index_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
)

// asShrinker makes the test binary a process that makes an index smaller again and again.
const asShrinker = "INDEX_TEST_SHRINK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asShrinker); dir != "" {
		fmt.Fprintln(os.Stderr, shrinkForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func shrinkForever(dir string) error {
	opts := options(dir)
	opts.LockTimeout = 10 * time.Second
	db, err := index.Open(opts)
	if err != nil {
		return err
	}
	if err := db.Recovered(); err != nil {
		return err
	}
	for i := 0; ; i++ {
		// What was written before a copy is in it.
		_, err := db.Update(context.Background(), func(tx *index.Tx) error {
			return tx.Put("a", index.Key{Name: "counter"}, fmt.Append(nil, i), index.Attrs{Fields: []string{"", ""}})
		})
		if err != nil {
			return err
		}
		fmt.Println(i)
		if err := db.Shrink(); err != nil {
			return err
		}
	}
}

// TestKillWhileShrinking kills a process that makes its index smaller, at random times.
// Nothing that it has written is lost.
func TestKillWhileShrinking(t *testing.T) {
	dir := t.TempDir()
	db, err := index.Open(options(dir))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, db, 4000)
	indextest.MustClose(t, db)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	unfinished := 0
	for round := range 15 {
		child := exec.Command(self)
		child.Env = append(os.Environ(), asShrinker+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		last := ""
		for range 1 + random.IntN(3) {
			if !lines.Scan() {
				t.Fatalf("seed %d, round %d: the process has ended", seed, round)
			}
			last = lines.Text()
		}
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			last = lines.Text()
		}
		_ = child.Wait() // it was killed
		if _, err := os.Stat(filepath.Join(dir, "index.db.shrinking")); err == nil {
			unfinished++
		}
		db, err := index.Open(options(dir))
		if err != nil || db.Recovered() != nil {
			t.Fatalf("seed %d, round %d: %v, %v", seed, round, err, db.Recovered())
		}
		page, err := db.List(context.Background(), index.Query{Table: "a"})
		if err != nil || len(page.Rows) != 4001 {
			t.Fatalf("seed %d, round %d: %d rows, %v", seed, round, len(page.Rows), err)
		}
		for _, row := range page.Rows[1:] {
			if want := fmt.Sprintf("value of %s/%s", row.Namespace, row.Name); string(row.Value) != want {
				t.Fatalf("seed %d, round %d: %q, want %q", seed, round, row.Value, want)
			}
		}
		var have, told int
		if _, err := fmt.Sscan(string(page.Rows[0].Value), &have); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(last, &told); err != nil {
			t.Fatal(err)
		}
		// It may have written once more than it could tell.
		if have != told && have != told+1 {
			t.Fatalf("seed %d, round %d: the counter is %d after %d was written", seed, round, have, told)
		}
		if files := aside(t, dir); len(files) != 0 {
			t.Errorf("files are left: %q", files)
		}
		indextest.MustClose(t, db)
	}
	t.Logf("%d of 15 were killed while a copy was made", unfinished)
	if unfinished == 0 {
		t.Error("no copy was cut short")
	}
}

// aside returns the files of a folder besides the index itself.
func aside(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "index.db" {
			names = append(names, entry.Name())
		}
	}
	return names
}

// write puts n rows of some size, or deletes them.
func write(t testing.TB, db *index.DB, n, size int, remove bool) {
	t.Helper()
	for from := 0; from < n; from += 500 {
		_, err := db.Update(context.Background(), func(tx *index.Tx) error {
			for i := from; i < min(from+500, n); i++ {
				key := index.Key{Namespace: "n", Name: fmt.Sprintf("row-%05d", i)}
				var err error
				if remove {
					err = tx.Delete("a", key)
				} else {
					err = tx.Put("a", key, make([]byte, size), index.Attrs{Fields: []string{"", ""}})
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestShrink has a file get smaller when most of it is free, when it is opened and while
// it is in use, with readers all the time.
func TestShrink(t *testing.T) {
	for name, reopen := range map[string]bool{"in use": false, "opened": true} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			opts := options(t.TempDir())
			opts.Now, opts.History, opts.ShrinkAbove = func() time.Time { return now }, time.Minute, 32<<20
			opts.Warn = func(message string, err error) { t.Errorf("%s: %v", message, err) }
			db, err := index.Open(opts)
			if err != nil {
				t.Fatal(err)
			}
			write(t, db, 4000, 8000, false)
			fill(t, db, 100)
			big := db.Space()
			write(t, db, 4000, 0, true)
			full := db.Space()
			if full.History < 4000*8000 || full.Used < full.History {
				t.Errorf("with history: %+v", full)
			}
			now = now.Add(2 * time.Minute)
			if err := db.Compact(context.Background()); err != nil {
				t.Fatal(err)
			}
			free := db.Space()
			if free.History != 0 || free.Used > big.Used/10 || free.File < big.File {
				t.Errorf("after compaction: %+v, before %+v", free, big)
			}
			want, err := db.List(context.Background(), index.Query{Table: "a"})
			if err != nil || len(want.Rows) != 100 {
				t.Fatal(err)
			}
			reading, done := make(chan struct{}), make(chan error, 1)
			go func() {
				for {
					select {
					case <-reading:
						done <- nil
						return
					default:
					}
					if page, err := db.List(context.Background(), index.Query{Table: "a"}); err != nil && !errors.Is(err, index.ErrClosed) || err == nil && len(page.Rows) != 100 {
						done <- fmt.Errorf("%v, %w", page, err)
						return
					}
				}
			}()
			if reopen {
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				close(reading)
				if err := <-done; err != nil {
					t.Error(err)
				}
				if db, err = index.Open(opts); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := db.Shrink(); err != nil {
					t.Fatal(err)
				}
				fill(t, db, 100)
				close(reading)
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			small := db.Space()
			if small.File > free.File/2 || small.Used > free.Used {
				t.Errorf("the file is %+v, it was %+v", small, free)
			}
			got, err := db.List(context.Background(), index.Query{Table: "a"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rows (-before +after):\n%s", diff)
			}
			if _, err := index.Open(opts); !errors.Is(err, index.ErrLocked) {
				t.Errorf("the new file is not locked: %v", err)
			}
			if files := aside(t, opts.Dir); len(files) != 0 {
				t.Errorf("files are left: %q", files)
			}
			revision := db.Revision()
			indextest.MustClose(t, db)
			if db, err = index.Open(opts); err != nil || db.Revision() != revision {
				t.Fatalf("opened again: %v", err)
			}
			indextest.MustClose(t, db)
		})
	}
}

// TestLevels has levels begin and end with what is in use, and history give way.
func TestLevels(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	opts := options(t.TempDir())
	opts.Now, opts.History, opts.Quota = func() time.Time { return now }, time.Hour, 4<<20
	db, err := index.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { indextest.MustClose(t, db) }()
	var levels []index.Level
	see := func() {
		if level := db.Level(); len(levels) == 0 || levels[len(levels)-1] != level {
			levels = append(levels, level)
		}
	}
	see()
	n := 0
	for ; db.Level() < index.LevelFull; n += 10 {
		_, err := db.Update(context.Background(), func(tx *index.Tx) error {
			for i := range 10 {
				if err := tx.Put("a", index.Key{Name: fmt.Sprintf("row-%05d", n+i)}, make([]byte, 2000), index.Attrs{Fields: []string{"", ""}}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		see()
	}
	tellsFull := func(want bool) {
		t.Helper()
		_, err := db.Update(context.Background(), func(tx *index.Tx) error {
			if tx.Full() != want {
				t.Errorf("full: %v at %+v", !want, db.Space())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	tellsFull(true)
	if s := db.Space(); s.Used > s.Quota || s.Used < s.Quota*9/10 {
		t.Errorf("full at %+v", s)
	}
	// Rows that go are history first, of which a tenth of the time is kept.
	for i := range n {
		_, err := db.Update(context.Background(), func(tx *index.Tx) error {
			return tx.Delete("a", index.Key{Name: fmt.Sprintf("row-%05d", i)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if db.Level() != index.LevelFull {
		t.Errorf("history is not counted: %v", db.Space())
	}
	now = now.Add(5 * time.Minute)
	if err := db.Compact(context.Background()); err != nil || db.Level() != index.LevelFull {
		t.Errorf("after 5 minutes: %v, %v", db.Level(), err)
	}
	now = now.Add(2 * time.Minute)
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	see()
	want := []index.Level{index.LevelFine, index.LevelShort, index.LevelLow, index.LevelFull, index.LevelFine}
	if diff := cmp.Diff(want, levels); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
	tellsFull(false)
	// A transaction knows what it has written itself.
	_, err = db.Update(context.Background(), func(tx *index.Tx) error {
		for i := 0; !tx.Full(); i++ {
			if i > 10*n {
				return errors.New("there is no end")
			}
			if err := tx.Put("a", index.Key{Name: fmt.Sprintf("new-%05d", i)}, make([]byte, 2000), index.Attrs{Fields: []string{"", ""}}); err != nil {
				return err
			}
		}
		return tx.State("s").Put("k", []byte("v"))
	})
	if s := db.Space(); err != nil || s.Used > s.Quota || s.Used < s.Quota/2 {
		t.Errorf("after a transaction that fills the index: %+v, %v", s, err)
	}
}

// TestRunUnderPressure compacts as soon as room is short, not at the next occasion.
func TestRunUnderPressure(t *testing.T) {
	opts := options(t.TempDir())
	opts.History, opts.Quota = 0, 4<<20
	opts.History = 10 * time.Minute
	clock := make(chan time.Time, 1)
	clock <- time.Unix(1_700_000_000, 0)
	opts.Now = func() time.Time { now := <-clock; clock <- now; return now }
	db, err := index.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { indextest.MustClose(t, db) }()
	write(t, db, 1000, 1000, false)
	write(t, db, 1000, 0, true)
	now := <-clock
	clock <- now.Add(2 * time.Minute)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- db.Run(ctx) }()
	for n := 0; db.Level() < index.LevelShort && db.Space().History > 0; n++ {
		_, err := db.Update(ctx, func(tx *index.Tx) error {
			return tx.Put("a", index.Key{Name: fmt.Sprint("x", n)}, make([]byte, 3000), index.Attrs{Fields: []string{"", ""}})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(20 * time.Second) // the ordinary occasion is after a minute
	for db.Space().History > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if s := db.Space(); s.History > 0 {
		t.Errorf("history is still there: %+v", s)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAsideFilesAreRemoved keeps the last file that was set aside, and that for a week.
func TestAsideFilesAreRemoved(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	opts := options(filepath.Join(t.TempDir(), "[data]*"))
	opts.Now = func() time.Time { return now }
	for range 3 {
		now = now.Add(time.Hour)
		db, err := index.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		indextest.MustClose(t, db)
		file, err := os.OpenFile(filepath.Join(opts.Dir, "index.db"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(make([]byte, 8192)); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	foreign := filepath.Join(opts.Dir, "index.db.damaged-mine")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *index.DB {
		db, err := index.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	now = now.Add(time.Hour)
	db := open()
	if db.Recovered() == nil {
		t.Error("the damage is not noticed")
	}
	last := "index.db.damaged-20261201-040000.000"
	if diff := cmp.Diff([]string{last, "index.db.damaged-mine"}, aside(t, opts.Dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	indextest.MustClose(t, db)
	now = now.Add(6 * 24 * time.Hour)
	indextest.MustClose(t, open())
	if files := aside(t, opts.Dir); len(files) != 2 || files[0] != last {
		t.Errorf("after six days: %q", files)
	}
	now = now.Add(24 * time.Hour)
	indextest.MustClose(t, open())
	if diff := cmp.Diff([]string{"index.db.damaged-mine"}, aside(t, opts.Dir)); diff != "" {
		t.Errorf("after a week (-want +got):\n%s", diff)
	}
}

// TestShrinkThatCannot goes on with the file that there is.
func TestShrinkThatCannot(t *testing.T) {
	opts := options(t.TempDir())
	db, err := index.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, db, 50)
	// A folder with something in it is in the way.
	if err := os.MkdirAll(filepath.Join(opts.Dir, "index.db.shrinking", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := db.Shrink(); err == nil || db.Damaged() != nil {
		t.Errorf("shrink: %v, damaged: %v", err, db.Damaged())
	}
	fill(t, db, 60)
	page, err := db.List(context.Background(), index.Query{Table: "a"})
	if err != nil || len(page.Rows) != 60 {
		t.Errorf("%d rows, %v", len(page.Rows), err)
	}
	indextest.MustClose(t, db)
}
