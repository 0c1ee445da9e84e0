package directory

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"policy.example.io/policy-apiserver/pkg/source"
)

var (
	namespaceKind = schema.GroupKind{Kind: "Namespace"}

	// templateKind is in every inventory, with or without objects: the policies of a
	// folder begin with its ConstraintTemplates.
	templateKind = source.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "templates.gatekeeper.sh", Version: "v1", Kind: "ConstraintTemplate"},
		Resource:         "constrainttemplates",
	}
)

// Groups of which all kinds are cluster-scoped and have the kind in lower case as their
// resource.
const (
	// constraintGroup has kinds that ConstraintTemplates define.
	constraintGroup = "constraints.gatekeeper.sh"
	// expansionGroup has ExpansionTemplates.
	expansionGroup = "expansion.gatekeeper.sh"
)

// builtInGroups are the API groups of Kubernetes, with their cluster-scoped kinds,
// former ones included. Their other kinds are namespaced.
var builtInGroups = map[string]sets.Set[string]{
	"": sets.New("Namespace", "Node", "PersistentVolume", "ComponentStatus"),
	"admissionregistration.k8s.io": sets.New(
		"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
	"apiextensions.k8s.io":         sets.New("CustomResourceDefinition"),
	"apiregistration.k8s.io":       sets.New("APIService"),
	"apps":                         nil,
	"autoscaling":                  nil,
	"batch":                        nil,
	"certificates.k8s.io":          sets.New("CertificateSigningRequest", "ClusterTrustBundle"),
	"coordination.k8s.io":          nil,
	"discovery.k8s.io":             nil,
	"events.k8s.io":                nil,
	"extensions":                   sets.New("PodSecurityPolicy"),
	"flowcontrol.apiserver.k8s.io": sets.New("FlowSchema", "PriorityLevelConfiguration"),
	"internal.apiserver.k8s.io":    sets.New("StorageVersion"),
	"networking.k8s.io":            sets.New("IngressClass", "IPAddress", "ServiceCIDR", "ClusterCIDR"),
	"node.k8s.io":                  sets.New("RuntimeClass"),
	"policy":                       sets.New("PodSecurityPolicy"),
	"rbac.authorization.k8s.io":    sets.New("ClusterRole", "ClusterRoleBinding"),
	"resource.k8s.io":              sets.New("DeviceClass", "DeviceTaintRule", "ResourceClass", "ResourceSlice"),
	"scheduling.k8s.io":            sets.New("PriorityClass"),
	"storage.k8s.io": sets.New(
		"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"),
	"storagemigration.k8s.io": sets.New("StorageVersionMigration"),
}

// newKind tells resource and scope of a kind. defined is what a
// CustomResourceDefinition says, nil without one; inNamespace tells that an object
// of the kind has a namespace.
func newKind(gvk schema.GroupVersionKind, defined *definition, inNamespace bool) source.Kind {
	kind := source.Kind{GroupVersionKind: gvk, Namespaced: inNamespace}
	if defined != nil {
		kind.Resource, kind.Namespaced = defined.resource, defined.namespaced
		return kind
	}
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	kind.Resource = plural.Resource
	clusterScoped, builtIn := builtInGroups[gvk.Group]
	switch {
	case gvk.GroupKind() == templateKind.GroupKind():
		kind.Namespaced = false
	case gvk.Group == constraintGroup, gvk.Group == expansionGroup:
		kind.Resource, kind.Namespaced = strings.ToLower(gvk.Kind), false
	case builtIn:
		kind.Namespaced = !clusterScoped.Has(gvk.Kind)
	}
	return kind
}
