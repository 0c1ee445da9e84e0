package v1alpha1

// SelectableField is a field that list and watch requests may select on with
// --field-selector, by =, == and !=. metadata.name and metadata.namespace are
// selectable in every resource and are not repeated in the tables: the index
// keeps rows by them.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type SelectableField[T any] struct {
	// Path as it is written in a field selector.
	Path string
	// Description for the documentation.
	Description string
	// Values are those that the field can have, nil if any. A selector with another
	// one is refused: what it selects would look clean.
	Values []string
	// Value returns the field's value, "" if it is absent.
	Value func(T) string
}

// ResultFields are the selectable fields of auditresults and
// clusterauditresults.
func ResultFields() []SelectableField[*Finding] {
	return []SelectableField[*Finding]{
		{"constraint.engine", "Gatekeeper or ValidatingAdmissionPolicy", engines(), func(f *Finding) string { return string(f.Constraint.Engine) }},
		{"constraint.kind", "kind of the constraint", nil, func(f *Finding) string { return f.Constraint.Kind }},
		{"constraint.name", "name of the constraint", nil, func(f *Finding) string { return f.Constraint.Name }},
		{"resource.apiGroup", "API group of the object, empty for the core group", nil, func(f *Finding) string { return f.Resource.APIGroup }},
		{"resource.kind", "kind of the object", nil, func(f *Finding) string { return f.Resource.Kind }},
		{"resource.namespace", "namespace of the object, empty for a Namespace and other cluster-scoped objects", nil, func(f *Finding) string { return f.Resource.Namespace }},
		{"resource.name", "name of the object", nil, func(f *Finding) string { return f.Resource.Name }},
		{"owner.kind", "kind of the object's top controller", nil, func(f *Finding) string {
			if f.Owner == nil {
				return ""
			}
			return f.Owner.Kind
		}},
		{"owner.name", "name of the object's top controller", nil, func(f *Finding) string {
			if f.Owner == nil {
				return ""
			}
			return f.Owner.Name
		}},
		{"enforcementAction", "deny, warn, dryrun or scoped", nil, func(f *Finding) string { return f.EnforcementAction }},
		{"result", "fail, error or deferred", values(ResultFail, ResultError, ResultDeferred), func(f *Finding) string { return string(f.Result) }},
		{"runID", "name of the AuditRun that wrote the result", nil, func(f *Finding) string { return f.RunID }},
	}
}

// AuditSummaryFields are the selectable fields of auditsummaries.
func AuditSummaryFields() []SelectableField[*AuditSummary] {
	return []SelectableField[*AuditSummary]{
		{"constraint.engine", "Gatekeeper or ValidatingAdmissionPolicy", engines(), func(s *AuditSummary) string { return string(s.Constraint.Engine) }},
		{"constraint.kind", "kind of the constraint", nil, func(s *AuditSummary) string { return s.Constraint.Kind }},
		{"constraint.name", "name of the constraint", nil, func(s *AuditSummary) string { return s.Constraint.Name }},
		{"resource.apiGroup", "API group of the objects, empty for the core group", nil, func(s *AuditSummary) string { return s.Resource.APIGroup }},
		{"resource.kind", "kind of the objects", nil, func(s *AuditSummary) string { return s.Resource.Kind }},
		{"enforcementAction", "deny, warn, dryrun or scoped", nil, func(s *AuditSummary) string { return s.EnforcementAction }},
	}
}

// RunFields are the selectable fields of auditruns.
func RunFields() []SelectableField[*AuditRun] {
	return []SelectableField[*AuditRun]{
		{"phase", "Running, Complete, Partial or Aborted", values(RunRunning, RunComplete, RunPartial, RunAborted), func(r *AuditRun) string { return string(r.Phase) }},
		{"trigger", "why the run was made", values(TriggerStartup, TriggerPolicyChange, TriggerKindChange, TriggerProblemChange, TriggerSweep, TriggerRepair), func(r *AuditRun) string { return string(r.Trigger) }},
	}
}

// SummaryFields are the selectable fields of constraintsummaries.
func SummaryFields() []SelectableField[*ConstraintSummary] {
	return []SelectableField[*ConstraintSummary]{
		{"constraint.engine", "Gatekeeper or ValidatingAdmissionPolicy", engines(), func(s *ConstraintSummary) string { return string(s.Constraint.Engine) }},
		{"constraint.kind", "kind of the constraint", nil, func(s *ConstraintSummary) string { return s.Constraint.Kind }},
		{"constraint.name", "name of the constraint", nil, func(s *ConstraintSummary) string { return s.Constraint.Name }},
		{"enforcementAction", "deny, warn, dryrun or scoped", nil, func(s *ConstraintSummary) string { return s.EnforcementAction }},
		{"state", "NotYetAudited, Current, Pending, Partial, Rejected or Deferred", values(SummaryNotYetAudited, SummaryCurrent, SummaryPending, SummaryPartial, SummaryRejected, SummaryDeferred), func(s *ConstraintSummary) string { return string(s.State) }},
	}
}

func engines() []string { return values(EngineGatekeeper, EngineValidatingAdmissionPolicy) }

// ChangeFields are the selectable fields of auditchanges and clusterauditchanges.
func ChangeFields() []SelectableField[*Change] {
	return []SelectableField[*Change]{
		{"type", "opened or resolved", values(ChangeOpened, ChangeResolved), func(c *Change) string { return string(c.Type) }},
		{"reason", "why the finding opened or was resolved", values(
			ReasonObjectCreated, ReasonObjectListed, ReasonObjectChanged, ReasonObjectDeleted, ReasonNamespaceChanged, ReasonNamespaceDeleted,
			ReasonPolicyChanged, ReasonPolicyDeleted, ReasonPolicyRejected, ReasonKindDeleted, ReasonResultChanged,
		), func(c *Change) string { return string(c.Reason) }},
		{"constraint.engine", "Gatekeeper or ValidatingAdmissionPolicy", engines(), func(c *Change) string { return string(c.Constraint.Engine) }},
		{"constraint.kind", "kind of the constraint", nil, func(c *Change) string { return c.Constraint.Kind }},
		{"constraint.name", "name of the constraint", nil, func(c *Change) string { return c.Constraint.Name }},
		{"resource.apiGroup", "API group of the object, empty for the core group", nil, func(c *Change) string { return c.Resource.APIGroup }},
		{"resource.kind", "kind of the object", nil, func(c *Change) string { return c.Resource.Kind }},
		{"resource.namespace", "namespace of the object, empty for a Namespace and other cluster-scoped objects", nil, func(c *Change) string { return c.Resource.Namespace }},
		{"resource.name", "name of the object", nil, func(c *Change) string { return c.Resource.Name }},
		{"owner.kind", "kind of the object's top controller", nil, func(c *Change) string {
			if c.Owner == nil {
				return ""
			}
			return c.Owner.Kind
		}},
		{"owner.name", "name of the object's top controller", nil, func(c *Change) string {
			if c.Owner == nil {
				return ""
			}
			return c.Owner.Name
		}},
		{"enforcementAction", "deny, warn, dryrun or scoped", nil, func(c *Change) string { return c.EnforcementAction }},
		{"result", "fail, error or deferred", values(ResultFail, ResultError, ResultDeferred), func(c *Change) string { return string(c.Result) }},
	}
}

func values[T ~string](of ...T) []string {
	out := make([]string, len(of))
	for i, v := range of {
		out[i] = string(v)
	}
	return out
}
