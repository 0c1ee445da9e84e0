package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// shapeOnly are built-in functions that ask for no more than the type of their
// argument.
var shapeOnly = map[string]struct{}{
	ast.IsArray.Name: {}, ast.IsBoolean.Name: {}, ast.IsNull.Name: {}, ast.IsNumber.Name: {},
	ast.IsObject.Name: {}, ast.IsSet.Name: {}, ast.IsString.Name: {}, ast.TypeNameBuiltin.Name: {},
}

// comparisons are built-in functions that look no further than the type of an object
// or array when they compare it with a string, number, boolean or null.
var comparisons = map[string]struct{}{
	ast.Equal.Name: {}, ast.NotEqual.Name: {}, ast.LessThan.Name: {}, ast.LessThanEq.Name: {},
	ast.GreaterThan.Name: {}, ast.GreaterThanEq.Name: {},
}

// call analyses an expression of an operator and its arguments, behind which there
// may be a term for the outcome.
func (r *reads) call(rr *ruleReads, terms []*ast.Term) {
	operator, ok := terms[0].Value.(ast.Ref)
	if !ok {
		r.opaque = true
		return
	}
	name, args := operator.String(), terms[1:]
	if name == ast.Equality.Name && len(args) == 2 {
		r.unify(rr, args[0], args[1])
		return
	}
	if rules := r.compiler.GetRulesExact(operator); len(rules) > 0 {
		r.function(rr, rules, args)
		return
	}
	builtin := ast.BuiltinMap[name]
	if builtin == nil {
		r.opaque = true
		return
	}
	var out *ast.Term
	if n := builtin.Decl.Arity(); len(args) > n {
		out, args = args[n], args[:n]
	}
	result := r.builtin(rr, name, args)
	if out != nil {
		r.assign(rr, out, result)
	}
}

func (r *reads) builtin(rr *ruleReads, name string, args []*ast.Term) *value {
	if _, ok := shapeOnly[name]; ok {
		for _, arg := range args {
			r.follow(rr, arg)
		}
		return &value{other: true}
	}
	if _, ok := comparisons[name]; ok && len(args) == 2 && (isScalar(args[0]) || isScalar(args[1])) {
		for _, arg := range args {
			r.of(rr, arg)
		}
		return &value{other: true}
	}
	switch {
	case name == ast.Count.Name && len(args) == 1:
		v := r.of(rr, args[0])
		for node := range v.nodes {
			if !node.Whole() {
				node.Each()
			}
		}
		r.readAll(v.elements)
		return &value{other: true}
	case name == ast.ObjectGet.Name && len(args) == 3:
		if steps, ok := r.path(rr, args[1]); ok {
			out := &value{}
			r.merge(out, r.get(rr, r.follow(rr, args[0]), steps), 0)
			r.merge(out, r.follow(rr, args[2]), 0)
			return out
		}
	case name == ast.Sprintf.Name && len(args) == 2:
		if shows, ok := verbsThatShow(args); ok {
			return r.textOf(rr, args[1].Value.(*ast.Array), shows)
		}
	case name == ast.Concat.Name && len(args) == 2:
		if array, ok := args[1].Value.(*ast.Array); ok && isScalar(args[0]) {
			return r.textOf(rr, array, nil)
		}
	}
	for _, arg := range args {
		r.readAll(r.of(rr, arg))
	}
	return &value{other: true}
}

// path returns the keys that object.get follows, if it is known how many there are.
func (r *reads) path(rr *ruleReads, term *ast.Term) ([]*ast.Term, bool) {
	switch t := term.Value.(type) {
	case ast.String:
		return []*ast.Term{term}, true
	case ast.Var:
		// If it is no text, it may be a list of keys.
		names, known := rr.variable(t).fieldNames()
		return []*ast.Term{term}, known && (len(names) > 0 || !r.settled)
	case *ast.Array:
		ok := true
		var steps []*ast.Term
		t.Foreach(func(e *ast.Term) {
			steps = append(steps, e)
			ok = ok && (isScalar(e) || isVar(e) && !isInput(e))
		})
		return steps, ok
	}
	return nil, false
}

// get follows keys, of which none gets its value there.
func (r *reads) get(rr *ruleReads, v *value, keys []*ast.Term) *value {
	for _, key := range keys {
		if v.set {
			r.readAll(v)
		}
		v = r.step(rr, v, key)
	}
	return v
}

func isScalar(term *ast.Term) bool {
	switch term.Value.(type) {
	case ast.String, ast.Number, ast.Boolean, ast.Null:
		return true
	}
	return false
}

// function analyses a call of rules of the program.
func (r *reads) function(rr *ruleReads, rules []*ast.Rule, args []*ast.Term) {
	out := &value{}
	arity := len(rules[0].Head.Args)
	if len(args) < arity {
		r.opaque = true
		return
	}
	for i, arg := range args[:arity] {
		v := r.follow(rr, arg)
		for _, rule := range rules {
			for ; rule != nil; rule = rule.Else {
				callee := r.byRule[rule]
				if callee == nil || len(rule.Head.Args) != arity {
					r.opaque = true
					return
				}
				switch parameter := rule.Head.Args[i]; {
				case isScalar(parameter):
					r.readText(v)
				case isVar(parameter):
					r.flow(callee.variable(parameter.Value.(ast.Var)), v)
				default:
					r.readAll(v)
				}
			}
		}
	}
	for _, rule := range rules {
		for ; rule != nil; rule = rule.Else {
			r.merge(out, r.byRule[rule].result, 0)
		}
	}
	if len(args) > arity {
		r.assign(rr, args[arity], out)
	}
}

func isVar(term *ast.Term) bool {
	_, ok := term.Value.(ast.Var)
	return ok
}

// unify analyses a = b, which binds or compares.
func (r *reads) unify(rr *ruleReads, a, b *ast.Term) {
	r.bindParts(rr, a)
	r.bindParts(rr, b)
	switch {
	case isScalar(a) && !isVar(b):
		r.of(rr, b)
	case isScalar(b) && !isVar(a):
		r.of(rr, a)
	case isVar(a) && !isInput(a):
		r.assign(rr, a, r.follow(rr, b))
		if isVar(b) && !isInput(b) {
			r.assign(rr, b, r.follow(rr, a))
		}
	default:
		r.assign(rr, b, r.follow(rr, a))
	}
	// A variable and a text may be compared: that the variable has a value is not known.
	if isScalar(a) || isScalar(b) {
		r.of(rr, a)
		r.of(rr, b)
	}
}

func isInput(term *ast.Term) bool { return term.Equal(ast.InputRootDocument) }

// assign gives a variable a value. Anything else is compared with it.
func (r *reads) assign(rr *ruleReads, to *ast.Term, v *value) {
	switch {
	case isScalar(to):
		r.readText(v)
	case rr.rebinds[to]:
		r.readText(v)
		if names, known := rr.variable(to.Value.(ast.Var)).fieldNames(); !known || r.settled && len(names) == 0 {
			r.readAll(v)
		} // else it is compared with a text, which looks no further than the type
		r.of(rr, to)
	case isVar(to) && !isInput(to):
		r.flow(rr.variable(to.Value.(ast.Var)), v)
		r.follow(rr, to)
	default:
		r.pattern(rr, to)
		r.readAll(v)
		r.readAll(r.of(rr, to))
	}
}
