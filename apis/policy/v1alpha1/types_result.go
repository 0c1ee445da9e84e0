package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditResult says that one object does not comply with one constraint, or that
// it could not be judged. Objects in a namespace, and the Namespace object
// itself, have their results in that namespace. A pair of constraint and object
// that complies has no AuditResult.
type AuditResult struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the result. name and uid are derived from the constraint and the
	// object and stay the same as long as the object exists; creationTimestamp is
	// when the result opened; the labels carry the constraint and the kind of the
	// object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Finding `json:",inline"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditResultList is a list of AuditResults.
type AuditResultList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the results.
	Items []AuditResult `json:"items"`
}

// +genclient
// +genclient:nonNamespaced
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterAuditResult is an AuditResult of an object that is in no namespace and
// is no Namespace, such as a ClusterRole.
type ClusterAuditResult struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the result, as in AuditResult.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Finding `json:",inline"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterAuditResultList is a list of ClusterAuditResults.
type ClusterAuditResultList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the results.
	Items []ClusterAuditResult `json:"items"`
}

// Finding is what AuditResult and ClusterAuditResult have in common: one
// (constraint, object) pair that is not clean.
type Finding struct {
	// constraint that the object was judged against.
	Constraint ConstraintReference `json:"constraint"`
	// resource is the object that was judged, in the state that was judged.
	Resource ResourceReference `json:"resource"`
	// owner is the top controller of the object, for example the Deployment of a
	// Pod, as far as it can be told from the object itself. Absent if the object
	// has no controller.
	// +optional
	Owner *OwnerReference `json:"owner,omitempty"`
	// lastWriter is the last entry of the object's managedFields when it was judged: who
	// had written the object last, with which operation and when. Absent if the object
	// had none.
	// +optional
	LastWriter *LastWriter `json:"lastWriter,omitempty"`
	// enforcementAction is the constraint's: deny, warn, dryrun or scoped. An
	// ExpansionTemplate may have another for what it implies; the strongest counts.
	EnforcementAction string `json:"enforcementAction"`
	// enforcementActions are the actions of a scoped constraint that apply to
	// audits, sorted. Empty unless enforcementAction is scoped.
	// +optional
	// +listType=set
	EnforcementActions []string `json:"enforcementActions,omitempty"`
	// result is fail if the object violates the constraint, error if it could not
	// be evaluated, and deferred if the evaluation waits for something.
	Result Result `json:"result"`
	// message says why the result is error or deferred. Empty if it is fail; then
	// violations tells what is wrong.
	// +optional
	Message string `json:"message,omitempty"`
	// violations are what the policy says is wrong with the object, without
	// duplicates and in a stable order. Empty unless result is fail.
	// +optional
	// +listType=atomic
	Violations []Violation `json:"violations,omitempty"`
	// truncated is true if messages, details or whole violations were cut to keep
	// this object within its size limit.
	// +optional
	Truncated bool `json:"truncated,omitempty"`
	// runID is the name of the AuditRun in which the result was last written.
	// +optional
	RunID string `json:"runID,omitempty"`
	// firstObserved is when this object was first seen not to comply with this
	// constraint. It is kept while the result is open.
	FirstObserved metav1.Time `json:"firstObserved"`
	// lastChanged is when result, message, violations or enforcement last changed.
	LastChanged metav1.Time `json:"lastChanged"`
}

// Result is the outcome of judging one object by one constraint.
// +enum
type Result string

const (
	// ResultFail means that the object violates the constraint.
	ResultFail Result = "fail"
	// ResultError means that the object could not be evaluated against the
	// constraint; nothing is known about whether it complies.
	ResultError Result = "error"
	// ResultDeferred means that the evaluation needs data that is not there yet.
	ResultDeferred Result = "deferred"
)

// Engine is what evaluates a constraint.
// +enum
type Engine string

const (
	// EngineGatekeeper is for constraints of Gatekeeper's templates.
	EngineGatekeeper Engine = "Gatekeeper"
	// EngineValidatingAdmissionPolicy is for Kubernetes' own policies.
	EngineValidatingAdmissionPolicy Engine = "ValidatingAdmissionPolicy"
)

// ConstraintReference identifies a constraint and the generation of it that was
// evaluated.
type ConstraintReference struct {
	// engine that evaluates the constraint: Gatekeeper or ValidatingAdmissionPolicy.
	Engine Engine `json:"engine"`
	// kind of the constraint, for example K8sRequiredLabels. Of a
	// ValidatingAdmissionPolicyBinding it is the name of its policy.
	Kind string `json:"kind"`
	// name of the constraint, or of the binding. Empty only in a ConstraintSummary of a rejected
	// template that has no constraint.
	// +optional
	Name string `json:"name,omitempty"`
	// uid of the constraint.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// generation of the constraint.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// ResourceReference identifies an object and the state of it that was judged.
type ResourceReference struct {
	// apiGroup of the object, empty for the core group.
	// +optional
	APIGroup string `json:"apiGroup,omitempty"`
	// apiVersion in which the object was judged, with its group, for example
	// apps/v1.
	APIVersion string `json:"apiVersion"`
	// kind of the object.
	Kind string `json:"kind"`
	// namespace of the object, empty if it is in none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the object.
	Name string `json:"name"`
	// uid of the object.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// resourceVersion of the object when it was judged. The object may have a newer one
	// in which nothing has changed that a policy reads.
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// generation of the object when it was judged.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// OwnerReference names the controller of an object, in the object's namespace.
type OwnerReference struct {
	// kind of the controller.
	Kind string `json:"kind"`
	// name of the controller.
	Name string `json:"name"`
}

// LastWriter is the digest of an object's managedFields.
type LastWriter struct {
	// manager that wrote last.
	// +optional
	Manager string `json:"manager,omitempty"`
	// operation of the write: Apply or Update.
	// +optional
	Operation string `json:"operation,omitempty"`
	// time of the write.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// Violation is one thing that a policy says is wrong with an object.
type Violation struct {
	// message of the policy, as the policy wrote it.
	Message string `json:"message"`
	// details that the policy gave beside the message. Absent if it gave none.
	// +optional
	Details *runtime.RawExtension `json:"details,omitempty"`
}
