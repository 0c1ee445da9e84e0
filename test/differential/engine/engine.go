// Package engine adapts the engine of this project for comparisons. It is the
// only package of the module that uses the API of pkg/policy.
package engine

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// Outcomes of a Verdict.
const (
	NotMatched = policy.NotMatched
	Pass       = policy.Pass
	Fail       = policy.Fail
	Error      = policy.Error
	Deferred   = policy.Deferred
)

// Verdict is what one constraint says of one object.
type Verdict = policy.Verdict

// Set is a set of compiled policies, for any number of goroutines.
type Set struct {
	set *policy.Set
}

// Compile compiles policies. Nothing is kept from one call to the next.
func Compile(ctx context.Context, templates, constraints []*unstructured.Unstructured) *Set {
	return &Set{policy.Compile(ctx, policy.Inputs{Templates: templates, Constraints: constraints}, nil)}
}

// Rejected returns why templates, by kind, and constraints, by kind/name, cannot
// be evaluated.
func (s *Set) Rejected() map[string]string {
	out := map[string]string{}
	for _, r := range s.set.Rejections() {
		key := r.ID.Kind
		if r.ID.Name != "" {
			key += "/" + r.ID.Name
		}
		out[key] = r.Message
	}
	return out
}

// Review judges an object by all constraints.
func (s *Set) Review(ctx context.Context, obj, namespace *unstructured.Unstructured) []Verdict {
	return policy.Review(ctx, policy.NewObject(kindOf(obj), obj, namespace), s.set.Constraints())
}

// Auditor judges objects as the audit does: by the constraints that can match
// their kind. It is used by one goroutine.
type Auditor struct {
	set    *policy.Set
	byKind map[policy.Kind][]*policy.Constraint
}

// kindOf returns the kind of an object; constraints of Gatekeeper do not ask for the
// resource.
func kindOf(obj *unstructured.Unstructured) policy.Kind {
	return policy.Kind{GroupVersionKind: obj.GroupVersionKind(), Namespaced: obj.GetNamespace() != ""}
}

// Auditor returns an Auditor for one goroutine.
func (s *Set) Auditor() *Auditor {
	return &Auditor{set: s.set, byKind: map[policy.Kind][]*policy.Constraint{}}
}

// Review judges an object.
func (a *Auditor) Review(ctx context.Context, obj, namespace *unstructured.Unstructured) []Verdict {
	k := kindOf(obj)
	constraints, ok := a.byKind[k]
	if !ok {
		constraints = a.set.ForKind(k)
		a.byKind[k] = constraints
	}
	return policy.Review(ctx, policy.NewObject(k, obj, namespace), constraints)
}

// CompileExpanding is Compile with ExpansionTemplates, which Rejected has by
// kind/name.
func CompileExpanding(ctx context.Context, templates, constraints, expansions []*unstructured.Unstructured) *Set {
	return &Set{policy.Compile(ctx, policy.Inputs{Templates: templates, Constraints: constraints, ExpansionTemplates: expansions}, nil)}
}
