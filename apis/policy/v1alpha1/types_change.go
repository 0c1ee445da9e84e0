package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditChange says that a finding opened, or that it was resolved, and when that
// happened last. There is one of either type for a finding at most: of a finding that
// opens again and again it has the last time and how often that was. It is where the
// AuditResult is or was, and is kept for a while after its last time.
type AuditChange struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the change. name is derived from the constraint, the object and the
	// type; creationTimestamp is when the change happened last. The label
	// policy.example.io/time has the same time as a number, YYYYMMDDhhmmss in UTC, so
	// that label selectors with > and < select by it.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Change `json:",inline"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditChangeList is a list of AuditChanges.
type AuditChangeList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the changes.
	Items []AuditChange `json:"items"`
}

// +genclient
// +genclient:nonNamespaced
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterAuditChange is an AuditChange of a ClusterAuditResult, or of any finding in a
// namespace that has been deleted since.
type ClusterAuditChange struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the change, as in AuditChange.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Change `json:",inline"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterAuditChangeList is a list of ClusterAuditChanges.
type ClusterAuditChangeList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the changes.
	Items []ClusterAuditChange `json:"items"`
}

// Change is what AuditChange and ClusterAuditChange have in common.
type Change struct {
	// type is opened if the finding is new, or has another result than before, and
	// resolved if it is gone.
	Type ChangeType `json:"type"`
	// reason is why, as far as the audit knows it.
	Reason ChangeReason `json:"reason"`
	// time is when the change happened last.
	Time metav1.Time `json:"time"`
	// firstTime is when the change happened first, of those that count counts.
	FirstTime metav1.Time `json:"firstTime"`
	// count is how often the change has happened since firstTime.
	Count int64 `json:"count"`
	// constraint of the finding.
	Constraint ConstraintReference `json:"constraint"`
	// resource is the object of the finding, in the state in which it opened, or was
	// judged last before it was resolved.
	Resource ResourceReference `json:"resource"`
	// owner is the top controller of the object, as in AuditResult.
	// +optional
	Owner *OwnerReference `json:"owner,omitempty"`
	// enforcementAction of the finding.
	EnforcementAction string `json:"enforcementAction"`
	// result of the finding; of one that was resolved, the last one.
	Result Result `json:"result"`
	// previousResult is the result that an opened finding had before, if it was there
	// with another one.
	// +optional
	PreviousResult string `json:"previousResult,omitempty"`
	// message is the first violation of the finding, or why it had no verdict; its
	// beginning if it is long.
	// +optional
	Message string `json:"message,omitempty"`
	// firstObserved is when the finding was observed first.
	FirstObserved metav1.Time `json:"firstObserved"`
	// runID is the name of the AuditRun in which the finding was last written.
	// +optional
	RunID string `json:"runID,omitempty"`
}

// ChangeType tells opened findings from resolved ones.
// +enum
type ChangeType string

const (
	// ChangeOpened means that the finding is new, or has another result than before.
	ChangeOpened ChangeType = "opened"
	// ChangeResolved means that the finding is gone.
	ChangeResolved ChangeType = "resolved"
)

// ChangeReason says why a finding opened or was resolved.
// +enum
type ChangeReason string

const (
	// ReasonObjectCreated means that the object was created.
	ReasonObjectCreated ChangeReason = "objectCreated"
	// ReasonObjectListed means that the object was seen for the first time in a list: it
	// was created while nothing was watched, or its kind was not audited before.
	ReasonObjectListed ChangeReason = "objectListed"
	// ReasonObjectChanged means that the object was changed.
	ReasonObjectChanged ChangeReason = "objectChanged"
	// ReasonObjectDeleted means that the object was deleted.
	ReasonObjectDeleted ChangeReason = "objectDeleted"
	// ReasonNamespaceChanged means that the Namespace of the object was changed.
	ReasonNamespaceChanged ChangeReason = "namespaceChanged"
	// ReasonNamespaceDeleted means that the Namespace of the object was deleted.
	ReasonNamespaceDeleted ChangeReason = "namespaceDeleted"
	// ReasonPolicyChanged means that the policy was created or changed, or other objects
	// that it refers to.
	ReasonPolicyChanged ChangeReason = "policyChanged"
	// ReasonPolicyDeleted means that the policy was deleted.
	ReasonPolicyDeleted ChangeReason = "policyDeleted"
	// ReasonPolicyRejected means that the policy was changed and is wrong, so that
	// nothing is judged by it.
	ReasonPolicyRejected ChangeReason = "policyRejected"
	// ReasonKindDeleted means that the kind of the object is not there any more.
	ReasonKindDeleted ChangeReason = "kindDeleted"
	// ReasonResultChanged means that the finding was there with another result.
	ReasonResultChanged ChangeReason = "resultChanged"
)
