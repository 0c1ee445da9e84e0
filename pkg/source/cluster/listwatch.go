package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/pkg/source"
)

// listWatch is what the reflector of one kind lists and watches with. Objects go to
// the delivery on the way; the reflector gets lists without items and events with
// resource versions only.
//
// Errors reach the handler in one of two ways. An error that ends the reflector's
// attempt is returned to it and comes back from ListAndWatch. An error event in an
// established watch is swallowed by the reflector, so watchTap reports it. In both
// cases the reflector lists anew, with backoff, which is what the handler expects
// after Failed. The reflector retries a few errors without listing anew; these are
// not reported until they last (see resumeError).
type listWatch struct {
	resource resourceClient
	kind     source.Kind
	out      *delivery
	tuning   tuning

	// The reflector uses the fields below from one goroutine at a time.

	// initialErr is why the last attempt to get initial events from a watch ended.
	// The reflector follows it with a list, which returns this error instead of
	// asking a server again that just failed.
	initialErr error
	// unresumedSince is when the watch could not be resumed for the first time since
	// it last could, zero if it can.
	unresumedSince time.Time
	// listOnly is true after the server did not end the initial events of a watch.
	listOnly bool
}

var (
	_ cache.ListerWatcher            = (*listWatch)(nil)
	_ cache.ListerWatcherWithContext = (*listWatch)(nil)
)

// List implements cache.ListerWatcher. The reflector calls ListWithContext.
func (l *listWatch) List(opts metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), opts)
}

// Watch implements cache.ListerWatcher. The reflector calls WatchWithContext.
func (l *listWatch) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), opts)
}

// ListWithContext delivers a complete list and returns its resource version, with
// neither items nor a continue token. The reflector's options are not used: it asks
// for a list that may be old ("0") and whole, to be kind to etcd; the server then
// answers from its cache, all objects at once. Pages of the newest state never go
// back in time and bound the memory at both ends.
func (l *listWatch) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	if err := l.initialErr; err != nil {
		l.initialErr = nil
		return nil, err
	}
	meta, err := l.list(ctx, l.tuning.pageSize, nil)
	var expired *expiredPageError
	if errors.As(err, &expired) {
		// The continue token expired because reading took longer than the server keeps
		// old state. A list without pages cannot expire. It costs memory, but further
		// attempts with pages would most likely expire too.
		meta, err = l.list(ctx, 0, expired)
	}
	if err != nil {
		return nil, err
	}
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: meta.ResourceVersion}}, nil
}

// expiredPageError says that a list could not be continued.
type expiredPageError struct{ err error }

func (e *expiredPageError) Error() string {
	return fmt.Sprintf("the list expired while it was read: %v", e.err)
}

func (e *expiredPageError) Unwrap() error { return e.err }

// list delivers a list page by page. cause is why a list under way is given up.
func (l *listWatch) list(ctx context.Context, pageSize int64, cause error) (metav1.ListMeta, error) {
	resourceVersion, err := listPages(ctx, l.resource, l.kind, pageSize,
		func() { l.out.listStarted(cause) },
		func(obj *unstructured.Unstructured) error { l.out.upsert(obj); return nil })
	if err != nil {
		return metav1.ListMeta{}, err
	}
	l.out.listed(resourceVersion)
	return metav1.ListMeta{ResourceVersion: resourceVersion}, nil
}

// listPages reads a list page by page and returns its resource version. begin is called
// when the first page is there, visit for each object. The error is an expiredPageError if
// the list cannot be continued.
func listPages(ctx context.Context, resource resourceClient, kind source.Kind, pageSize int64, begin func(), visit func(*unstructured.Unstructured) error) (string, error) {
	opts := metav1.ListOptions{Limit: pageSize}
	var resourceVersion string
	for {
		page, err := resource.List(ctx, opts)
		switch {
		case err != nil && opts.Continue != "" && isExpired(err):
			return "", &expiredPageError{err}
		case err != nil:
			return "", err
		}
		if opts.Continue == "" {
			resourceVersion = page.GetResourceVersion()
			begin()
		}
		for i := range page.Items {
			obj := &unstructured.Unstructured{Object: page.Items[i].Object}
			page.Items[i].Object = nil // it may be done with before the page is
			if err := complete(obj, kind); err != nil {
				return "", err
			}
			if err := visit(obj); err != nil {
				return "", err
			}
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return resourceVersion, nil
		}
	}
}

// List implements source.Source. A list that expires while it is read is not begun anew:
// what is asked for can be asked for again.
func (s *Source) List(ctx context.Context, kind source.Kind, visit func(obj *unstructured.Unstructured) error) (string, error) {
	return listPages(ctx, s.dynamic.Resource(kind.GroupVersionResource()), kind, s.tuning.pageSize, func() {}, visit)
}

// WatchWithContext opens a watch that delivers its events. With SendInitialEvents
// they begin with a list.
func (l *listWatch) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	l.initialErr = nil
	if initial && l.listOnly {
		return nil, apierrors.NewBadRequest("the server does not end the initial events of a watch")
	}
	w, err := l.resource.Watch(ctx, opts)
	switch {
	case err == nil && initial:
		l.out.listStarted(nil)
	case err == nil:
		l.unresumedSince = time.Time{}
	case !initial:
		return nil, l.resumeError(err)
	case isRetriable(err):
		// The reflector would retry by itself, but say nothing and not stop when it
		// should.
		l.initialErr = opaque(err)
		return nil, l.initialErr
	default:
		return nil, err
	}
	return newWatchTap(ctx, w, l, initial), nil
}

// resumeError returns what the reflector gets when a watch cannot be resumed. While
// the server does not answer or is overloaded the reflector retries without listing
// anew, which is right for a restart of the server. If this lasts, the handler must
// know, and since nothing would tell it when the watch works again the reflector
// has to list anew.
func (l *listWatch) resumeError(err error) error {
	if !isRetriable(err) {
		return err
	}
	if l.unresumedSince.IsZero() {
		l.unresumedSince = time.Now()
	}
	if time.Since(l.unresumedSince) < l.tuning.watchGrace {
		return err
	}
	return opaque(err)
}

// isRetriable tells the errors that the reflector retries without further ado.
func isRetriable(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// opaque returns an error with the same text that the reflector does not recognize.
func opaque(err error) error {
	return errors.New(err.Error())
}

// complete checks that an object can be identified, and adds its kind, which items
// of lists do not have to have.
func complete(obj *unstructured.Unstructured, kind source.Kind) error {
	if obj.Object == nil || obj.GetName() == "" {
		return fmt.Errorf("the server sent an object of kind %s without a name", kind.GroupVersionKind)
	}
	if obj.GetKind() == "" || obj.GetAPIVersion() == "" {
		obj.SetGroupVersionKind(kind.GroupVersionKind)
	}
	return nil
}
