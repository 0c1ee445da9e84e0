package source

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind that a source can stream.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the plural name of the kind's resource.
	Resource string
	// Namespaced is true if objects of the kind live in namespaces.
	Namespaced bool
}

// GroupVersionResource of the kind.
func (k Kind) GroupVersionResource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// Problem is something that a source cannot look at: an API group whose
// discovery fails, a file that cannot be read, an object without a kind.
type Problem struct {
	// Subject names the API group, file or object.
	Subject string
	// Message says what is wrong and what to do.
	Message string
}

// Inventory is what a source has at one moment.
type Inventory struct {
	// Kinds that can be listed, each in its preferred version only, sorted by group
	// and kind.
	Kinds []Kind
	// OtherVersions are Kinds in the further versions that they can be listed in. They
	// are the same objects.
	OtherVersions []Kind
	// Unstreamed are kinds that have objects which no Stream hands over, with the reason.
	Unstreamed []UnstreamedKind
	// FailedGroups are API groups whose kinds are not known at the moment, with the
	// reason. Kinds of these groups are missing from Kinds but must not be taken
	// for gone.
	FailedGroups map[string]error
	// Problems besides FailedGroups.
	Problems []Problem
}

// UnstreamedKind is a kind that cannot be streamed.
type UnstreamedKind struct {
	Kind
	// Reason, for those whose policies name the kind.
	Reason string
}

// ObjectKey identifies an object of a kind.
type ObjectKey struct {
	Namespace, Name string
	// UID may be empty where it is not known.
	UID types.UID
}

// Handler receives the stream of one kind. All its methods are called in order
// from one goroutine; they may block, which holds up the stream. The stream is
//
//	(ListStarted Upsert* Listed (Upsert | Delete)* | Failed)*
//
// A Failed may also come in the middle of a list; the list then starts anew.
type Handler interface {
	// ListStarted begins a list of all objects of the kind.
	ListStarted()
	// Upsert hands over an object that exists. The handler owns it.
	Upsert(obj *unstructured.Unstructured)
	// Delete says that an object is gone.
	Delete(key ObjectKey)
	// Listed says that the list that began with the last ListStarted is complete:
	// objects of the kind that were not handed over since are gone.
	Listed(resourceVersion string)
	// Failed says that listing or watching does not work at the moment and why. The
	// source goes on trying, with backoff, until the context of Stream is done.
	Failed(err error)
}

// Source is where objects and policies come from: a cluster or a directory.
type Source interface {
	// Inventory tells which kinds there are. An error means that nothing is known.
	Inventory(ctx context.Context) (*Inventory, error)
	// Changed returns a channel that gets a value, without blocking the source,
	// whenever the inventory may have changed.
	Changed() <-chan struct{}
	// Stream delivers all objects of a kind and every change of them to the handler
	// until ctx is done. It returns after the last call to the handler.
	Stream(ctx context.Context, kind Kind, handler Handler)
	// List hands all objects of a kind to visit, which owns them, as they are now, and
	// returns the resource version of the list. It neither uses nor disturbs a Stream. It
	// ends with an error of visit. After an error, what was visited is worth nothing.
	List(ctx context.Context, kind Kind, visit func(obj *unstructured.Unstructured) error) (resourceVersion string, err error)
}
