package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRun is one pass of the audit over kinds: which kinds were listed, what was
// evaluated, and what could not be. Between runs the audit follows every change
// by watches, so a run does not have to be recent for its results to be.
type AuditRun struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the run. name is the run's id, which starts with the time of its
	// start and so sorts by time.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// trigger says why the run was made.
	Trigger RunTrigger `json:"trigger"`
	// phase the run is in.
	Phase RunPhase `json:"phase"`
	// started is when the run began.
	Started metav1.Time `json:"started"`
	// finished is when the run ended. Absent while it is Running.
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
	// policyDigest identifies the set of policies that the run applied.
	// +optional
	PolicyDigest string `json:"policyDigest,omitempty"`
	// listed is the number of objects listed, over all kinds.
	Listed int64 `json:"listed"`
	// evaluated is the number of objects that were evaluated, over all kinds.
	Evaluated int64 `json:"evaluated"`
	// unchanged is the number of objects that were listed but did not have to be
	// evaluated, because neither they nor their policies changed since the last
	// evaluation.
	Unchanged int64 `json:"unchanged"`
	// failed is the number of objects that got at least one result of error.
	Failed int64 `json:"failed"`
	// differences is the number of objects, over all kinds, of which a sweep found that
	// the audit had missed a change: they were not in the index, or only there, or
	// different. The kinds concerned are listed again in a run of trigger Repair.
	// +optional
	Differences int64 `json:"differences,omitempty"`
	// conditions of the run. A sweep has Consistent, which is False if it found
	// differences.
	// +optional
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
	// kinds are what the run covers, one entry a kind, sorted by group and kind.
	// +optional
	// +listType=atomic
	Kinds []KindRun `json:"kinds,omitempty"`
	// problems are what the run could not look at besides whole kinds: API groups
	// whose discovery failed, files that could not be read, objects without a
	// kind. A run with problems is Partial at best.
	// +optional
	// +listType=atomic
	Problems []RunProblem `json:"problems,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRunList is a list of AuditRuns.
type AuditRunList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata of the list.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the runs.
	Items []AuditRun `json:"items"`
}

// RunTrigger says why a run was made.
// +enum
type RunTrigger string

const (
	// TriggerStartup is the run that follows the start of the server.
	TriggerStartup RunTrigger = "Startup"
	// TriggerPolicyChange is a run over the kinds that a change of templates,
	// constraints or namespaces touched.
	TriggerPolicyChange RunTrigger = "PolicyChange"
	// TriggerKindChange is a run over kinds that appeared, or whose definition
	// changed, since the last run.
	TriggerKindChange RunTrigger = "KindChange"
	// TriggerProblemChange is a run without kinds: something that could not be looked
	// at can be now, or the other way round.
	TriggerProblemChange RunTrigger = "ProblemChange"
	// TriggerSweep is a run that lists every kind once more and evaluates nothing, to
	// find out whether the audit has missed a change.
	TriggerSweep RunTrigger = "Sweep"
	// TriggerRepair is a run over kinds of which a sweep found that the audit had missed
	// a change.
	TriggerRepair RunTrigger = "Repair"
)

// Condition of an AuditRun.
const (
	// ConditionConsistent is a sweep's: True if the audit had missed nothing.
	ConditionConsistent = "Consistent"
)

// RunPhase is the phase of a run.
// +enum
type RunPhase string

const (
	// RunRunning means that kinds are still being listed.
	RunRunning RunPhase = "Running"
	// RunComplete means that every kind was listed to its end and nothing was left
	// out.
	RunComplete RunPhase = "Complete"
	// RunPartial means that the run ended, but something could not be looked at:
	// see kinds[].error and problems. Earlier results of it are kept.
	RunPartial RunPhase = "Partial"
	// RunAborted means that the run was overtaken by another one, which covers what
	// was left of it, or that the server stopped.
	RunAborted RunPhase = "Aborted"
)

// KindRun is the part of a run that concerns one kind.
type KindRun struct {
	// group of the kind, empty for the core group.
	// +optional
	Group string `json:"group,omitempty"`
	// version in which the kind was listed.
	Version string `json:"version"`
	// kind that was listed.
	Kind string `json:"kind"`
	// phase of this kind: Running, Complete or Partial.
	Phase RunPhase `json:"phase"`
	// listed is the number of objects listed.
	Listed int64 `json:"listed"`
	// evaluated is the number of objects evaluated.
	Evaluated int64 `json:"evaluated"`
	// unchanged is the number of objects that did not have to be evaluated.
	Unchanged int64 `json:"unchanged"`
	// failed is the number of objects that got at least one result of error.
	Failed int64 `json:"failed"`
	// differences is the number of objects of which a sweep found that the audit had
	// missed a change.
	// +optional
	Differences int64 `json:"differences,omitempty"`
	// resourceVersion of the completed list.
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// error that kept the kind from being listed or watched.
	// +optional
	Error string `json:"error,omitempty"`
}

// RunProblem is something that a run could not look at.
type RunProblem struct {
	// subject names the API group, file or object.
	Subject string `json:"subject"`
	// message says what is wrong and what to do.
	Message string `json:"message"`
}
