package audit

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// Policies are what the audit judges by since its last plan, for others who judge. They
// are immutable but for the Namespaces, which are those of now.
type Policies struct {
	set          *policy.Set
	kinds        map[schema.GroupKind]source.Kind
	inventory    *source.Inventory
	failedGroups map[string]error
	namespaces   *objectCache
	missing      []string
}

// Policies returns the policies that are in force. The error says what they wait for.
func (a *Auditor) Policies() (*Policies, error) {
	if p := a.policies.Load(); p != nil {
		return p, nil
	}
	reason := a.planner.waitingFor()
	if reason == "" {
		reason = "the policies are being compiled"
	}
	return nil, errors.New(reason)
}

// publish makes the set and the kinds of a plan what Policies returns. unknownKinds are
// kinds of policies that cannot be listed.
func (p *planner) publish(unknownKinds map[string]struct{}) {
	kinds := make(map[schema.GroupKind]source.Kind, len(p.inventory.Kinds))
	for _, kind := range p.inventory.Kinds {
		kinds[kind.GroupKind()] = kind
	}
	p.a.policies.Store(&Policies{
		set:          p.set,
		kinds:        kinds,
		inventory:    p.inventory,
		failedGroups: p.inventory.FailedGroups,
		namespaces:   p.namespaces,
		missing:      slices.Sorted(maps.Keys(unknownKinds)),
	})
}

// Set returns the policies.
func (p *Policies) Set() *policy.Set { return p.set }

// Missing returns the kinds of policies that cannot be listed, and of which the set has
// none therefore. The slice must not be modified.
func (p *Policies) Missing() []string { return p.missing }

// Namespace returns a Namespace, nil if it is not known. It must not be modified.
func (p *Policies) Namespace(name string) *unstructured.Unstructured {
	if entry := p.namespaces.get("", name); entry != nil {
		return entry.Unstructured
	}
	return nil
}

// Kind returns a kind in the version that is audited; ok is false if the source has no
// such kind. The error says why that is not known.
func (p *Policies) Kind(gk schema.GroupKind) (kind policy.Kind, ok bool, err error) {
	if kind, ok := p.kinds[gk]; ok {
		return policy.Kind(kind), true, nil
	}
	if err := p.failedGroups[gk.Group]; err != nil {
		return policy.Kind{}, false, fmt.Errorf("the kinds of the API group %q are not known at the moment: %w", gk.Group, err)
	}
	return policy.Kind{}, false, nil
}

// Kinds returns the kinds of the source in the versions that are audited, those that
// they are served in besides, and why those of some API groups are not known.
func (p *Policies) Kinds() (preferred, others []policy.Kind, failedGroups map[string]error) {
	for _, kind := range p.inventory.Kinds {
		preferred = append(preferred, policy.Kind(kind))
	}
	for _, kind := range p.inventory.OtherVersions {
		others = append(others, policy.Kind(kind))
	}
	return preferred, others, p.failedGroups
}

// Namespaces returns the names of the Namespaces that are known, sorted.
func (p *Policies) Namespaces() []string {
	var names []string
	for _, obj := range p.namespaces.all() {
		names = append(names, obj.GetName())
	}
	slices.Sort(names)
	return names
}
