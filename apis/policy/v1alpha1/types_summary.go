package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ConstraintSummary tells what one constraint amounts to: how many objects
// violate it, and whether that number can be trusted. A template that is
// rejected and has no constraint has a summary too, with an empty constraint
// name.
type ConstraintSummary struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the summary. name is made of the constraint's kind, in lower
	// case, and its name.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// constraint that is summarized. Its generation is the one observed.
	Constraint ConstraintReference `json:"constraint"`
	// enforcementAction of the constraint.
	// +optional
	EnforcementAction string `json:"enforcementAction,omitempty"`
	// state says what the totals are worth.
	State SummaryState `json:"state"`
	// message says why the state is not Current. For a rejected policy it names
	// the place in the policy and what is wrong there.
	// +optional
	Message string `json:"message,omitempty"`
	// totals over the whole cluster.
	Totals SummaryTotals `json:"totals"`
	// observedGeneration is the generation of the constraint that the state speaks
	// of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// lastCompletedRun is the name of the last AuditRun in which all kinds that the
	// constraint selects were listed to the end.
	// +optional
	LastCompletedRun string `json:"lastCompletedRun,omitempty"`
	// lastCompletedTime is when that run ended for the constraint's kinds.
	// +optional
	LastCompletedTime *metav1.Time `json:"lastCompletedTime,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ConstraintSummaryList is a list of ConstraintSummaries.
type ConstraintSummaryList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the summaries.
	Items []ConstraintSummary `json:"items"`
}

// SummaryTotals counts objects.
type SummaryTotals struct {
	// fail is the number of objects that violate the constraint.
	Fail int64 `json:"fail"`
	// error is the number of objects that could not be evaluated.
	Error int64 `json:"error"`
	// deferred is the number of objects whose evaluation waits for something.
	Deferred int64 `json:"deferred"`
	// evaluated is the number of objects of the kinds that the constraint selects
	// that were judged, including those that its match block rules out.
	Evaluated int64 `json:"evaluated"`
}

// SummaryState says what the totals of a ConstraintSummary are worth.
// +enum
type SummaryState string

const (
	// SummaryNotYetAudited means that not every kind of the constraint was listed
	// to its end since the constraint's generation was seen. The totals grow.
	SummaryNotYetAudited SummaryState = "NotYetAudited"
	// SummaryCurrent means that the totals are those of the cluster.
	SummaryCurrent SummaryState = "Current"
	// SummaryPending means that changes wait longer than usual to be judged; the message
	// says since when. The totals are those from before.
	SummaryPending SummaryState = "Pending"
	// SummaryPartial means that some of the constraint's kinds could not be listed
	// or watched; the totals miss what is there.
	SummaryPartial SummaryState = "Partial"
	// SummaryRejected means that the constraint or its template is wrong and
	// nothing is evaluated.
	SummaryRejected SummaryState = "Rejected"
	// SummaryDeferred means that the constraint waits for data that its policy
	// refers to.
	SummaryDeferred SummaryState = "Deferred"
)
