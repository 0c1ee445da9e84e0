package rego

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Violation is an element of a program's violation set.
type Violation struct {
	Message string
	// Details as JSON, nil if there are none.
	Details []byte
}

// Value is a converted document that evaluations share.
type Value = *ast.Term

// NewValue converts a document of maps, slices, strings, numbers, booleans and
// nil. The document must not be modified any more.
func NewValue(document any) (Value, error) {
	v, err := ast.InterfaceToValue(document)
	if err != nil {
		return nil, fmt.Errorf("convert document: %w", err)
	}
	return ast.NewTerm(v), nil
}

var (
	keyReview     = ast.StringTerm("review")
	keyParameters = ast.StringTerm("parameters")
)

// Variables of what is evaluated.
const (
	varMsg     = ast.Var("msg")
	varDetails = ast.Var("details")
)

// Eval evaluates the program. A failing built-in is undefined, as in Gatekeeper, unless it
// is one that reaches the network: what was not reached is not clean.
// The violations are sorted and without duplicates; elements of violation without
// msg are left out, as in Gatekeeper. The error says where in the program
// evaluation failed. inventory is nil if there is none.
func (p *Program) Eval(ctx context.Context, review, parameters Value, inventory *Inventory) (violations []Violation, err error) {
	defer func() {
		// A fault of the evaluator costs this evaluation only.
		if r := recover(); r != nil {
			violations, err = nil, fmt.Errorf("evaluation panicked: %v", r)
		}
	}()
	cancel := topdown.NewCancel()
	defer context.AfterFunc(ctx, cancel.Cancel)()
	if inventory == nil {
		inventory = NewInventory(nil)
	}
	var failures []topdown.Error
	err = storage.Txn(ctx, inventory.store, storage.TransactionParams{}, func(txn storage.Transaction) error {
		query := topdown.NewQuery(p.query)
		if p.network {
			query = query.WithBuiltinErrorList(&failures)
		}
		return query.
			WithCompiler(p.compiler).
			WithStore(inventory.store).
			WithTransaction(txn).
			WithCancel(cancel).
			WithInput(ast.ObjectTerm(ast.Item(keyReview, review), ast.Item(keyParameters, parameters))).
			Iter(ctx, func(result topdown.QueryResult) error {
				violation, err := newViolation(result[varMsg], result[varDetails])
				if err == nil {
					violations = append(violations, *violation)
				}
				return err
			})
	})
	if err != nil {
		return nil, p.evalError(ctx, err)
	}
	for i := range failures {
		if name, _, _ := strings.Cut(failures[i].Message, ":"); reachesNetwork(name) {
			return nil, p.evalError(ctx, &failures[i])
		}
	}
	return distinct(violations), nil
}

func newViolation(msg, details *ast.Term) (*Violation, error) {
	text, ok := msg.Value.(ast.String)
	if !ok {
		return nil, fmt.Errorf("msg of a violation is a %s, want a string: %s", ast.ValueName(msg.Value), msg)
	}
	violation := &Violation{Message: string(text)}
	if o, ok := details.Value.(ast.Object); ok && o.Len() == 0 {
		return violation, nil
	}
	document, err := ast.JSON(details.Value)
	if err != nil {
		return nil, fmt.Errorf("details of a violation: %w", err)
	}
	if violation.Details, err = json.Marshal(document); err != nil {
		return nil, fmt.Errorf("details of a violation: %w", err)
	}
	return violation, nil
}

// distinct sorts violations and removes duplicates.
func distinct(violations []Violation) []Violation {
	sort.Slice(violations, func(i, j int) bool {
		if violations[i].Message != violations[j].Message {
			return violations[i].Message < violations[j].Message
		}
		return string(violations[i].Details) < string(violations[j].Details)
	})
	out := violations[:0]
	for i := range violations {
		if i == 0 || violations[i].Message != violations[i-1].Message || string(violations[i].Details) != string(violations[i-1].Details) {
			out = append(out, violations[i])
		}
	}
	return out
}

func (p *Program) evalError(ctx context.Context, err error) error {
	var e *topdown.Error
	switch {
	case topdown.IsCancel(err) && context.Cause(ctx) != nil:
		return fmt.Errorf("evaluation was stopped: %w", context.Cause(ctx))
	case errors.As(err, &e) && e.Location != nil:
		return fmt.Errorf("%s:%d:%d: %s: %s", e.Location.File, e.Location.Row, e.Location.Col, e.Code, p.inAuthorsPackage(e.Message))
	}
	return err
}
