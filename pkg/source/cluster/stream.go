package cluster

import (
	"context"
	"errors"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"policy.example.io/policy-apiserver/pkg/source"
)

// Stream implements source.Source.
func (s *Source) Stream(ctx context.Context, kind source.Kind, handler source.Handler) {
	s.stream(ctx, s.dynamic.Resource(kind.GroupVersionResource()), kind, handler)
}

// stream streams what a client has of the objects of a kind.
func (s *Source) stream(ctx context.Context, client resourceClient, kind source.Kind, handler source.Handler) {
	// Whatever happens in the handler's goroutines must stop with Stream, so that
	// also a request in flight ends.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &delivery{handler: handler}
	defer out.close()

	lw := &listWatch{
		resource: client,
		kind:     kind,
		out:      out,
		tuning:   s.tuning,
	}
	backoff := s.tuning.backoff
	reflector := cache.NewReflectorWithOptions(lw, nil, emptyStore{}, cache.ReflectorOptions{
		Name:            kind.GroupVersionResource().String(),
		TypeDescription: kind.GroupVersionKind.String(),
		Backoff:         &backoff,
	})
	// This is what the reflector's own Run does, except that the errors come here.
	// It ends when ctx is done, with nothing else to say.
	delay := s.tuning.backoff.DelayWithReset(clock.RealClock{}, backoffReset)
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := reflector.ListAndWatchWithContext(ctx)
		if err != nil && ctx.Err() == nil && !isExpired(err) && !errors.Is(err, io.EOF) {
			out.failed(err)
		}
		return false, nil
	})
}

// isExpired is true if a resource version or continue token is too old, which is
// not a fault: it means that a new list is due.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// emptyStore is the store of a reflector that keeps nothing.
type emptyStore struct{}

var _ cache.ReflectorStore = emptyStore{}

// Add implements cache.ReflectorStore.
func (emptyStore) Add(any) error { return nil }

// Update implements cache.ReflectorStore.
func (emptyStore) Update(any) error { return nil }

// Delete implements cache.ReflectorStore.
func (emptyStore) Delete(any) error { return nil }

// Replace implements cache.ReflectorStore.
func (emptyStore) Replace([]any, string) error { return nil }

// Resync implements cache.ReflectorStore.
func (emptyStore) Resync() error { return nil }
