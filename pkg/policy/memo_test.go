package policy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestMemo(t *testing.T) {
	m := newMemo(memoBytes)
	said := []Violation{{Message: "bad"}}
	key := memoKey(nil, 1, []byte("projection"))
	if _, ok := m.get(key); ok {
		t.Error("something is there at first")
	}
	m.put(key, said)
	if got, ok := m.get(key); !ok || len(got) != 1 || got[0].Message != "bad" {
		t.Errorf("got %v, %v", got, ok)
	}
	if _, ok := m.get(memoKey(nil, 2, []byte("projection"))); ok {
		t.Error("another constraint has the same verdict")
	}
	m.put(memoKey(nil, 2, []byte("projection")), nil)
	if got, ok := m.get(memoKey(nil, 2, []byte("projection"))); !ok || got != nil {
		t.Errorf("no violations: got %v, %v", got, ok)
	}
}

func TestMemoKeysAreShort(t *testing.T) {
	long := memoKey(nil, 1, shorten(bytes.Repeat([]byte("x"), 10_000)))
	if len(long) != 41 || bytes.Equal(long, memoKey(nil, 1, shorten(bytes.Repeat([]byte("x"), 10_001)))) {
		t.Errorf("key of %d bytes", len(long))
	}
}

// The memo forgets, but not what is used.
func TestMemoIsBounded(t *testing.T) {
	m := newMemo(memoBytes)
	used := memoKey(nil, 1, []byte("used"))
	m.put(used, []Violation{{Message: "used"}})
	message := strings.Repeat("x", 1000)
	const n = 2 * memoBytes / 1000
	for i := range n {
		m.put(memoKey(nil, 1, fmt.Append(nil, i)), []Violation{{Message: message}})
		if _, ok := m.get(used); !ok {
			t.Fatalf("after %d others it is forgotten", i)
		}
	}
	total := 0
	for i := range m.shards {
		total += m.shards[i].bytes + memoBytes/memoShards/2
	}
	if total > memoBytes {
		t.Errorf("%d bytes are kept", total)
	}
	if _, ok := m.get(memoKey(nil, 1, fmt.Append(nil, 0))); ok {
		t.Error("the first of all is still there")
	}
	m.put(memoKey(nil, 3, nil), []Violation{{Message: strings.Repeat("x", memoBytes)}})
	if _, ok := m.get(memoKey(nil, 3, nil)); ok {
		t.Error("a huge verdict was kept")
	}
}
