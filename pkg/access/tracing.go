package access

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/component-base/tracing"

	"policy.example.io/policy-apiserver/pkg/index"
)

// Spans of requests.
const (
	// spanView is finding out whether everything is visible.
	spanView = "DecideView"
	// spanDecide is deciding about kinds, or about namespaces.
	spanDecide = "DecideScope"
	// spanRead is reading a page of rows from the index.
	spanRead = "ReadIndex"
)

// After these times a span is logged, as k8s.io/apiserver does with its own.
const (
	slowDecision = 500 * time.Millisecond
	slowRead     = 500 * time.Millisecond
)

// traced runs fn in a span.
func traced(ctx context.Context, name string, fn func(context.Context) error, attributes ...attribute.KeyValue) error {
	ctx, span := tracing.Start(ctx, name, attributes...)
	defer span.End(slowDecision)
	err := fn(ctx)
	span.RecordError(err)
	return err
}

// read reads a page.
func (v *View) read(ctx context.Context, q index.Query) (*index.Page, error) {
	ctx, span := tracing.Start(ctx, spanRead, attribute.String("resource", string(v.table)), attribute.Int("limit", q.Limit))
	defer span.End(slowRead)
	page, err := v.rows.List(ctx, q)
	if err != nil {
		span.RecordError(err)
		return nil, err
	}
	span.AddEvent("Rows read", attribute.Int("rows", len(page.Rows)))
	return page, nil
}
