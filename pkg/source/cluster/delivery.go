package cluster

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"policy.example.io/policy-apiserver/pkg/source"
)

// errInterrupted is reported if a list ends before it is complete without any error
// that says why: the connection was closed.
var errInterrupted = errors.New("the list was interrupted before it was complete; listing anew")

// delivery keeps the promises of source.Handler: one call at a time, in the order
// of its grammar, none after close. The reflector lists in one goroutine, watches
// in another and may leave either behind when it stops.
type delivery struct {
	mu      sync.Mutex     // held during each call of the handler
	handler source.Handler // nil after close
	listing bool           // between ListStarted and Listed
	// deleted are objects that were deleted while the list was under way. A list has
	// no deletions, so these are told after its end.
	deleted map[types.NamespacedName]source.ObjectKey
}

// close waits for a call under way; there are none afterwards.
func (d *delivery) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handler = nil
}

// listStarted begins a list. cause says why a list under way is given up; nil means
// that the reason is not known.
func (d *delivery) listStarted(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handler == nil {
		return
	}
	if d.listing {
		if cause == nil {
			cause = errInterrupted
		}
		d.handler.Failed(cause)
	}
	d.listing = true
	d.deleted = nil
	d.handler.ListStarted()
}

func (d *delivery) upsert(obj *unstructured.Unstructured) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handler == nil {
		return
	}
	delete(d.deleted, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()})
	d.handler.Upsert(obj)
}

func (d *delivery) delete(key source.ObjectKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.handler == nil:
	case d.listing:
		if d.deleted == nil {
			d.deleted = map[types.NamespacedName]source.ObjectKey{}
		}
		d.deleted[types.NamespacedName{Namespace: key.Namespace, Name: key.Name}] = key
	default:
		d.handler.Delete(key)
	}
}

func (d *delivery) listed(resourceVersion string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handler == nil {
		return
	}
	d.listing = false
	d.handler.Listed(resourceVersion)
	for _, key := range d.deleted {
		d.handler.Delete(key)
	}
	d.deleted = nil
}

func (d *delivery) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handler == nil {
		return
	}
	d.listing = false
	d.deleted = nil
	d.handler.Failed(err)
}
