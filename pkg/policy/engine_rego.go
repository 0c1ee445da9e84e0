package policy

import (
	"context"

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

// evaluate returns what the program says of an object, or has said of one that looks
// the same to it.
func (e *regoEvaluator) evaluate(ctx context.Context, o *Object) judgement {
	if e.inventory != nil && e.inventory.missing != "" {
		return judgement{outcome: Deferred, message: e.inventory.missing}
	}
	o.use(e.regoProgram)
	if e.repeats {
		o.scratch = memoKey(o.scratch[:0], e.number, o.key)
		if violations, ok := e.memo.get(o.scratch); ok {
			return judged(violations)
		}
	}
	input, err := o.input()
	if err != nil {
		return failed(err)
	}
	var inventory *rego.Inventory
	if e.inventory != nil {
		inventory = e.inventory.document()
	}
	found, err := e.Eval(ctx, input, e.parameters, inventory)
	if err != nil {
		return failed(err)
	}
	var violations []Violation
	for _, v := range found {
		violations = append(violations, Violation(v))
	}
	if e.repeats {
		e.memo.put(o.scratch, violations)
	}
	return judged(violations)
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
	o.program, o.projected, o.key = p, nil, o.key[:0]
	if p.repeats {
		o.key = shorten(p.projection.AppendKey(o.key, o.review()))
	}
}

// input returns what the program in use reads of the review.
func (o *Object) input() (rego.Value, error) {
	var err error
	if o.program.Reads.Whole() {
		if o.whole == nil {
			o.whole, err = rego.NewValue(o.review())
		}
		return o.whole, err
	}
	if o.projected == nil {
		o.projected, err = rego.NewValue(o.program.projection.Project(o.review()))
	}
	return o.projected, err
}
