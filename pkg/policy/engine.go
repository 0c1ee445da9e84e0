package policy

import (
	"context"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// rule is what a constraint asks of objects, in one of the families of policies.
type rule interface {
	// selectsKind tells whether objects of a kind can match.
	selectsKind(k Kind) bool
	// selectsGroup tells whether objects of some kind of an API group can match.
	selectsGroup(group string) bool
	// names tells whether a kind that can match is named, and not only selected by a
	// wildcard.
	names(k Kind) bool
	// reads adds what judging an object of a kind may read of it and of its Namespace,
	// besides names, kinds and uid.
	reads(k Kind, object, namespace *paths.Tree)
	// judge judges an object.
	judge(ctx context.Context, o *Object) judgement
}

// judgement is a Verdict without its constraint.
type judgement struct {
	outcome    Outcome
	violations []Violation
	message    string
	action     string // "" for the constraint's
	reason     string
}

func notMatched(reason string) judgement { return judgement{reason: reason} }

func failed(err error) judgement { return judgement{outcome: Error, message: err.Error()} }

// program is the program of a template, in one of the engines.
type program interface {
	// readsNamespace tells whether what the program says may depend on the object's
	// Namespace.
	readsNamespace() bool
	// reads adds what the program may read of an object and of its Namespace.
	reads(object, namespace *paths.Tree)
	// notes say what an administrator should know about the program.
	notes() []string
	// bind returns what judges objects by the program and the parameters of a
	// constraint; these are nil if it has none. inventory is nil unless it is asked for.
	bind(parameters any, m *memo, inventory *programInventory) (evaluator, error)
}

// evaluator evaluates a program with the parameters of a constraint, in bounded time.
type evaluator interface {
	evaluate(ctx context.Context, o *Object) judgement
	// withInventory returns the evaluator with what another one of the same program has
	// of data.inventory, in which the program reads the same.
	withInventory(other evaluator) evaluator
}
