package audit

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// desiredKind is a kind that constraints select.
type desiredKind struct {
	kind        source.Kind
	constraints []*policy.Constraint
	set         *constraintSet
}

// desiredKinds returns the kinds to audit. Kinds of API groups whose discovery
// fails are taken from the plan before.
func (p *planner) desiredKinds() map[schema.GroupKind]*desiredKind {
	desired := map[schema.GroupKind]*desiredKind{}
	add := func(kind source.Kind) {
		gk := kind.GroupKind()
		if constraints := p.set.ForKind(policy.Kind(kind)); len(constraints) > 0 && desired[gk] == nil {
			desired[gk] = &desiredKind{kind: kind, constraints: constraints}
		}
	}
	for _, kind := range p.inventory.Kinds {
		add(kind)
	}
	for gk, old := range p.planned {
		if p.inventory.FailedGroups[gk.Group] != nil {
			add(old.source())
		}
	}
	return desired
}

// dropKinds ends the audit of kinds that are not desired any more. A kind that
// constraints of an unknown kind were applied to may still be.
func (p *planner) dropKinds(desired map[schema.GroupKind]*desiredKind, unknownKinds map[string]struct{}) {
	for gk, old := range p.planned {
		if desired[gk] != nil || len(constraintsOf(old, unknownKinds)) > 0 {
			continue
		}
		if stream := p.streams[gk]; stream != nil {
			if p.cachesOf(gk).none() {
				stream.stop()
				delete(p.streams, gk)
			} else {
				stream.narrow(nil, &dropKind{a: p.a, gk: gk, why: p.whyKindDropped(gk), gone: !p.exists(gk)})
				delete(p.planned, gk)
				continue
			}
		}
		p.a.submit(&dropKind{a: p.a, gk: gk, why: p.whyKindDropped(gk), gone: !p.exists(gk)})
		delete(p.planned, gk)
	}
}

// exists tells whether the source has a kind.
func (p *planner) exists(gk schema.GroupKind) bool {
	return slices.ContainsFunc(p.inventory.Kinds, func(kind source.Kind) bool { return kind.GroupKind() == gk })
}

// adopt makes the constraint set of a kind current and tells whether the kind has
// to be listed anew for it.
func (p *planner) adopt(gk schema.GroupKind, d *desiredKind, unknownKinds map[string]struct{}, pending pendingChanges) bool {
	old := p.planned[gk]
	stream := p.streams[gk]
	d.set = p.a.sets.allocate(d.kind, d.constraints)
	d.set.unknownKinds = unknownKinds
	op := &savePlan{a: p.a, gk: gk, plan: newPlannedKind(d), dropped: droppedConstraints(old, d, unknownKinds), why: p.whyDropped()}
	op.plan.Constraints = append(op.plan.Constraints, constraintsOf(old, unknownKinds)...)
	p.planned[gk] = op.plan
	listAgain := stream == nil || stream.set.empty() || stream.kind != d.kind || stream.kindCaches != p.cachesOf(gk) ||
		!stream.set.contains(d.set) || !stream.suffices(d.set) || pending.namespaces && d.set.needsNamespace || pending.isRepaired(stream)
	if _, ok := pending.kinds[gk]; ok {
		listAgain = true
	}
	switch {
	case !listAgain && stream.set.id == d.set.id && d.set.contains(stream.set) && len(op.dropped) == 0:
		return false
	case !listAgain:
		stream.narrow(d.set, op)
		return false
	}
	if stream != nil {
		stream.stop()
		delete(p.streams, gk)
	}
	p.a.submit(op)
	return true
}

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
