package policy

import (
	"cmp"
	"slices"
)

// Enforcement points that scoped constraints name, as Gatekeeper has them.
const (
	// PointAll stands for all of them.
	PointAll = "*"
	// PointAudit is the audit of objects that exist.
	PointAudit = "audit.gatekeeper.sh"
	// PointWebhook is Gatekeeper's admission webhook.
	PointWebhook = "validation.gatekeeper.sh"
	// PointGator is Gatekeeper's command line.
	PointGator = "gator.gatekeeper.sh"
	// PointAdmissionPolicy is the kube-apiserver with its ValidatingAdmissionPolicies.
	PointAdmissionPolicy = "vap.k8s.io"
)

// Points returns the enforcement points that ActionsAt knows, sorted.
func Points() []string {
	return []string{PointAll, PointAudit, PointGator, PointWebhook, PointAdmissionPolicy}
}

// scopedAction is an action of a scoped constraint and the point that it is for.
type scopedAction struct{ Point, Action string }

// ActionsAt returns what is done about a violation at an enforcement point, sorted:
// nothing if the constraint is not enforced there. Those of PointAll are the actions
// of any point. The kube-apiserver and the audit enforce ValidatingAdmissionPolicies;
// of Gatekeeper's constraints it is not known which of them it has made into some.
func (c *Constraint) ActionsAt(point string) []string {
	if c.ID.Engine == EngineValidatingAdmissionPolicy {
		switch {
		case point != PointAll && point != PointAudit && point != PointAdmissionPolicy:
			return nil
		case len(c.EnforcementActions) > 0:
			return c.EnforcementActions
		}
		return []string{c.EnforcementAction}
	}
	switch {
	case point == PointAdmissionPolicy:
		return nil
	case c.EnforcementAction != actionScoped:
		return []string{c.EnforcementAction}
	}
	return actionsAt(c.scoped, point)
}

// ActionsAt returns what is done about the verdict at an enforcement point of its
// constraint, sorted.
func (v *Verdict) ActionsAt(point string) []string {
	if v.EnforcementAction != v.Constraint.EnforcementAction {
		return []string{v.EnforcementAction}
	}
	return v.Constraint.ActionsAt(point)
}

func actionsAt(scoped []scopedAction, point string) []string {
	var actions []string
	for _, s := range scoped {
		if s.Point == point || s.Point == PointAll || point == PointAll {
			actions = append(actions, s.Action)
		}
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

// At returns the constraints that are enforced at a point, sorted by ID.
func (s *Set) At(point string) []*Constraint {
	var out []*Constraint
	for _, list := range [][]*Constraint{s.constraints, s.elsewhere} {
		for _, c := range list {
			if len(c.ActionsAt(point)) > 0 {
				out = append(out, c)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Constraint) int { return compareIDs(a.ID, b.ID) })
	return out
}

func compareIDs(a, b ConstraintID) int {
	return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}
