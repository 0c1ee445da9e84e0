package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Column is a column that kubectl get prints after NAME. Columns of priority 1
// are printed with -o wide only.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Column[T any] struct {
	// Name of the column.
	Name string
	// Type and Format as in OpenAPI; a "date" of type "string" is printed as an age.
	Type, Format string
	// Description for the documentation and for OpenAPI-aware clients.
	Description string
	// Priority is 0 for the narrow output and 1 for the wide one.
	Priority int32
	// Paths of the fields that the cell is made of.
	Paths []string
	// Value returns the cell: a string or an int64.
	Value func(T) any
}

// ResultColumns are the columns of auditresults and clusterauditresults, without
// NAME and AGE.
func ResultColumns() []Column[*Finding] {
	return []Column[*Finding]{
		{"Result", "string", "", "fail, error or deferred", 0, []string{"result"}, func(f *Finding) any { return string(f.Result) }},
		{"Action", "string", "", "enforcement action of the constraint", 0, []string{"enforcementAction"}, func(f *Finding) any { return f.EnforcementAction }},
		{"Constraint", "string", "", "kind and name of the constraint", 0, []string{"constraint.kind", "constraint.name"}, func(f *Finding) any { return f.Constraint.Kind + "/" + f.Constraint.Name }},
		{"Resource", "string", "", "kind and name of the object", 0, []string{"resource.kind", "resource.name"}, func(f *Finding) any { return f.Resource.Kind + "/" + f.Resource.Name }},
		{"Owner", "string", "", "kind and name of the object's top controller", 1, []string{"owner.kind", "owner.name"}, func(f *Finding) any {
			if f.Owner == nil {
				return ""
			}
			return f.Owner.Kind + "/" + f.Owner.Name
		}},
		{"Last Writer", "string", "", "who wrote the object last", 1, []string{"lastWriter.manager"}, func(f *Finding) any {
			if f.LastWriter == nil {
				return ""
			}
			return f.LastWriter.Manager
		}},
		{"Message", "string", "", "first violation, or why there is no verdict", 0, []string{"violations", "message"}, func(f *Finding) any {
			if len(f.Violations) > 0 {
				return f.Violations[0].Message
			}
			return f.Message
		}},
	}
}

// AuditSummaryColumns are the columns of auditsummaries, without NAME and AGE.
func AuditSummaryColumns() []Column[*AuditSummary] {
	return []Column[*AuditSummary]{
		{"Action", "string", "", "enforcement action of the constraint", 0, []string{"enforcementAction"}, func(s *AuditSummary) any { return s.EnforcementAction }},
		{"Constraint", "string", "", "kind and name of the constraint", 0, []string{"constraint.kind", "constraint.name"}, func(s *AuditSummary) any { return s.Constraint.Kind + "/" + s.Constraint.Name }},
		{"Kind", "string", "", "kind of the objects", 0, []string{"resource.kind", "resource.apiGroup"}, func(s *AuditSummary) any {
			return schema.GroupKind{Group: s.Resource.APIGroup, Kind: s.Resource.Kind}.String()
		}},
		{"Fail", "integer", "int64", "objects that violate the constraint", 0, []string{"totals.fail"}, func(s *AuditSummary) any { return s.Totals.Fail }},
		{"Error", "integer", "int64", "objects that could not be evaluated", 0, []string{"totals.error"}, func(s *AuditSummary) any { return s.Totals.Error }},
		{"Deferred", "integer", "int64", "objects whose evaluation waits for something", 0, []string{"totals.deferred"}, func(s *AuditSummary) any { return s.Totals.Deferred }},
	}
}

// ChangeColumns are the columns of auditchanges and clusterauditchanges, without NAME
// and AGE, which is the time since the change happened last.
func ChangeColumns() []Column[*Change] {
	return []Column[*Change]{
		{"Type", "string", "", "opened or resolved", 0, []string{"type"}, func(c *Change) any { return string(c.Type) }},
		{"Reason", "string", "", "why", 0, []string{"reason"}, func(c *Change) any { return string(c.Reason) }},
		{"Result", "string", "", "result of the finding", 1, []string{"result"}, func(c *Change) any { return string(c.Result) }},
		{"Action", "string", "", "enforcement action of the constraint", 0, []string{"enforcementAction"}, func(c *Change) any { return c.EnforcementAction }},
		{"Constraint", "string", "", "kind and name of the constraint", 0, []string{"constraint.kind", "constraint.name"}, func(c *Change) any { return c.Constraint.Kind + "/" + c.Constraint.Name }},
		{"Resource", "string", "", "kind and name of the object", 0, []string{"resource.kind", "resource.name"}, func(c *Change) any { return c.Resource.Kind + "/" + c.Resource.Name }},
		{"Count", "integer", "int64", "how often it happened", 1, []string{"count"}, func(c *Change) any { return c.Count }},
		{"Message", "string", "", "first violation, or why there was no verdict", 0, []string{"message"}, func(c *Change) any { return c.Message }},
	}
}

