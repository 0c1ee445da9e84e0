package rego

import (
	"errors"

	"github.com/open-policy-agent/opa/v1/ast"
)

// checkSelfContained refuses equalities by which a variable would be an element of
// itself, at whatever depth and through however many variables, if one of the values on
// the way is a set: the evaluator would make a set that contains itself, and end the
// process when it looks into it. Other values it compares part by part.
func checkSelfContained(compiler *ast.Compiler) error {
	var errs []error
	for _, module := range compiler.Modules {
		for _, rule := range module.Rules {
			for ; rule != nil; rule = rule.Else {
				if c := containmentsOf(rule).selfContained(); c != nil {
					errs = append(errs, at(c.expr.Location, "a value cannot be equal to one that contains it in a set; compare its elements"))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// containment says that a variable is equal to a term that has another one, or is it.
type containment struct {
	expr     *ast.Expr
	from, to ast.Var
	// set is true if there is a set around the variable.
	set bool
}

type containments []containment

// containmentsOf returns what the equalities of a rule say. The compiler has given
// variables of different scopes different names.
func containmentsOf(rule *ast.Rule) containments {
	var out containments
	ast.WalkExprs(rule, func(expr *ast.Expr) bool {
		if !expr.IsEquality() || len(expr.Operands()) != 2 {
			return false
		}
		out.add(expr, expr.Operand(0), expr.Operand(1))
		return false
	})
	return out
}

// add enters that two terms are equal. Arrays and objects are equal part by part.
func (c *containments) add(expr *ast.Expr, a, b *ast.Term) {
	switch x := a.Value.(type) {
	case *ast.Array:
		if y, ok := b.Value.(*ast.Array); ok {
			for i := range min(x.Len(), y.Len()) {
				c.add(expr, x.Elem(i), y.Elem(i))
			}
			return
		}
	case ast.Object:
		if y, ok := b.Value.(ast.Object); ok {
			x.Foreach(func(k, e *ast.Term) {
				if other := y.Get(k); other != nil {
					c.add(expr, e, other)
				}
			})
			return
		}
	}
	for _, side := range [][2]*ast.Term{{a, b}, {b, a}} {
		if from, ok := side[0].Value.(ast.Var); ok {
			variables(side[1], false, func(to ast.Var, set bool) {
				*c = append(*c, containment{expr: expr, from: from, to: to, set: set})
			})
		}
	}
}

// variables calls fn for the variables of literals, and tells whether there is a set
// around them.
func variables(term *ast.Term, set bool, fn func(v ast.Var, set bool)) {
	part := func(e *ast.Term) { variables(e, set, fn) }
	switch t := term.Value.(type) {
	case ast.Var:
		fn(t, set)
	case ast.Set:
		set = true
		t.Foreach(part)
	case *ast.Array:
		t.Foreach(part)
	case ast.Object:
		t.Foreach(func(k, e *ast.Term) { part(k); part(e) })
	}
}

// selfContained returns a containment in a set by which a variable contains itself, nil
// if there is none.
func (c containments) selfContained() *containment {
	next := map[ast.Var][]ast.Var{}
	for i := range c {
		next[c[i].from] = append(next[c[i].from], c[i].to)
	}
	for i := range c {
		if c[i].set && leads(next, c[i].to, c[i].from, map[ast.Var]bool{}) {
			return &c[i]
		}
	}
	return nil
}

// leads tells whether there is a way from one variable to another.
func leads(next map[ast.Var][]ast.Var, from, to ast.Var, seen map[ast.Var]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	for _, v := range next[from] {
		if leads(next, v, to, seen) {
			return true
		}
	}
	return false
}
