package readonly

import (
	"testing"
	"time"
)

// TestNextBookmark has a bookmark each minute, and one two seconds before the end.
func TestNextBookmark(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, test := range []struct {
		ends, want time.Duration // after now; 0 means that the watch does not end
	}{
		{0, time.Minute},
		{time.Hour, time.Minute},
		{time.Minute + 3*time.Second, time.Minute},
		{time.Minute + time.Second, time.Minute - time.Second},
		{30 * time.Second, 28 * time.Second},
		{2 * time.Second, time.Minute}, // the last one has been
		{time.Second, time.Minute},
	} {
		w := &watcher{}
		if test.ends > 0 {
			w.deadline = now.Add(test.ends)
		}
		if got := w.nextBookmark(now).Sub(now); got != test.want {
			t.Errorf("of a watch that ends after %v it is after %v, want %v", test.ends, got, test.want)
		}
	}
}
