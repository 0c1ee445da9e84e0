package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"policy.example.io/policy-apiserver/pkg/source"
)

// watchTap is a watch whose events are delivered before the reflector gets what is
// left of them: for a change its resource version, from which the watch can resume;
// for an initial event nothing, because the reflector collects these.
type watchTap struct {
	upstream watch.Interface
	lw       *listWatch
	result   chan watch.Event
	stopping chan struct{} // closed by Stop
	stop     sync.Once
	stopped  chan struct{} // closed when run has returned
}

var _ watch.Interface = (*watchTap)(nil)

// newWatchTap taps a watch. initial says that it begins with initial events.
func newWatchTap(ctx context.Context, upstream watch.Interface, lw *listWatch, initial bool) *watchTap {
	t := &watchTap{
		upstream: upstream,
		lw:       lw,
		result:   make(chan watch.Event),
		stopping: make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	go t.run(ctx, initial)
	return t
}

// ResultChan implements watch.Interface.
func (t *watchTap) ResultChan() <-chan watch.Event { return t.result }

// Stop implements watch.Interface. It returns after the last delivery, so that the
// deliveries of two watches never mix.
func (t *watchTap) Stop() {
	t.stop.Do(func() {
		close(t.stopping)
		t.upstream.Stop()
	})
	<-t.stopped
}

func (t *watchTap) run(ctx context.Context, initial bool) {
	defer close(t.stopped)
	defer close(t.result)
	defer t.upstream.Stop()
	if initial {
		if !t.runInitial(ctx) {
			return
		}
	}
	for {
		event, ok := t.next(ctx, nil)
		if !ok {
			return
		}
		stub, err := t.deliver(event)
		if err != nil {
			// The reflector retries after a 429 without listing anew.
			if ctx.Err() == nil && !isExpired(err) && !apierrors.IsTooManyRequests(err) {
				t.lw.out.failed(err)
			}
			t.send(ctx, errorEvent(err))
			return
		}
		if !t.send(ctx, watch.Event{Type: event.Type, Object: stub}) {
			return
		}
	}
}

// runInitial delivers the initial events up to the bookmark that ends them. It
// returns false if the watch is over.
func (t *watchTap) runInitial(ctx context.Context) bool {
	stall := time.NewTimer(t.lw.tuning.initialStall)
	defer stall.Stop()
	for {
		stall.Reset(t.lw.tuning.initialStall)
		event, ok := t.next(ctx, stall.C)
		if !ok {
			return false
		}
		stub, err := t.deliver(event)
		switch {
		case err == nil:
		case errors.Is(err, errStalled):
			// The reflector falls back to a list, now and in future.
			t.lw.listOnly = true
			t.send(ctx, errorEvent(err))
			return false
		case isExpired(err):
			t.send(ctx, errorEvent(err))
			return false
		default:
			t.lw.initialErr = opaque(err)
			t.send(ctx, errorEvent(t.lw.initialErr))
			return false
		}
		if event.Type == watch.Bookmark && stub.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			t.lw.out.listed(stub.ResourceVersion)
			return t.send(ctx, watch.Event{Type: watch.Bookmark, Object: stub})
		}
	}
}

// errStalled says that initial events came to a standstill.
var errStalled = errors.New("the server does not end the initial events of the watch")

// next waits for an event. If stall fires before, it returns an error event for
// errStalled.
func (t *watchTap) next(ctx context.Context, stall <-chan time.Time) (watch.Event, bool) {
	select {
	case event, ok := <-t.upstream.ResultChan():
		return event, ok
	case <-stall:
		return watch.Event{Type: stalled}, true
	case <-t.stopping:
		return watch.Event{}, false
	case <-ctx.Done():
		return watch.Event{}, false
	}
}

// stalled is the type of an event that stands for the lack of one.
const stalled watch.EventType = "STALLED"

// send passes an event to the reflector. It returns false if the reflector has
// stopped the watch.
func (t *watchTap) send(ctx context.Context, event watch.Event) bool {
	select {
	case t.result <- event:
		return true
	case <-t.stopping:
		return false
	case <-ctx.Done():
		return false
	}
}

// deliver hands an event over and returns the metadata that the reflector steers
// by. It returns an error for an error event and for one that makes no sense.
func (t *watchTap) deliver(event watch.Event) (*metav1.PartialObjectMetadata, error) {
	switch event.Type {
	case watch.Error:
		return nil, apierrors.FromObject(event.Object)
	case stalled:
		return nil, errStalled
	case watch.Bookmark:
		return stubOf(event.Object)
	}
	var obj *unstructured.Unstructured
	switch sent := event.Object.(type) {
	case *unstructured.Unstructured:
		obj = sent
	case *metav1.PartialObjectMetadata:
		var err error
		if obj, err = withoutContent(sent, t.lw.kind); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("the server sent %T in a watch event of type %s for kind %s", event.Object, event.Type, t.lw.kind.GroupVersionKind)
	}
	if err := complete(obj, t.lw.kind); err != nil {
		return nil, err
	}
	stub, err := stubOf(obj)
	if err != nil {
		return nil, err
	}
	switch event.Type {
	case watch.Added, watch.Modified:
		t.lw.out.upsert(obj)
	case watch.Deleted:
		t.lw.out.delete(source.ObjectKey{Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID()})
	default:
		return nil, fmt.Errorf("the server sent a watch event of the unknown type %q for kind %s", event.Type, t.lw.kind.GroupVersionKind)
	}
	return stub, nil
}

// stubOf returns the resource version of an object, with the annotation that marks
// the end of initial events.
func stubOf(obj runtime.Object) (*metav1.PartialObjectMetadata, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("the server sent a watch event without metadata: %w", err)
	}
	stub := &metav1.PartialObjectMetadata{}
	stub.ResourceVersion = accessor.GetResourceVersion()
	if end, ok := accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey]; ok {
		stub.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: end}
	}
	return stub, nil
}

// errorEvent returns the event that ends a watch with err.
func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return watch.Event{Type: watch.Error, Object: &s}
	}
	return watch.Event{Type: watch.Error, Object: &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Message: err.Error(),
	}}
}
