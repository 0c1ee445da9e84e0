package kubeevents

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	// component is the source of the Events.
	component = "policy-apiserver"
	// Reasons of the Events.
	reasonViolation = "PolicyViolation"
	reasonError     = "PolicyError"

	// eventQPS and eventBurst bound all Events together.
	eventQPS   = 5
	eventBurst = 50
	// Of one object there are at most objectBurst Events at once, and then one in five
	// minutes, as of client-go's own defaults.
	objectBurst = 25
	objectQPS   = 1. / 300
	// pageSize is how many changes are read at a time.
	pageSize = 500
	// retryInterval is the wait after the index could not be read.
	retryInterval = time.Second
)

// Annotations of an Event.
const (
	annotationConstraintKind = "policy.example.io/constraint-kind"
	annotationConstraintName = "policy.example.io/constraint-name"
)

// Index whose log of changes is followed.
type Index interface {
	Revision() uint64
}

// Feed of its changes.
type Feed interface {
	Next(ctx context.Context, after uint64, limit int) (changes []index.Change, complete uint64, err error)
}

// Recorder makes Events.
type Recorder struct {
	index   Index
	feed    Feed
	events  record.EventRecorder
	sink    func(ctx context.Context) (stop func())
	limiter flowcontrol.RateLimiter
	metrics *eventMetrics
}

// New returns a Recorder that writes through a client.
func New(idx Index, feed Feed, client typedcorev1.EventsGetter) *Recorder {
	broadcaster := record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{BurstSize: objectBurst, QPS: objectQPS}))
	return &Recorder{
		index:   idx,
		feed:    feed,
		events:  broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}),
		limiter: flowcontrol.NewTokenBucketRateLimiter(eventQPS, eventBurst),
		metrics: processMetrics(),
		sink: func(context.Context) func() {
			broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
			return broadcaster.Shutdown
		},
	}
}

// Run makes Events of findings that open from now on, until ctx is done.
func (r *Recorder) Run(ctx context.Context) {
	defer r.sink(ctx)()
	revision := r.index.Revision()
	for {
		changes, complete, err := r.feed.Next(ctx, revision, pageSize)
		switch {
		case ctx.Err() != nil, errors.Is(err, index.ErrClosed), errors.Is(err, index.ErrDamaged):
			return
		case errors.Is(err, index.ErrCompacted):
			now := r.index.Revision()
			r.metrics.dropped.Add(float64(now - revision))
			klog.FromContext(ctx).Info("There was no time for the Events of all findings that have opened", "changes", now-revision)
			revision = now
			continue
		case err != nil:
			klog.FromContext(ctx).Error(err, "Findings that open cannot be read; trying again")
			select {
			case <-time.After(retryInterval):
			case <-ctx.Done():
				return
			}
			continue
		}
		for i := range changes {
			if err := r.record(ctx, &changes[i]); err != nil {
				return // ctx is done
			}
		}
		revision = complete
	}
}

// record makes the Event of a change, if it is to have one. It waits until it may.
func (r *Recorder) record(ctx context.Context, c *index.Change) error {
	change := opened(ctx, c)
	if change == nil {
		return nil
	}
	if err := r.limiter.Wait(ctx); err != nil {
		return err
	}
	reason := reasonViolation
	if change.Result != v1alpha1.ResultFail {
		reason = reasonError
	}
	object := &corev1.ObjectReference{
		APIVersion:      change.Resource.APIVersion,
		Kind:            change.Resource.Kind,
		Namespace:       change.Resource.Namespace,
		Name:            change.Resource.Name,
		UID:             change.Resource.UID,
		ResourceVersion: change.Resource.ResourceVersion,
	}
	annotations := map[string]string{annotationConstraintKind: change.Constraint.Kind, annotationConstraintName: change.Constraint.Name}
	r.events.AnnotatedEventf(object, annotations, corev1.EventTypeWarning, reason, "%s/%s (%s): %s",
		change.Constraint.Kind, change.Constraint.Name, change.EnforcementAction, change.Message)
	r.metrics.events.Inc()
	return nil
}

// opened returns the finding that has opened with a change of the index, nil if none has.
func opened(ctx context.Context, c *index.Change) *v1alpha1.Change {
	if c.Table != rows.AuditChanges && c.Table != rows.ClusterAuditChanges || c.New == nil || rows.Field(c.Table, c.New, "type") != string(v1alpha1.ChangeOpened) {
		return nil
	}
	var change v1alpha1.AuditChange // a ClusterAuditChange has the same fields
	if err := rows.Decode(c.New, &change); err != nil {
		klog.FromContext(ctx).Error(err, "A change cannot be read")
		return nil
	}
	inNamespace := change.Resource.Namespace != "" || change.Resource.APIGroup == "" && change.Resource.Kind == "Namespace"
	if c.Table == rows.ClusterAuditChanges && inNamespace {
		return nil // it has not opened, its Namespace is gone
	}
	if change.Result == v1alpha1.ResultDeferred {
		return nil
	}
	return &change.Change
}

// eventMetrics are the metrics of a Recorder.
type eventMetrics struct {
	events, dropped *metrics.Counter
}

// processMetrics are the metrics of this process: a registry takes a metric only once,
// however many Recorders there are.
var processMetrics = sync.OnceValue(func() *eventMetrics {
	opts := func(name, help string) *metrics.CounterOpts {
		return &metrics.CounterOpts{Namespace: "policy_apiserver", Subsystem: "events", Name: name, Help: help, StabilityLevel: metrics.ALPHA}
	}
	m := &eventMetrics{
		events:  metrics.NewCounter(opts("events_total", "Events made of findings that have opened, before those of one object are joined.")),
		dropped: metrics.NewCounter(opts("dropped_changes_total", "Changes of the index, at most, of which no Events were made because there were too many.")),
	}
	legacyregistry.MustRegister(m.events, m.dropped)
	return m
})
