package cluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"policy.example.io/policy-apiserver/pkg/source"
)

// resourceClient is what is needed of a client of a resource.
type resourceClient interface {
	List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Metadata returns a source of the same objects that has nothing but their metadata, and
// asks the server for no more.
func (s *Source) Metadata() source.Source { return metadataSource{s} }

type metadataSource struct{ *Source }

// Stream implements source.Source.
func (s metadataSource) Stream(ctx context.Context, kind source.Kind, handler source.Handler) {
	s.stream(ctx, s.client(kind), kind, handler)
}

// List implements source.Source.
func (s metadataSource) List(ctx context.Context, kind source.Kind, visit func(obj *unstructured.Unstructured) error) (string, error) {
	return listPages(ctx, s.client(kind), kind, s.tuning.pageSize, func() {}, visit)
}

func (s metadataSource) client(kind source.Kind) resourceClient {
	return metadataClient{s.metadata.Resource(kind.GroupVersionResource()), kind}
}

// metadataClient has objects of a kind without their content. Its watches have
// PartialObjectMetadata.
type metadataClient struct {
	metadata.ResourceInterface
	kind source.Kind
}

// List implements resourceClient.
func (c metadataClient) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	page, err := c.ResourceInterface.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	out := &unstructured.UnstructuredList{Object: map[string]any{}, Items: make([]unstructured.Unstructured, len(page.Items))}
	out.SetResourceVersion(page.ResourceVersion)
	out.SetContinue(page.Continue)
	for i := range page.Items {
		obj, err := withoutContent(&page.Items[i], c.kind)
		if err != nil {
			return nil, err
		}
		out.Items[i] = *obj
		page.Items[i] = metav1.PartialObjectMetadata{}
	}
	return out, nil
}

// withoutContent makes an object of a kind of its metadata.
func withoutContent(partial *metav1.PartialObjectMetadata, kind source.Kind) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(partial)
	if err != nil {
		return nil, fmt.Errorf("the server sent metadata of a %s that makes no sense: %w", kind.GroupVersionKind, err)
	}
	obj := &unstructured.Unstructured{Object: content}
	obj.SetGroupVersionKind(kind.GroupVersionKind)
	return obj, nil
}
