package policy

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
	"policy.example.io/policy-apiserver/pkg/policy/rego"
)

// regoProgram is a program in Rego.
type regoProgram struct {
	*rego.Program
	// projection is what the program reads of input.review.
	projection *paths.Projection
	// inventory is what it reads of data.inventory, nil if it does not refer to it.
	inventory *inventoryReads
	// repeats is true if the program says the same of objects that look the same to it,
	// and if different objects can.
	repeats bool
}

// newRegoProgram compiles a program. required are kinds that it reads in
// data.inventory, as far as its author says.
func newRegoProgram(source rego.Source, required []schema.GroupVersionKind) (*regoProgram, error) {
	p, err := rego.Compile(source)
	if err != nil {
		return nil, err
	}
	out := &regoProgram{
		Program:    p,
		projection: paths.NewProjection(p.Reads),
		repeats:    !p.Nondeterministic && !p.Reads.Reads("object", "metadata", "resourceVersion"),
	}
	if p.Inventory != nil {
		out.inventory = newInventoryReads(p.Inventory, required)
	}
	return out, nil
}

func (p *regoProgram) readsNamespace() bool { return p.Reads.Reads("namespaceObject") }

func (p *regoProgram) reads(object, namespace *paths.Tree) {
	if p.Nondeterministic {
		object.ReadAll() // with every change it may say something else
	}
	object.Add(p.Reads.Below("object"))
	namespace.Add(p.Reads.Below("namespaceObject"))
}

func (p *regoProgram) notes() []string {
	if !p.Reads.Whole() && p.Reads.Reads("userInfo") {
		return []string{"it reads input.review.userInfo, which is empty in an audit"}
	}
	return nil
}

func (p *regoProgram) bind(parameters any, m *memo, inventory *programInventory) (evaluator, error) {
	if parameters == nil {
		parameters = map[string]any{}
	}
	value, err := rego.NewValue(parameters)
	if err != nil {
		return nil, err
	}
	return &regoEvaluator{regoProgram: p, parameters: value, inventory: inventory, memo: m, number: m.constraints.Add(1)}, nil
}

// regoEvaluator is a program with the parameters of a constraint.
type regoEvaluator struct {
	*regoProgram
	parameters rego.Value
	// inventory is nil if the program does not read it.
	inventory *programInventory
	memo      *memo
	// number tells constraints apart in the memo.
	number uint64
}

// withInventory implements evaluator. An older Inventory would be kept in memory for as
// long as what the program reads of it stays the same.
func (e *regoEvaluator) withInventory(other evaluator) evaluator {
	o, ok := other.(*regoEvaluator)
	if !ok || e.inventory == nil || o.inventory == nil || e.inventory.Inventory == o.inventory.Inventory {
		return e
	}
	out := *e
	out.inventory = o.inventory
	return &out
}

// evaluate returns what the program says of an object, or has said of one that looks
// the same to it.
func (e *regoEvaluator) evaluate(ctx context.Context, o *Object) judgement {
	if e.inventory != nil && e.inventory.missing != "" {
		return judgement{outcome: Deferred, message: e.inventory.missing}
	}
	o.use(e.regoProgram)
	if e.repeats {
		o.scratch = memoKey(o.scratch[:0], e.number, o.key.Bytes)
		if violations, ok := e.memo.get(o.scratch); ok {
			return judged(e.show(violations, o.key.Texts))
		}
	}
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	violations, err := e.say(ctx, o, true)
	switch {
	case err != nil && len(o.key.Texts) > 0:
		violations, err = e.say(ctx, o, false) // an error has no placeholders
	case err == nil && e.repeats:
		e.memo.put(o.scratch, violations)
		violations = e.show(violations, o.key.Texts)
	}
	if err != nil {
		return failed(err)
	}
	return judged(violations)
}

// say evaluates the program on an object. hide tells whether there are placeholders in
// what it says.
func (e *regoEvaluator) say(ctx context.Context, o *Object, hide bool) ([]Violation, error) {
	input, err := o.input(hide)
	if err != nil {
		return nil, err
	}
	var inventory *rego.Inventory
	if e.inventory != nil {
		inventory = e.inventory.document()
	}
	found, err := e.Eval(ctx, input, e.parameters, inventory)
	if err != nil {
		return nil, err
	}
	var violations []Violation
	for _, v := range found {
		violations = append(violations, Violation(v))
	}
	return violations, nil
}

// show returns violations with the texts of an object in their messages. It does not
// modify the violations it is given.
func (p *regoProgram) show(violations []Violation, texts []string) []Violation {
	if len(violations) == 0 || len(texts) == 0 {
		return violations
	}
	out := make([]Violation, len(violations))
	for i, v := range violations {
		out[i] = Violation{Message: p.Show(v.Message, texts), Details: v.Details}
	}
	// Messages in which different texts were hidden can be the same.
	slices.SortFunc(out, func(a, b Violation) int {
		return cmp.Or(strings.Compare(a.Message, b.Message), bytes.Compare(a.Details, b.Details))
	})
	return slices.CompactFunc(out, func(a, b Violation) bool {
		return a.Message == b.Message && bytes.Equal(a.Details, b.Details)
	})
}

func judged(violations []Violation) judgement {
	if len(violations) == 0 {
		return judgement{outcome: Pass}
	}
	return judgement{outcome: Fail, violations: violations}
}

// use makes p the program that is evaluated.
func (o *Object) use(p *regoProgram) {
	if o.program == p {
		return
	}
	o.program, o.projected = p, nil
	o.key.Reset()
	if p.repeats {
		o.key.Bytes = append(o.key.Bytes, keyAsItIs)
		o.key.Append(p.projection, o.review())
		o.key.Bytes = shorten(o.key.Bytes)
	}
}

// input returns what the program in use reads of the review. hide tells whether there
// are placeholders for the texts that are only shown.
func (o *Object) input(hide bool) (rego.Value, error) {
	p := o.program
	var err error
	switch {
	case p.Reads.Whole():
		if o.whole == nil {
			o.whole, err = rego.NewValue(o.review())
		}
		return o.whole, err
	case len(o.key.Texts) > 0 && !hide:
		return rego.NewValue(p.projection.Project(o.review(), nil))
	case o.projected != nil:
	case len(o.key.Texts) > 0:
		o.projected, err = rego.NewValue(p.projection.Project(o.review(), p.Placeholder))
	default:
		o.projected, err = rego.NewValue(p.projection.Project(o.review(), nil))
	}
	return o.projected, err
}
