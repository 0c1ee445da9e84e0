package export

import (
	"time"

	"k8s.io/utils/clock"
)

// fastClock has waits take a thousandth of their time.
type fastClock struct{ clock.RealClock }

func (fastClock) After(d time.Duration) <-chan time.Time { return time.After(d / 1000) }