// RunColumns are the columns of auditruns, without NAME and AGE.
func RunColumns() []Column[*AuditRun] {
	return []Column[*AuditRun]{
		{"Phase", "string", "", "Running, Complete, Partial or Aborted", 0, []string{"phase"}, func(r *AuditRun) any { return string(r.Phase) }},
		{"Trigger", "string", "", "why the run was made", 0, []string{"trigger"}, func(r *AuditRun) any { return string(r.Trigger) }},
		{"Kinds", "integer", "int64", "kinds that the run covers", 0, []string{"kinds"}, func(r *AuditRun) any { return int64(len(r.Kinds)) }},
		{"Listed", "integer", "int64", "objects listed", 0, []string{"listed"}, func(r *AuditRun) any { return r.Listed }},
		{"Evaluated", "integer", "int64", "objects evaluated", 0, []string{"evaluated"}, func(r *AuditRun) any { return r.Evaluated }},
		{"Unchanged", "integer", "int64", "objects that did not have to be evaluated", 1, []string{"unchanged"}, func(r *AuditRun) any { return r.Unchanged }},
		{"Errors", "integer", "int64", "objects with a result of error", 0, []string{"failed"}, func(r *AuditRun) any { return r.Failed }},
		{"Problems", "integer", "int64", "what could not be looked at", 0, []string{"problems", "kinds.error"}, func(r *AuditRun) any {
			return int64(len(AllProblems(r)))
		}},
		{"Problem", "string", "", "first of the problems", 1, []string{"problems", "kinds.error"}, func(r *AuditRun) any {
			if problems := AllProblems(r); len(problems) > 0 {
				return problems[0].Subject + ": " + problems[0].Message
			}
			return ""
		}},
	}
}

// AllProblems returns what a run could not look at: its problems, and the kinds
// that could not be listed or watched.
func AllProblems(r *AuditRun) []RunProblem {
	problems := slices.Clone(r.Problems)
	for i := range r.Kinds {
		if k := &r.Kinds[i]; k.Error != "" {
			problems = append(problems, RunProblem{Subject: schema.GroupKind{Group: k.Group, Kind: k.Kind}.String(), Message: k.Error})
		}
	}
	return problems
}

// SummaryColumns are the columns of constraintsummaries, without NAME and AGE.
func SummaryColumns() []Column[*ConstraintSummary] {
	return []Column[*ConstraintSummary]{
		{"Action", "string", "", "enforcement action of the constraint", 0, []string{"enforcementAction"}, func(s *ConstraintSummary) any { return s.EnforcementAction }},
		{"State", "string", "", "what the totals are worth", 0, []string{"state"}, func(s *ConstraintSummary) any { return string(s.State) }},
		{"Fail", "integer", "int64", "objects that violate the constraint", 0, []string{"totals.fail"}, func(s *ConstraintSummary) any { return s.Totals.Fail }},
		{"Error", "integer", "int64", "objects that could not be evaluated", 0, []string{"totals.error"}, func(s *ConstraintSummary) any { return s.Totals.Error }},
		{"Deferred", "integer", "int64", "objects whose evaluation waits for something", 0, []string{"totals.deferred"}, func(s *ConstraintSummary) any { return s.Totals.Deferred }},
		{"Evaluated", "integer", "int64", "objects judged", 0, []string{"totals.evaluated"}, func(s *ConstraintSummary) any { return s.Totals.Evaluated }},
		{"Last Run", "string", "", "last completed run", 1, []string{"lastCompletedRun"}, func(s *ConstraintSummary) any { return s.LastCompletedRun }},
		{"Message", "string", "", "why the state is not Current", 0, []string{"message"}, func(s *ConstraintSummary) any { return s.Message }},
	}
}
