package cluster

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// definitions are the resources whose changes change discovery.
var definitions = []schema.GroupVersionResource{
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
}

// Run follows changes of the inventory and signals them with Changed until ctx is
// done. It returns after everything that it started has ended.
func (s *Source) Run(ctx context.Context) error {
	trigger := make(trigger, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, gvr := range definitions {
		wg.Go(func() { s.watchDefinitions(ctx, gvr, trigger) })
	}
	s.rediscover(ctx, trigger)
	return nil
}

// rediscover reads discovery after each trigger and at long intervals.
//
// Discovery lags behind the definitions: a kind appears some time after its
// CustomResourceDefinition is established, and an aggregated API later still. So a
// change is followed by several reads at growing intervals; a further change starts
// the sequence again, but never delays the read that is due next.
func (s *Source) rediscover(ctx context.Context, trigger <-chan struct{}) {
	logger := klog.FromContext(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var changedAt, due time.Time
	step := len(s.tuning.settle) // reads of the sequence that were started
	for {
		select {
		case <-ctx.Done():
			return
		case <-trigger:
			changedAt = time.Now()
			if next := changedAt.Add(s.tuning.settle[0]); due.After(next) {
				due = next
				timer.Reset(s.tuning.settle[0])
			}
			step = 0
			continue
		case <-timer.C:
		}

		_, changed, err := s.discover(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.Error(err, "Reading discovery did not work, trying again later")
		case changed:
			logger.V(2).Info("The kinds of the cluster changed")
			s.signal()
		}
		step++
		wait := s.tuning.rediscover
		if step < len(s.tuning.settle) {
			wait = max(0, time.Until(changedAt.Add(s.tuning.settle[step])))
		} else if err != nil {
			wait = min(wait, s.tuning.settle[len(s.tuning.settle)-1])
		}
		due = time.Now().Add(wait)
		timer.Reset(wait)
	}
}

// signal says that the inventory may have changed.
func (s *Source) signal() {
	select {
	case s.changed <- struct{}{}:
	default: // a value is waiting already
	}
}

// watchDefinitions triggers whenever an object of the resource changes.
func (s *Source) watchDefinitions(ctx context.Context, gvr schema.GroupVersionResource, trigger trigger) {
	client := s.metadata.Resource(gvr)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, opts)
		},
	}
	backoff := s.tuning.backoff
	cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, trigger, cache.ReflectorOptions{
		Name:            gvr.Resource,
		TypeDescription: gvr.String(),
		Backoff:         &backoff,
	}).RunWithContext(ctx)
}

// trigger is a store that remembers nothing but that something changed.
type trigger chan struct{}

var _ cache.ReflectorStore = trigger(nil)

func (t trigger) fire() error {
	select {
	case t <- struct{}{}:
	default:
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (t trigger) Add(any) error { return t.fire() }

// Update implements cache.ReflectorStore.
func (t trigger) Update(any) error { return t.fire() }

// Delete implements cache.ReflectorStore.
func (t trigger) Delete(any) error { return t.fire() }

// Replace implements cache.ReflectorStore.
func (t trigger) Replace([]any, string) error { return t.fire() }

// Resync implements cache.ReflectorStore.
func (t trigger) Resync() error { return nil }
