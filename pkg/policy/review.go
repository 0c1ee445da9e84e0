package policy

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy/rego"
)

// evaluationTimeout is how long one evaluation of one constraint may take.
const evaluationTimeout = 5 * time.Second

// Object is an object to be judged, with its Namespace. It is used by one
// goroutine at a time.
type Object struct {
	obj       *unstructured.Unstructured
	namespace *unstructured.Unstructured

	review    rego.Value // made when the first constraint matches
	reviewErr error
}

// NewObject returns an object to be judged. namespace is nil if the object is in
// none or it is not known. Neither may be modified any more.
func NewObject(obj, namespace *unstructured.Unstructured) *Object {
	return &Object{obj: obj, namespace: namespace}
}

// reviewDocument is input.review as it is in Gatekeeper's audit: an admission
// request that has only kind, name, namespace and object. Everything else is
// there, but empty.
func (o *Object) reviewDocument() (rego.Value, error) {
	if o.review != nil || o.reviewErr != nil {
		return o.review, o.reviewErr
	}
	gvk := o.obj.GroupVersionKind()
	document := map[string]any{
		"uid":             "",
		"kind":            map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind},
		"resource":        map[string]any{"group": "", "version": "", "resource": ""},
		"operation":       "",
		"userInfo":        map[string]any{},
		"object":          o.obj.Object,
		"oldObject":       nil,
		"options":         nil,
		"namespaceObject": nil,
	}
	if name := o.obj.GetName(); name != "" {
		document["name"] = name
	}
	if namespace := o.obj.GetNamespace(); namespace != "" {
		document["namespace"] = namespace
	}
	if o.namespace != nil {
		document["namespaceObject"] = o.namespace.Object
	}
	o.review, o.reviewErr = rego.NewValue(document)
	return o.review, o.reviewErr
}

// Review judges an object by constraints. The verdicts are in the order of the
// constraints.
func Review(ctx context.Context, o *Object, constraints []*Constraint) []Verdict {
	verdicts := make([]Verdict, len(constraints))
	for i, c := range constraints {
		verdicts[i] = c.judge(ctx, o)
	}
	return verdicts
}

func (c *Constraint) judge(ctx context.Context, o *Object) Verdict {
	failed := func(err error) Verdict { return Verdict{Constraint: c, Outcome: Error, Message: err.Error()} }
	matches, err := c.match.Matches(o.obj, o.namespace)
	switch {
	case err != nil:
		return failed(fmt.Errorf("match: %w", err))
	case !matches:
		return Verdict{Constraint: c, Outcome: NotMatched}
	case c.template.program.ReadsInventory:
		return Verdict{Constraint: c, Outcome: Deferred, Message: "the policy reads data.inventory, which is not loaded by this version"}
	}
	review, err := o.reviewDocument()
	if err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, evaluationTimeout, fmt.Errorf("it took longer than %v", evaluationTimeout))
	defer cancel()
	violations, err := c.template.program.Eval(ctx, review, c.parameters)
	if err != nil {
		return failed(fmt.Errorf("template %s: %w", c.template.kind, err))
	}
	verdict := Verdict{Constraint: c, Outcome: Pass}
	if len(violations) > 0 {
		verdict.Outcome = Fail
		verdict.Violations = make([]Violation, len(violations))
		for i, v := range violations {
			verdict.Violations[i] = Violation(v)
		}
	}
	return verdict
}
