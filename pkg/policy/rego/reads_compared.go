package rego

import (
	"maps"

	"github.com/open-policy-agent/opa/v1/ast"
)

// compared returns the variables of a rule that may have a value already where they
// could get one: there, values are compared. The compiler has put the expressions of
// a body into an order in which variables get their values before they are used.
func compared(compiler *ast.Compiler, rule *ast.Rule) *comparedVars {
	c := &comparedVars{compiler: compiler, seen: map[ast.Var]bool{}, compared: map[ast.Var]bool{}, keys: map[*ast.Term]bool{}, rebinds: map[*ast.Term]bool{}}
	for _, arg := range rule.Head.Args {
		c.binds(arg)
	}
	c.body(rule.Body)
	c.parts(rule.Head)
	return c
}

type comparedVars struct {
	compiler *ast.Compiler
	// seen are variables that have a value.
	seen map[ast.Var]bool
	// compared are variables that may be compared with other values.
	compared map[ast.Var]bool
	// keys are the indices of references where variables get their values.
	keys map[*ast.Term]bool
	// rebinds are the variables in places where they could get a value and have one.
	rebinds map[*ast.Term]bool
	// closures is how many comprehensions and every the place under analysis is in.
	closures int
	// iterates is true if the body may hold in several ways.
	iterates bool
}

// binds enters that the variables in a term get values, or are compared.
func (c *comparedVars) binds(term *ast.Term) {
	ast.WalkTerms(term, func(t *ast.Term) bool {
		if v, ok := t.Value.(ast.Var); ok {
			if c.seen[v] {
				c.compared[v], c.rebinds[t] = true, true
			}
			c.seen[v] = true
		}
		return false
	})
}

func (c *comparedVars) body(body ast.Body) {
	for _, expr := range body {
		switch terms := expr.Terms.(type) {
		case *ast.Every:
			c.parts(terms.Domain)
			c.closure(func() {
				if terms.Key != nil {
					c.binds(terms.Key)
				}
				c.binds(terms.Value)
				c.body(terms.Body)
			})
		case *ast.Term:
			c.parts(terms)
		case []*ast.Term:
			for _, term := range terms[1:] {
				c.parts(term)
			}
			c.call(terms)
		}
	}
}

// parts enters the indices of references and the bodies of comprehensions in x.
func (c *comparedVars) parts(x any) {
	ast.WalkTerms(x, func(term *ast.Term) bool {
		switch t := term.Value.(type) {
		case ast.Ref:
			for _, step := range t[1:] {
				if isVar(step) {
					if !c.seen[step.Value.(ast.Var)] {
						c.keys[step] = true
						c.iterates = c.iterates || c.closures == 0
					}
					c.binds(step)
				} else if bindsParts(step) {
					c.iterates = c.iterates || c.closures == 0
					c.binds(step)
				}
			}
		case *ast.ArrayComprehension:
			c.closure(func() { c.body(t.Body); c.parts(t.Term) })
			return true
		case *ast.SetComprehension:
			c.closure(func() { c.body(t.Body); c.parts(t.Term) })
			return true
		case *ast.ObjectComprehension:
			c.closure(func() { c.body(t.Body); c.parts(t.Key); c.parts(t.Value) })
			return true
		}
		return false
	})
}

// closure analyses what has variables of its own.
func (c *comparedVars) closure(f func()) {
	outer := maps.Clone(c.seen)
	c.closures++
	f()
	c.closures--
	c.seen = outer
}

func (c *comparedVars) call(terms []*ast.Term) {
	args := bindingTerms(c.compiler, terms)
	if op, ok := terms[0].Value.(ast.Ref); ok {
		if b := ast.BuiltinMap[op.String()]; b != nil && b.Relation && c.closures == 0 {
			c.iterates = true
		}
	}
	if len(args) == 2 && (isScalar(args[0]) || isScalar(args[1])) {
		return // a comparison, if any, looks no further than the type
	}
	if len(args) == 2 && isVar(args[0]) && isVar(args[1]) {
		a, b := args[0].Value.(ast.Var), args[1].Value.(ast.Var)
		if !c.seen[a] || !c.seen[b] {
			c.seen[a], c.seen[b] = true, true // one is another name of the other
			return
		}
	}
	for i := range args {
		if v, ok := args[i].Value.(ast.Var); ok && len(args) == 2 && !c.seen[v] && c.made(args[1-i]) {
			c.seen[v] = true // it is the name of something that the program makes
			return
		}
	}
	for _, term := range args {
		if bindsParts(term) {
			c.binds(term)
		}
	}
}

// made tells whether a term is an array, object or set of things that have a value.
func (c *comparedVars) made(term *ast.Term) bool {
	if isVar(term) || !bindsParts(term) {
		return false
	}
	made := true
	ast.WalkVars(term, func(v ast.Var) bool {
		made = made && c.seen[v]
		return false
	})
	return made
}

// bindingTerms are the arguments of an expression that it may bind: both sides of an
// equality, and the outcome of a function.
func bindingTerms(compiler *ast.Compiler, terms []*ast.Term) []*ast.Term {
	operator, ok := terms[0].Value.(ast.Ref)
	if !ok {
		return terms[1:]
	}
	args := terms[1:]
	name := operator.String()
	if name == ast.Equality.Name {
		return args
	}
	arity := len(args)
	if rules := compiler.GetRulesExact(operator); len(rules) > 0 {
		arity = len(rules[0].Head.Args)
	} else if builtin := ast.BuiltinMap[name]; builtin != nil {
		arity = builtin.Decl.Arity()
	}
	if arity >= len(args) {
		return nil
	}
	return args[arity:]
}

// bindsParts tells whether the variables in a term get their values from it: those of
// patterns do, those of references and comprehensions do not.
func bindsParts(term *ast.Term) bool {
	switch term.Value.(type) {
	case ast.Var, *ast.Array, ast.Object, ast.Set:
		return true
	}
	return false
}
