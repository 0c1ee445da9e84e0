package audit

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/pkg/source"
)

// kindStream is the one stream of a kind: it feeds the kind's caches, if the kind
// is one that objects are judged with, and the audit, if constraints select it.
type kindStream struct {
	a    *Auditor
	kind source.Kind
	kindCaches
	streamSweep
	// source of the objects, which may have their metadata only.
	source source.Source

	setMu sync.Mutex     // protects set, and orders its change against submissions
	set   *constraintSet // nil until the kind is planned

	seen   seenSet // of the list under way, nil if there is none; only used by the stream
	cancel context.CancelFunc
	done   chan struct{}
}

var _ source.Handler = (*kindStream)(nil)

// kindCaches are the caches that a kind's objects are kept in.
type kindCaches struct {
	// cache has the objects, nil if they are not kept.
	cache *objectCache
	// inventory has what policies read of them in data.inventory, nil if nothing.
	inventory *objectCache
}

// none tells whether nothing of the objects is kept.
func (c kindCaches) none() bool { return c == kindCaches{} }

// all returns those that there are.
func (c kindCaches) all() []*objectCache {
	var out []*objectCache
	for _, cache := range []*objectCache{c.cache, c.inventory} {
		if cache != nil {
			out = append(out, cache)
		}
	}
	return out
}

// startStream begins to stream a kind. set may be nil.
func (a *Auditor) startStream(ctx context.Context, kind source.Kind, caches kindCaches, set *constraintSet) *kindStream {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "kind", kind.GroupVersionKind)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	s := &kindStream{a: a, kind: kind, kindCaches: caches, source: a.sourceFor(caches, set), set: set, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.source.Stream(ctx, kind, s)
	}()
	return s
}

// metadataSource is a source that has one of the same objects with nothing but their
// metadata.
type metadataSource interface{ Metadata() source.Source }

// sourceFor returns where a stream gets its objects from: with their content only if
// somebody reads it.
func (a *Auditor) sourceFor(caches kindCaches, set *constraintSet) source.Source {
	if m, ok := a.source.(metadataSource); ok && caches.none() && !set.empty() && set.view.MetadataOnly() {
		return m.Metadata()
	}
	return a.source
}

// suffices tells whether the stream hands over what a set reads of objects.
func (s *kindStream) suffices(set *constraintSet) bool {
	return s.source == s.a.source || set.view.MetadataOnly()
}

// stop ends the stream and returns after its last operation was submitted.
func (s *kindStream) stop() {
	s.cancel()
	<-s.done
	s.follows(false, nil)
}

// currentSet is what objects of the stream are judged by, nil if they are not.
func (s *kindStream) currentSet() *constraintSet {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	return s.set
}

// audited tells whether objects of the stream are judged.
func (s *kindStream) audited() bool {
	return !s.currentSet().empty()
}

// narrow replaces the set by one that the present one contains, and submits what
// belongs to the change: operations submitted before it were made with the old
// set, those after it with the new one.
func (s *kindStream) narrow(set *constraintSet, op operation) {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	s.set = set
	s.a.submit(op)
}

// submit makes an operation from the current set and submits it, unless the kind
// is not audited.
func (s *kindStream) submit(makeOp func(set *constraintSet) operation) {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	if !s.set.empty() {
		s.a.submit(makeOp(s.set))
	}
}

// ListStarted implements source.Handler.
func (s *kindStream) ListStarted() {
	s.follows(false, nil)
	for _, cache := range s.all() {
		cache.listStarted()
	}
	s.seen = seenSet{}
	s.submit(func(*constraintSet) operation { return &listStarted{a: s.a, stream: s} })
}

// Upsert implements source.Handler.
func (s *kindStream) Upsert(obj *unstructured.Unstructured) {
	s.touch(obj.GetNamespace(), obj.GetName())
	if s.kind.GroupKind() == namespaceKind {
		s.a.namespaceIs(obj) // before it is judged itself
	}
	for _, cache := range s.all() {
		cache.upsert(obj)
	}
	listed := s.seen != nil
	if listed {
		s.seen.add(obj.GetNamespace(), obj.GetName())
	}
	s.submit(func(set *constraintSet) operation {
		return &upsert{a: s.a, stream: s, set: set, obj: obj, listed: listed}
	})
}

// Delete implements source.Handler.
func (s *kindStream) Delete(key source.ObjectKey) {
	s.touch(key.Namespace, key.Name)
	if s.seen != nil {
		delete(s.seen, seenKey(key.Namespace, key.Name))
	}
	for _, cache := range s.all() {
		cache.delete(key)
	}
	s.submit(func(*constraintSet) operation { return &remove{a: s.a, kind: s.kind, key: key} })
	if s.kind.GroupKind() == namespaceKind {
		s.a.namespaceGone(key.Name)
	}
}

// Listed implements source.Handler.
func (s *kindStream) Listed(resourceVersion string) {
	seen := s.seen
	s.seen = nil
	if s.kind.GroupKind() == namespaceKind {
		s.a.submit(&dropNamespaces{a: s.a, seen: seen, kinds: s.a.planner.namespacedKinds()})
	}
	for _, cache := range s.all() {
		for _, obj := range cache.listed() {
			if cache == s.a.planner.namespaces {
				s.a.namespaceGone(obj.GetName())
			}
		}
	}
	if s.kind.GroupKind() == namespaceKind {
		s.a.tracker.namespacesFailed(nil)
	}
	s.submit(func(set *constraintSet) operation {
		return &listDone{a: s.a, stream: s, set: set, seen: seen, resourceVersion: resourceVersion}
	})
	s.follows(true, nil)
}

// Failed implements source.Handler.
func (s *kindStream) Failed(err error) {
	s.follows(false, err)
	s.seen = nil
	for _, cache := range s.all() {
		cache.failed(err)
	}
	if s.kind.GroupKind() == namespaceKind {
		s.a.planner.namespacesKnown.Store(true)
		s.a.tracker.namespacesFailed(err)
	}
	s.a.tracker.streamFailed(s, err)
}
