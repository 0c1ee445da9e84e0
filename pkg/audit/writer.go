package audit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"policy.example.io/policy-apiserver/pkg/index"
)

const (
	// queueLength bounds the objects in memory: those that wait for a worker or for
	// the writer.
	queueLength = 512
	// maxBatch bounds the operations of one transaction.
	maxBatch = 1000
	// maxBatchDelay is how long a transaction waits for further operations. It is
	// what a change may be delayed to share a transaction's cost with others.
	maxBatchDelay = 10 * time.Millisecond
	// retryInterval is the wait after a transaction that failed, for example because
	// the disk is full. Meanwhile the streams are held up; nothing is lost.
	retryInterval = time.Second
)

// writer applies operations in order. It is the only writer of the index.
type writer struct {
	index *index.DB
	clock clock.WithTicker
	// metrics of the process.
	metrics *auditMetrics
	// queue has the operations in order.
	queue chan *queued
	// work has those of them that no worker has taken yet.
	work chan *queued
	// stalled is why nothing is written at the moment, nil if it is.
	stalled atomic.Pointer[stall]
}

// stall is a time in which transactions fail.
type stall struct {
	since time.Time
	err   error
}

// stallTolerance is how long transactions may fail before readers are told.
const stallTolerance = 3 * time.Second

// stall returns why and since when nothing can be written, nil if something can.
func (w *writer) stall() error {
	s := w.stalled.Load()
	if s == nil || w.clock.Since(s.since) < stallTolerance {
		return nil
	}
	return fmt.Errorf("since %s nothing can be written to the index: %w", s.since.UTC().Format(time.RFC3339), s.err)
}

// refusable operations can be left out if the index does not take what they write.
type refusable interface {
	// refused is called instead of committed.
	refused(err error)
}

// queued is an operation on its way.
type queued struct {
	operation
	// submitted is when it began.
	submitted time.Time
	// prepared is closed when the operation can be applied.
	prepared chan struct{}
	// refusal is why the index does not take the operation, nil if it does.
	refusal error
}

func newWriter(db *index.DB, clk clock.WithTicker) *writer {
	return &writer{
		index:   db,
		clock:   clk,
		metrics: processMetrics(),
		queue:   make(chan *queued, queueLength),
		work:    make(chan *queued),
	}
}

// submit hands an operation over. Operations of one goroutine are applied in the
// order in which it submitted them. It blocks while too much is under way, and
// does nothing once ctx is done.
func (w *writer) submit(ctx context.Context, op operation) {
	q := &queued{operation: op, submitted: w.clock.Now(), prepared: make(chan struct{})}
	select {
	case w.queue <- q:
	case <-ctx.Done():
		return
	}
	select {
	case w.work <- q:
	case <-ctx.Done():
	}
}

// runWorker prepares operations until ctx is done.
func (w *writer) runWorker(ctx context.Context) {
	for {
		select {
		case q := <-w.work:
			q.prepare(ctx)
			close(q.prepared)
		case <-ctx.Done():
			return
		}
	}
}

// run applies operations until ctx is done. An error means that the index cannot
// be used any more.
func (w *writer) run(ctx context.Context) error {
	var next *queued
	for {
		batch, rest := w.nextBatch(ctx, next)
		next = rest
		if len(batch) == 0 {
			return nil
		}
		if err := w.apply(ctx, batch); err != nil {
			return err
		}
	}
}

// nextBatch waits for operations that are prepared. It also returns an operation
// that it took from the queue and that was not prepared in time; it goes first
// the next time. The batch is empty if ctx is done.
func (w *writer) nextBatch(ctx context.Context, next *queued) (batch []*queued, rest *queued) {
	if next == nil {
		select {
		case next = <-w.queue:
		case <-ctx.Done():
			return nil, nil
		}
	}
	select {
	case <-next.prepared:
	case <-ctx.Done():
		return nil, nil
	}
	batch = append(batch, next)
	timer := w.clock.NewTimer(maxBatchDelay)
	defer timer.Stop()
	for len(batch) < maxBatch {
		select {
		case next = <-w.queue:
		case <-timer.C():
			return batch, nil
		case <-ctx.Done():
			return nil, nil
		}
		select {
		case <-next.prepared:
			batch = append(batch, next)
		case <-timer.C():
			return batch, next
		case <-ctx.Done():
			return nil, nil
		}
	}
	return batch, nil
}

// finish tells the operation what became of it.
func (q *queued) finish() {
	if op, ok := q.operation.(refusable); ok && q.refusal != nil {
		op.refused(q.refusal)
		return
	}
	q.committed()
}

// apply writes a batch, again and again until it is written. Operations that cannot
// be applied, whatever the disk does, are left out.
func (w *writer) apply(ctx context.Context, batch []*queued) error {
	w.metrics.queue.Set(float64(len(batch) + len(w.queue)))
	for {
		failed := -1
		_, err := w.index.Update(ctx, func(tx *index.Tx) error {
			for i, q := range batch {
				if q.refusal != nil {
					continue
				}
				if err := q.apply(ctx, tx); err != nil {
					failed = i
					return err
				}
			}
			return nil
		})
		switch {
		case err == nil:
			w.stalled.Store(nil)
			for _, q := range batch {
				q.finish()
				w.metrics.lag.Observe(w.clock.Since(q.submitted).Seconds())
			}
			return nil
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end, whatever the transaction came to
		case errors.Is(err, index.ErrDamaged), errors.Is(err, index.ErrClosed):
			return fmt.Errorf("write findings: %w", err)
		case failed >= 0:
			if _, ok := batch[failed].operation.(refusable); ok {
				batch[failed].refusal = err
				continue
			}
		}
		w.stalled.CompareAndSwap(nil, &stall{since: w.clock.Now(), err: err})
		klog.FromContext(ctx).Error(err, "Writing findings does not work; the audit waits and tries again", "operations", len(batch))
		select {
		case <-w.clock.After(retryInterval):
		case <-ctx.Done():
			return nil
		}
	}
}
