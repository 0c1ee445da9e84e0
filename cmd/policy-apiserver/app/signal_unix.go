//go:build unix

package app

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// sweepOnSignal calls sweep on each SIGUSR1 until ctx is done.
func sweepOnSignal(ctx context.Context, sweep func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			sweep()
		case <-ctx.Done():
			return
		}
	}
}
