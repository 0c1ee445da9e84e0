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

	document map[string]any // made when the first constraint matches
	// whole is the converted document.
	whole rego.Value
	// Of the template that was evaluated last: the key and the value of what it reads.
	// Constraints of a template follow each other.
	template  *template
	key       []byte
	projected rego.Value
	scratch   []byte
}

// NewObject returns an object to be judged. namespace is nil if the object is in
// none or it is not known. Neither may be modified any more.
func NewObject(obj, namespace *unstructured.Unstructured) *Object {
	return &Object{obj: obj, namespace: namespace}
}

// review is input.review as it is in Gatekeeper's audit: an admission request that
// has only kind, name, namespace and object. Everything else is there, but empty.
func (o *Object) review() map[string]any {
	if o.document != nil {
		return o.document
	}
	gvk := o.obj.GroupVersionKind()
	o.document = map[string]any{
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
		o.document["name"] = name
	}
	if namespace := o.obj.GetNamespace(); namespace != "" {
		o.document["namespace"] = namespace
	}
	if o.namespace != nil {
		o.document["namespaceObject"] = o.namespace.Object
	}
	return o.document
}

// use makes t the template that is evaluated.
func (o *Object) use(t *template) {
	if o.template == t {
		return
	}
	o.template, o.projected, o.key = t, nil, o.key[:0]
	if t.repeats {
		o.key = shorten(t.projection.AppendKey(o.key, o.review()))
	}
}

// input returns what the template in use reads of the review.
func (o *Object) input() (rego.Value, error) {
	if o.template.program.Reads.Whole() {
		if o.whole == nil {
			var err error
			if o.whole, err = rego.NewValue(o.review()); err != nil {
				return nil, err
			}
		}
		return o.whole, nil
	}
	if o.projected == nil {
		var err error
		if o.projected, err = rego.NewValue(o.template.projection.Project(o.review())); err != nil {
			return nil, err
		}
	}
	return o.projected, nil
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
	violations, err := c.evaluate(ctx, o)
	if err != nil {
		return failed(fmt.Errorf("template %s: %w", c.template.kind, err))
	}
	if len(violations) > 0 {
		return Verdict{Constraint: c, Outcome: Fail, Violations: violations}
	}
	return Verdict{Constraint: c, Outcome: Pass}
}

// evaluate returns what the constraint's program says of an object, or has said of
// one that looks the same to it.
func (c *Constraint) evaluate(ctx context.Context, o *Object) ([]Violation, error) {
	o.use(c.template)
	if c.template.repeats {
		o.scratch = memoKey(o.scratch[:0], c.number, o.key)
		if violations, ok := c.memo.get(o.scratch); ok {
			return violations, nil
		}
	}
	input, err := o.input()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, evaluationTimeout, fmt.Errorf("it took longer than %v", evaluationTimeout))
	defer cancel()
	found, err := c.template.program.Eval(ctx, input, c.parameters)
	if err != nil {
		return nil, err
	}
	var violations []Violation
	for _, v := range found {
		violations = append(violations, Violation(v))
	}
	if c.template.repeats {
		c.memo.put(o.scratch, violations)
	}
	return violations, nil
}
