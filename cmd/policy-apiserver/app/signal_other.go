//go:build !unix

package app

import "context"

// sweepOnSignal does nothing: there is no SIGUSR1.
func sweepOnSignal(ctx context.Context, _ func()) { <-ctx.Done() }
