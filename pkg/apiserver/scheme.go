package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/registry/auditchange"
	"policy.example.io/policy-apiserver/pkg/registry/auditresult"
	"policy.example.io/policy-apiserver/pkg/registry/auditrun"
	"policy.example.io/policy-apiserver/pkg/registry/auditsummary"
	"policy.example.io/policy-apiserver/pkg/registry/constraintsummary"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
)

// Resources returns the resources that the server serves from the index: all but
// reviews.
func Resources() []readonly.Resource {
	return []readonly.Resource{
		auditresult.Namespaced(),
		auditresult.Cluster(),
		auditsummary.Resource(),
		auditrun.Resource(),
		constraintsummary.Resource(),
		auditchange.Namespaced(),
		auditchange.Cluster(),
	}
}

// NewScheme returns a scheme with the types of the API and a codec factory for
// it. There is one version, so its types are the internal ones as well.
func NewScheme() (*runtime.Scheme, serializer.CodecFactory, error) {
	scheme := runtime.NewScheme()
	fail := func(err error) (*runtime.Scheme, serializer.CodecFactory, error) {
		return nil, serializer.CodecFactory{}, fmt.Errorf("build the scheme: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return fail(err)
	}
	internal := schema.GroupVersion{Group: v1alpha1.GroupName, Version: runtime.APIVersionInternal}
	scheme.AddKnownTypes(internal, v1alpha1.Types()...)
	if err := scheme.SetVersionPriority(v1alpha1.SchemeGroupVersion); err != nil {
		return fail(err)
	}
	// Options of requests to any group are decoded in this version.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, resource := range Resources() {
		kinds, _, err := scheme.ObjectKinds(resource.New())
		if err != nil {
			return fail(err)
		}
		for _, kind := range kinds {
			if kind.Version != v1alpha1.SchemeGroupVersion.Version {
				continue
			}
			if err := scheme.AddFieldLabelConversionFunc(kind, resource.FieldLabelConversion()); err != nil {
				return fail(err)
			}
		}
	}
	return scheme, serializer.NewCodecFactory(scheme), nil
}

// withoutProtobuf offers JSON and YAML only: the types have no protobuf encoding,
// and a client that accepts protobuf first would get 406 instead of its second
// choice.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	var kept []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType != runtime.ContentTypeProtobuf {
			kept = append(kept, info)
		}
	}
	return kept
}
