package review

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"policy.example.io/policy-apiserver/pkg/policy"
	engine "policy.example.io/policy-apiserver/pkg/review"
)

// reader reads for who asks. It remembers what they may read for the time of a review.
type reader struct {
	rest      *REST
	requester user.Info

	mu    sync.Mutex // protects known
	known map[engine.Reading]error
}

var _ engine.Reader = (*reader)(nil)

func newReader(r *REST, requester user.Info) *reader {
	return &reader{rest: r, requester: requester, known: map[engine.Reading]error{}}
}

// Allowed implements engine.Reader.
func (r *reader) Allowed(ctx context.Context, reading engine.Reading) error {
	r.mu.Lock()
	err, known := r.known[reading]
	r.mu.Unlock()
	if known {
		return err
	}
	a := authorizer.AttributesRecord{
		User: r.requester, Verb: reading.Verb, ResourceRequest: true,
		APIGroup: reading.Kind.Group, APIVersion: reading.Kind.Version, Resource: reading.Kind.Resource, Namespace: reading.Namespace, Name: reading.Name,
	}
	if reading.Kind.GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		a.Namespace = reading.Name // as the kube-apiserver has it, so that a Role in it will do
	}
	err = r.rest.authorize(ctx, a)
	if err != nil && !apierrors.IsForbidden(err) {
		return err // it may be known the next time
	}
	r.mu.Lock()
	r.known[reading] = err
	r.mu.Unlock()
	return err
}

// Get implements engine.Reader.
func (r *reader) Get(ctx context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	return r.rest.backend.Read(ctx, kind, namespace, name)
}

// List implements engine.Reader.
func (r *reader) List(ctx context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
	return r.rest.backend.List(ctx, kind, namespace, selector, page)
}
