package audit

import (
	"context"
	"time"

	"policy.example.io/policy-apiserver/pkg/index"
)

const (
	// expiryInterval is how often changes are looked through for old ones.
	expiryInterval = time.Minute
	// expiryBatch bounds the changes that are dropped in one transaction.
	expiryBatch = 1000
)

// expireChanges drops old changes until ctx is done.
func (a *Auditor) expireChanges(ctx context.Context) {
	ticker := a.clock.NewTicker(expiryInterval)
	defer ticker.Stop()
	for {
		for more := true; more; {
			op := &expiry{a: a, done: make(chan struct{})}
			a.submit(op)
			select {
			case <-op.done:
				more = op.dropped == expiryBatch
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// expiry drops some old changes.
type expiry struct {
	a *Auditor
	// makeRoom is true if any may go, if the index is still full then.
	makeRoom bool
	dropped  int
	done     chan struct{}
}

func (e *expiry) prepare(context.Context) { /* nothing to evaluate */ }

func (e *expiry) apply(_ context.Context, tx *index.Tx) error {
	var err error
	e.dropped, err = e.a.changes.expire(tx, expiryBatch, e.makeRoom && tx.Full())
	return err
}

func (e *expiry) committed() { close(e.done) }
