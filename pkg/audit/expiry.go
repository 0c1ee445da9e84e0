package audit

import (
	"context"
	"time"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
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
	a       *Auditor
	dropped int
	done    chan struct{}
}

func (e *expiry) prepare(context.Context) { /* nothing to evaluate */ }

func (e *expiry) apply(_ context.Context, tx *index.Tx) error {
	var err error
	e.dropped, err = e.a.changes.expire(tx, expiryBatch, false)
	return err
}

func (e *expiry) committed() { close(e.done) }

// Notices are what those should know who read a table, besides its rows.
func (a *Auditor) Notices(table index.Table) []string {
	if table != rows.AuditChanges && table != rows.ClusterAuditChanges {
		return nil
	}
	var notice string
	err := a.index.View(func(tx *index.ReadTx) error {
		var err error
		notice, err = a.changes.notice(tx)
		return err
	})
	if err != nil || notice == "" {
		return nil // what is wrong with the index is said elsewhere
	}
	return []string{notice}
}
