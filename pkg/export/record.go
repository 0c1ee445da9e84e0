package export

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// Record is a line. The names of its fields, and what is in them, are those of the
// violation export of Gatekeeper v3.23 (pkg/export/util and pkg/audit there).
type Record struct {
	// ID of the audit: the time of the last export of all findings, in RFC 3339.
	ID      string          `json:"id,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
	// EventType is one of the constants below; empty in the frame around all findings.
	EventType string `json:"eventType,omitempty"`
	// Group, Version, Kind, Name and Namespace of the constraint.
	Group     string `json:"group,omitempty"`
	Version   string `json:"version,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Message of the violation.
	Message            string   `json:"message,omitempty"`
	EnforcementAction  string   `json:"enforcementAction,omitempty"`
	EnforcementActions []string `json:"enforcementActions,omitempty"`
	// The object.
	ResourceGroup      string `json:"resourceGroup,omitempty"`
	ResourceAPIVersion string `json:"resourceAPIVersion,omitempty"`
	ResourceKind       string `json:"resourceKind,omitempty"`
	ResourceNamespace  string `json:"resourceNamespace,omitempty"`
	ResourceName       string `json:"resourceName,omitempty"`
}

// Values of Record.EventType. Gatekeeper has the first one.
const (
	// EventViolation is a violation that is there.
	EventViolation = "violation_audited"
	// EventResolved is a violation that is not there any more.
	EventResolved = "violation_resolved"
	// EventError is an object that could not be evaluated.
	EventError = "evaluation_error"
	// EventDeferred is an object whose evaluation waits for something.
	EventDeferred = "evaluation_deferred"
	// EventEvaluated is an object of which one of the two above is over.
	EventEvaluated = "evaluation_resolved"
	// EventDropped says that changes were not written.
	EventDropped = "export_dropped"
)

// Messages of the frame around all findings.
const (
	messageStarted   = "audit is started"
	messageCompleted = "audit is completed"
)

// point is one thing that a finding says.
type point struct {
	message string
	details string
}

// points of a finding, nil if there is none.
func points(f *v1alpha1.Finding) []point {
	switch {
	case f == nil:
		return nil
	case f.Result != v1alpha1.ResultFail:
		return []point{{message: f.Message}}
	}
	out := make([]point, len(f.Violations))
	for i := range f.Violations {
		out[i].message = f.Violations[i].Message
		if f.Violations[i].Details != nil {
			out[i].details = string(f.Violations[i].Details.Raw)
		}
	}
	return out
}

// changed returns the lines of a change: what is gone, and what is new. Either may be
// nil.
func changed(id string, before, after *v1alpha1.Finding) []Record {
	var out []Record
	same := before != nil && after != nil && before.Result == after.Result &&
		before.EnforcementAction == after.EnforcementAction && slices.Equal(before.EnforcementActions, after.EnforcementActions)
	old, now := points(before), points(after)
	for _, p := range old {
		// What is said with another action or other details is not gone.
		if after != nil && before.Result == after.Result && slices.ContainsFunc(now, func(q point) bool { return q.message == p.message }) {
			continue
		}
		event := EventResolved
		if before.Result != v1alpha1.ResultFail {
			event = EventEvaluated
		} else if after != nil && after.Result != v1alpha1.ResultFail {
			continue // nobody knows whether it is
		}
		out = append(out, newRecord(id, event, before, p))
	}
	for _, p := range now {
		if same && slices.Contains(old, p) {
			continue
		}
		event := map[v1alpha1.Result]string{v1alpha1.ResultFail: EventViolation, v1alpha1.ResultDeferred: EventDeferred}[after.Result]
		if event == "" {
			event = EventError
		}
		out = append(out, newRecord(id, event, after, p))
	}
	return out
}

func newRecord(id, event string, f *v1alpha1.Finding, p point) Record {
	r := Record{
		ID:                 id,
		EventType:          event,
		Group:              "constraints.gatekeeper.sh",
		Version:            "v1beta1",
		Kind:               f.Constraint.Kind,
		Name:               f.Constraint.Name,
		Message:            p.message,
		EnforcementAction:  f.EnforcementAction,
		EnforcementActions: f.EnforcementActions,
		ResourceGroup:      f.Resource.APIGroup,
		ResourceKind:       f.Resource.Kind,
		ResourceNamespace:  f.Resource.Namespace,
		ResourceName:       f.Resource.Name,
	}
	if f.Constraint.Engine != "Gatekeeper" {
		r.Group, r.Version, r.Kind = "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"
	}
	if gv, err := schema.ParseGroupVersion(f.Resource.APIVersion); err == nil {
		r.ResourceAPIVersion = gv.Version
	}
	if p.details != "" {
		r.Details = json.RawMessage(p.details)
	}
	return r
}
