package policy

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/expand"
	"policy.example.io/policy-apiserver/pkg/policy/paths"
	"policy.example.io/policy-apiserver/pkg/policy/rego"
)

// evaluationTimeout is how long one evaluation of one constraint may take.
const evaluationTimeout = 5 * time.Second

// Kind is a kind of objects as their API server serves it.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the plural name in URLs.
	Resource   string
	Namespaced bool
}

// Object is an object to be judged, with its Namespace. It is used by one
// goroutine at a time.
type Object struct {
	kind      Kind
	obj       *unstructured.Unstructured
	namespace *unstructured.Unstructured
	request   *Request // nil if the object is judged because it exists
	// madeBy is the operation of the request that a resultant comes of, which is all that
	// Gatekeeper tells programs of it.
	madeBy string

	document map[string]any // made when the first constraint matches
	// whole is the converted document.
	whole rego.Value
	// Of the Rego program that was evaluated last: the key and the value of what it
	// reads. Constraints of a template follow each other.
	program   *regoProgram
	key       paths.Key
	projected rego.Value
	scratch   []byte
	// expanded is what expandedBy made of the object.
	expandedBy *expand.System
	expanded   *expanded
}

// NewObject returns an object of a kind, to be judged. namespace is nil if the
// object is in none or it is not known. Neither may be modified any more.
func NewObject(kind Kind, obj, namespace *unstructured.Unstructured) *Object {
	return &Object{kind: kind, obj: obj, namespace: namespace}
}

// review is input.review as it is in Gatekeeper's audit: an admission request that
// has only kind, name, namespace and object. Everything else is there, but empty,
// unless it is a request.
func (o *Object) review() map[string]any {
	if o.document != nil {
		return o.document
	}
	gvk := o.obj.GroupVersionKind()
	o.document = map[string]any{
		"uid":             "",
		"kind":            map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind},
		"resource":        map[string]any{"group": "", "version": "", "resource": ""},
		"operation":       o.operation(),
		"userInfo":        map[string]any{},
		"object":          o.obj.Object,
		"oldObject":       nil,
		"options":         nil,
		"namespaceObject": map[string]any{}, // not null: Gatekeeper makes it of a nil map
	}
	if name := o.obj.GetName(); name != "" {
		o.document["name"] = name
	}
	if namespace := o.obj.GetNamespace(); namespace != "" {
		o.document["namespace"] = namespace
	}
	if o.namespace != nil {
		o.document["namespaceObject"] = o.namespace.Object
	}
	if o.request != nil {
		o.addRequest()
	}
	return o.document
}

// Review judges an object, and its resultants, by constraints. The verdicts are in the
// order of the constraints.
func Review(ctx context.Context, o *Object, constraints []*Constraint) []Verdict {
	verdicts := make([]Verdict, len(constraints))
	for i, c := range constraints {
		j := c.rule.judge(ctx, o)
		verdicts[i] = Verdict{
			Constraint: c, Outcome: j.outcome, Violations: j.violations, Message: j.message, Reason: j.reason,
			EnforcementAction: cmp.Or(j.action, c.EnforcementAction),
		}
	}
	return verdicts
}
