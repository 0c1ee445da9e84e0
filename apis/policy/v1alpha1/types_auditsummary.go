package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditSummary counts the AuditResults that a constraint has on the objects of one
// kind in one namespace, with one enforcement action. Where there are none there is no
// AuditSummary. It changes together with the results: at each resourceVersion the
// totals are the numbers of results that there are.
type AuditSummary struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the summary. name and uid are derived from what is counted, and the
	// name is the same in all namespaces; creationTimestamp is when there came to be
	// something to count; the labels are those of the results.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// constraint whose results are counted. It has neither uid nor generation: the
	// results may be of several.
	Constraint ConstraintReference `json:"constraint"`
	// resource is the kind of the objects.
	Resource KindReference `json:"resource"`
	// enforcementAction of the results.
	// +optional
	EnforcementAction string `json:"enforcementAction,omitempty"`
	// totals by result.
	Totals ResultTotals `json:"totals"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditSummaryList is a list of AuditSummaries.
type AuditSummaryList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the summaries.
	Items []AuditSummary `json:"items"`
}

// KindReference identifies a kind of objects.
type KindReference struct {
	// apiGroup of the objects, empty for the core group.
	// +optional
	APIGroup string `json:"apiGroup,omitempty"`
	// kind of the objects.
	Kind string `json:"kind"`
}

// ResultTotals counts results.
type ResultTotals struct {
	// fail is the number of objects that violate the constraint.
	Fail int64 `json:"fail"`
	// error is the number of objects that could not be evaluated.
	Error int64 `json:"error"`
	// deferred is the number of objects whose evaluation waits for something.
	Deferred int64 `json:"deferred"`
}
