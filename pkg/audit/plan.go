package audit

import (
	"policy.example.io/policy-apiserver/pkg/policy"
)

// constraintsOf returns the constraints of these kinds that a kind was audited
// under.
func constraintsOf(plan plannedKind, kinds map[string]struct{}) []policy.ConstraintID {
	var out []policy.ConstraintID
	for _, id := range plan.Constraints {
		if isUnknown(kinds, id) {
			out = append(out, id)
		}
	}
	return out
}

// isUnknown tells whether a constraint is of kinds of policies that cannot be listed
// at the moment.
func isUnknown(kinds map[string]struct{}, id policy.ConstraintID) bool {
	if id.Engine != policy.EngineValidatingAdmissionPolicy {
		_, ok := kinds[id.Kind]
		return ok
	}
	_, policies := kinds[admissionPolicyKind.Kind]
	_, bindings := kinds[admissionBindingKind.Kind]
	return policies || bindings
}

func newPlannedKind(d *desiredKind) plannedKind {
	out := plannedKind{
		Group:      d.kind.Group,
		Version:    d.kind.Version,
		Kind:       d.kind.Kind,
		Resource:   d.kind.Resource,
		Namespaced: d.kind.Namespaced,
	}
	for _, c := range d.constraints {
		out.Constraints = append(out.Constraints, c.ID)
	}
	return out
}

// droppedConstraints returns the constraints that a kind was audited under and is
// not any more. Constraints of kinds that cannot be listed are not among them:
// nobody knows.
func droppedConstraints(old plannedKind, d *desiredKind, unknownKinds map[string]struct{}) []policy.ConstraintID {
	present := map[policy.ConstraintID]struct{}{}
	for _, c := range d.constraints {
		present[c.ID] = struct{}{}
	}
	var dropped []policy.ConstraintID
	for _, id := range old.Constraints {
		if _, ok := present[id]; ok {
			continue
		}
		if isUnknown(unknownKinds, id) {
			continue
		}
		dropped = append(dropped, id)
	}
	return dropped
}
