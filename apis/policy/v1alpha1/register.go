package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every type in this package.
const GroupName = "policy.example.io"

// SchemeGroupVersion is the group and version of every type in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

var (
	// SchemeBuilder collects the functions that add this package to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the types of this package, and the meta types that clients
	// of the group need (ListOptions, WatchEvent, ...), to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Resource returns the GroupResource of a resource of this group.
func Resource(resource string) schema.GroupResource {
	return schema.GroupResource{Group: GroupName, Resource: resource}
}

// Types returns a new zero value of every object and list type of this package,
// for schemes that register the same Go types under a second version.
func Types() []runtime.Object {
	return []runtime.Object{
		&AuditResult{}, &AuditResultList{},
		&ClusterAuditResult{}, &ClusterAuditResultList{},
		&AuditSummary{}, &AuditSummaryList{},
		&AuditRun{}, &AuditRunList{},
		&ConstraintSummary{}, &ConstraintSummaryList{},
		&AuditChange{}, &AuditChangeList{},
		&ClusterAuditChange{}, &ClusterAuditChangeList{},
		&Review{}, &LocalReview{},
	}
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, Types()...)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
