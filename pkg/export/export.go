package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	// pageSize is how many findings, or changes, are read at a time.
	pageSize = 500
	// retryInterval is the wait after something could not be written.
	retryInterval = time.Second
)

// Index that findings are read from.
type Index interface {
	List(ctx context.Context, q index.Query) (*index.Page, error)
	Revision() uint64
	Compacted() uint64
}

// Feed of its changes.
type Feed interface {
	Next(ctx context.Context, after uint64, limit int) (changes []index.Change, complete uint64, err error)
}

// Config of an Exporter.
type Config struct {
	Index Index
	Feed  Feed
	// Ready is closed when the first audit of the index has ended.
	Ready <-chan struct{}
	// Out gets whole lines, many at a time.
	Out io.Writer
	// Clock is the real one if nil.
	Clock clock.Clock
}

// Exporter writes findings and their changes.
type Exporter struct {
	Config
	metrics *exportMetrics
	id      string // of the last export of all findings
	cut     bool   // the last line may have been cut short
}

// New returns an Exporter.
func New(cfg Config) *Exporter {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Exporter{Config: cfg, metrics: processMetrics()}
}

// Run exports until ctx is done, or the index cannot be read any more, which others say.
func (e *Exporter) Run(ctx context.Context) {
	select {
	case <-e.Ready:
	case <-ctx.Done():
		return
	}
	revision := uint64(0) // up to which everything is written, 0 if nothing is
	for {
		var err error
		switch revision {
		case 0:
			revision, err = e.all(ctx)
		default:
			revision, err = e.next(ctx, revision)
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, index.ErrClosed), errors.Is(err, index.ErrDamaged):
			return
		case errors.Is(err, index.ErrCompacted):
			dropped := uint64(0)
			if compacted := e.Index.Compacted(); revision > 0 && compacted > revision {
				dropped = compacted - revision
			}
			e.metrics.dropped.Add(float64(dropped))
			klog.FromContext(ctx).Info("Changes were not exported in time; all findings are exported again", "changes", dropped)
			message := fmt.Sprintf("up to %d changes were dropped because these lines were not read in time; all findings follow", dropped)
			if err := e.writeAll(ctx, []Record{{ID: e.id, EventType: EventDropped, Message: message}}); err != nil {
				return // ctx is done
			}
			revision = 0
		case err != nil:
			klog.FromContext(ctx).Error(err, "Findings cannot be exported; trying again")
			e.metrics.errors.Inc()
			select {
			case <-e.Clock.After(retryInterval):
			case <-ctx.Done():
				return
			}
		}
	}
}

// all writes all findings and returns their revision.
func (e *Exporter) all(ctx context.Context) (uint64, error) {
	revision := e.Index.Revision()
	e.id = e.Clock.Now().UTC().Format(time.RFC3339)
	if err := e.write(ctx, []Record{{ID: e.id, Message: messageStarted}}); err != nil {
		return 0, err
	}
	for _, table := range []index.Table{rows.AuditResults, rows.ClusterAuditResults} {
		q := index.Query{Table: table, Limit: pageSize, Revision: revision, WithoutAttrs: true}
		for more := true; more; {
			page, err := e.Index.List(ctx, q)
			if err != nil {
				return 0, err
			}
			var records []Record
			for _, row := range page.Rows {
				finding, err := decode(row)
				if err != nil {
					return 0, err
				}
				records = append(records, changed(e.id, nil, finding)...)
				q.After = &row.Key
			}
			if err := e.write(ctx, records); err != nil {
				return 0, err
			}
			more = page.More
		}
	}
	return revision, e.write(ctx, []Record{{ID: e.id, Message: messageCompleted}})
}

// next waits for changes after a revision, writes them and returns the last revision.
func (e *Exporter) next(ctx context.Context, after uint64) (uint64, error) {
	changes, complete, err := e.Feed.Next(ctx, after, pageSize)
	if err != nil {
		return after, err
	}
	var records []Record
	for i := range changes {
		c := &changes[i]
		if c.Table != rows.AuditResults && c.Table != rows.ClusterAuditResults {
			continue
		}
		before, err := decode(c.Old)
		if err != nil {
			return after, err
		}
		now, err := decode(c.New)
		if err != nil {
			return after, err
		}
		records = append(records, changed(e.id, before, now)...)
	}
	if err := e.write(ctx, records); err != nil {
		return after, err
	}
	return complete, nil
}

// decode returns the finding of a row, nil if there is none.
func decode(row *index.Row) (*v1alpha1.Finding, error) {
	if row == nil {
		return nil, nil
	}
	var result v1alpha1.AuditResult // a ClusterAuditResult has the same fields
	if err := rows.Decode(row, &result); err != nil {
		return nil, err
	}
	return &result.Finding, nil
}

// writeAll writes records, again and again until it works or ctx is done.
func (e *Exporter) writeAll(ctx context.Context, records []Record) error {
	for {
		err := e.write(ctx, records)
		if err == nil {
			return nil
		}
		e.metrics.errors.Inc()
		select {
		case <-e.Clock.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write writes records. It returns when ctx is done, also if nobody reads.
func (e *Exporter) write(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	var text bytes.Buffer
	if e.cut {
		text.WriteByte('\n')
	}
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	for i := range records {
		if err := encoder.Encode(&records[i]); err != nil {
			return fmt.Errorf("encode an exported finding: %w", err)
		}
	}
	written := make(chan error, 1)
	go func() {
		n, err := e.Out.Write(text.Bytes())
		if n > 0 && err != nil {
			err = cutShort{err}
		}
		written <- err
	}()
	select {
	case err := <-written:
		var cut cutShort
		if errors.As(err, &cut) {
			e.cut = true
		}
		if err != nil {
			return fmt.Errorf("write exported findings: %w", err)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	e.cut = false
	for i := range records {
		e.metrics.lines.WithLabelValues(records[i].EventType).Inc()
	}
	return nil
}

// cutShort is the error of a write of which something was written.
type cutShort struct{ error }

func (c cutShort) Unwrap() error { return c.error }
