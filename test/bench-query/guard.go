package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errOutOfMemory says why a side was not measured to the end.
var errOutOfMemory = errors.New("the machine has no memory left")

// reserve is what must be available, in MiB. With less, a machine does nothing but look
// for memory.
const reserve = 1024

// guard kills the servers of a side, and cancels the context with errOutOfMemory, when the
// machine runs out of memory. A machine without swap would come to a standstill before the
// kernel does it.
func guard(ctx context.Context, s *side) (guarded context.Context, stop func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	go func() {
		for guarded.Err() == nil {
			if available, ok := memInfo("MemAvailable:"); ok && available < reserve {
				cancel(errOutOfMemory)
				for _, pid := range s.pids {
					_ = syscall.Kill(pid, syscall.SIGKILL) // or it has ended
				}
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return guarded, func() { cancel(nil) }
}

// memInfo returns a line of /proc/meminfo in MiB. It is not known where there is no such
// file.
func memInfo(name string) (mib int, ok bool) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, name); found {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			return kib / 1024, err == nil
		}
	}
	return 0, false
}
