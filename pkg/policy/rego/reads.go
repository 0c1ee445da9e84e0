package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// reads finds out what compiled modules read of two documents: the input and
// data.inventory. It follows aliases: of
// x := input.review.object.spec; y := x.hostPID only hostPID is read. A value is read
// as a whole where it is compared, given to a built-in function or made part of
// another value. What the analysis does not know reads everything.
//
// Texts are told apart as soon as something is done with them. What remains are those
// that are put into messages of violations as they are (reads_shown.go), and those of
// which the program asks no more than whether they are there.
//
// It is a fixed point over all rules: the values of variables, parameters and rules
// only grow, and so does what is read.
type reads struct {
	compiler *ast.Compiler
	root     *paths.Tree
	// inventory is what is read of data.inventory.
	inventory *paths.Tree
	rules     []*ruleReads
	byRule    map[*ast.Rule]*ruleReads
	// opaque is true if the analysis has given up.
	opaque bool
	// settled is true once values have stopped growing: what has none by then is not
	// known.
	settled bool
	// grown is true if something has become known since the round began.
	grown bool
}

// ruleReads is what is known of one rule or else branch.
type ruleReads struct {
	rule *ast.Rule
	vars map[ast.Var]*value
	*comparedVars
	// result is the value of a function or of a complete rule, of the elements of a
	// partial rule otherwise.
	result *value
	// arrays is how many array comprehensions the place under analysis is in.
	arrays int
	// element is the literal of a violation, if the rule is about violations.
	element *ast.Term
}

// documentReads returns what modules read of the input and of data.inventory.
func documentReads(compiler *ast.Compiler) (input, inventory *paths.Tree) {
	r := &reads{compiler: compiler, root: &paths.Tree{}, inventory: &paths.Tree{}, byRule: map[*ast.Rule]*ruleReads{}}
	for _, module := range compiler.Modules {
		for _, rule := range module.Rules {
			for ; rule != nil; rule = rule.Else {
				// The compiler may have one term in several places; the copy has them apart.
				own := rule.Copy()
				rr := &ruleReads{
					rule: own, vars: map[ast.Var]*value{}, result: &value{}, comparedVars: compared(compiler, own),
					element: violationElement(module, own),
				}
				r.rules = append(r.rules, rr)
				r.byRule[rule] = rr
			}
		}
	}
	for round := 0; ; round++ {
		r.grown = false
		for _, rr := range r.rules {
			if !r.opaque {
				r.analyze(rr)
			}
		}
		if r.opaque || round == maxRounds {
			r.root.ReadAll()
			r.inventory.ReadAll()
			return r.root, r.inventory
		}
		if !r.grown {
			if r.settled {
				return r.root, r.inventory
			}
			r.settled = true
		}
	}
}

func (r *reads) analyze(rr *ruleReads) {
	r.body(rr, rr.rule.Body)
	head := rr.rule.Head
	// All parts of the head but its name and its value are keys.
	for i, term := range head.Reference {
		if i > 0 {
			r.readAll(r.of(rr, term))
		}
	}
	for _, arg := range head.Args {
		if _, ok := arg.Value.(ast.Var); !ok {
			r.pattern(rr, arg)
			r.readAll(r.of(rr, arg))
		} else {
			r.follow(rr, arg)
		}
	}
	switch {
	case head.RuleKind() == ast.MultiValue:
		r.flow(rr.result, r.follow(rr, head.Key))
	case head.Value != nil:
		v := r.follow(rr, head.Value)
		if rr.iterates {
			r.readText(v) // it may give several texts, which are compared
		}
		if r.mayConflict(rr, v) {
			r.readAll(v)
		}
		r.flow(rr.result, v)
	}
}

// mayConflict tells whether a rule may give several values. Of these, the evaluator
// asks whether they are equal.
func (r *reads) mayConflict(rr *ruleReads, v *value) bool {
	if !r.settled {
		return false // it is not known yet what rules ask for
	}
	if !r.exclusive(r.compiler.GetRulesExact(rr.rule.Ref().GroundPrefix())) {
		return true
	}
	if !rr.iterates {
		return false
	}
	// What iterates may still give one part of the input only, or text.
	if len(v.nodes) > 1 || v.other || v.elements != nil {
		return true
	}
	for node := range v.nodes {
		if node.Several() {
			return true
		}
	}
	return false
}

func (r *reads) body(rr *ruleReads, body ast.Body) {
	for _, expr := range body {
		r.expr(rr, expr)
	}
}

func (r *reads) expr(rr *ruleReads, expr *ast.Expr) {
	if len(expr.With) > 0 {
		r.opaque = true
		return
	}
	switch terms := expr.Terms.(type) {
	case *ast.Term:
		r.follow(rr, terms) // asks whether it is there and not false
	case []*ast.Term:
		r.call(rr, terms)
	case *ast.Every:
		domain := r.follow(rr, terms.Domain)
		if terms.Key != nil {
			r.pattern(rr, terms.Key)
			if k, ok := terms.Key.Value.(ast.Var); ok && domain.elements != nil {
				r.flow(rr.variable(k), domain.elements)
			}
		}
		if v, ok := terms.Value.Value.(ast.Var); ok {
			r.flow(rr.variable(v), r.step(rr, domain, nil))
		} else {
			r.readAll(domain)
		}
		r.body(rr, terms.Body)
	case *ast.SomeDecl:
	default:
		r.opaque = true
	}
}

// variable returns the value of a variable of the rule.
func (rr *ruleReads) variable(v ast.Var) *value {
	if rr.vars[v] == nil {
		rr.vars[v] = &value{}
	}
	return rr.vars[v]
}

// of returns the value of a term, of which it makes a difference which text it is.
func (r *reads) of(rr *ruleReads, term *ast.Term) *value {
	v := r.follow(rr, term)
	r.readText(v)
	return v
}

// follow returns the value of a term, and enters what is read to get at it. Who calls it
// answers for what becomes of texts.
func (r *reads) follow(rr *ruleReads, term *ast.Term) *value {
	switch t := term.Value.(type) {
	case ast.String:
		return &value{strings: map[string]struct{}{string(t): {}}}
	case ast.Null, ast.Boolean, ast.Number:
		return &value{other: true}
	case ast.Var:
		if t.Equal(ast.InputRootDocument.Value) {
			return &value{nodes: map[*paths.Tree]struct{}{r.root: {}}}
		}
		v := rr.variable(t)
		if rr.compared[t] {
			r.readAll(v)
		}
		return v
	case ast.Ref:
		return r.ref(rr, t)
	case *ast.Array:
		out := &value{elements: &value{}, keyed: true}
		t.Foreach(func(e *ast.Term) { r.part(rr, out, e) })
		return out
	case ast.Set:
		out := &value{elements: &value{}, set: true}
		t.Foreach(func(e *ast.Term) { r.part(rr, out, e) })
		return out
	case ast.Object:
		if term == rr.element {
			return r.violation(rr, t)
		}
		out := &value{elements: &value{}, keyed: true}
		t.Foreach(func(k, e *ast.Term) {
			r.readAll(r.of(rr, k))
			r.part(rr, out, e)
		})
		return out
	case *ast.ArrayComprehension:
		rr.arrays++
		r.body(rr, t.Body)
		out := &value{elements: r.follow(rr, t.Term), keyed: true}
		rr.arrays--
		return out
	case *ast.SetComprehension:
		r.body(rr, t.Body)
		return &value{elements: r.follow(rr, t.Term), set: true}
	case *ast.ObjectComprehension:
		r.body(rr, t.Body)
		r.readAll(r.of(rr, t.Key))
		v := r.of(rr, t.Value)
		r.readAll(v) // of several values for one key, the evaluator asks whether they are equal
		return &value{elements: v, keyed: true}
	}
	r.opaque = true
	return &value{}
}

// part enters a term of a literal, which is read as a whole.
func (r *reads) part(rr *ruleReads, literal *value, term *ast.Term) {
	v := r.of(rr, term)
	r.readAll(v)
	r.merge(literal.elements, v, 1)
}

// pattern enters that the variables of a term get values that are not followed.
func (r *reads) pattern(rr *ruleReads, term *ast.Term) {
	ast.WalkTerms(term, func(t *ast.Term) bool {
		if v, ok := t.Value.(ast.Var); ok && !isInput(t) {
			r.flow(rr.variable(v), &value{other: true})
		}
		return false
	})
}

// bindParts enters that the variables of an array, object or set get values that are
// not followed.
func (r *reads) bindParts(rr *ruleReads, term *ast.Term) {
	switch term.Value.(type) {
	case *ast.Array, ast.Object, ast.Set:
		r.pattern(rr, term)
	}
}

// ref follows a reference into the input, a variable, or what a rule gives.
func (r *reads) ref(rr *ruleReads, ref ast.Ref) *value {
	if !ref[0].Equal(ast.DefaultRootDocument) {
		return r.steps(rr, r.follow(rr, ref[0]), ref[1:])
	}
	if len(ref) > 1 && isString(ref[1], "inventory") {
		return r.steps(rr, &value{nodes: map[*paths.Tree]struct{}{r.inventory: {}}}, ref[2:])
	}
	return r.rule(rr, ref)
}

// rule returns what a reference to rules stands for.
func (r *reads) rule(rr *ruleReads, ref ast.Ref) *value {
	if r.nested(ref) {
		r.opaque = true
		return &value{}
	}
	for n := len(ref); n > 1; n-- {
		rules := r.compiler.GetRulesExact(ref[:n].GroundPrefix())
		if len(rules) == 0 || len(ref[:n].GroundPrefix()) < n {
			continue
		}
		out := &value{}
		for _, rule := range rules {
			for ; rule != nil; rule = rule.Else {
				r.merge(out, r.document(rule), 0)
			}
		}
		return r.steps(rr, out, ref[n:])
	}
	r.opaque = true // a whole package, or one that is chosen by a variable
	return &value{}
}

// nested tells whether a reference leads to rules of which one is below another.
func (r *reads) nested(ref ast.Ref) bool {
	node := r.compiler.RuleTree
	found := false
	for _, step := range ref.GroundPrefix() {
		if node = node.Child(step.Value); node == nil {
			return false
		}
		if len(node.Values) > 0 {
			if found {
				return true
			}
			found = true
		}
	}
	if !found {
		return false
	}
	if len(node.Values) == 0 {
		return true
	}
	var below func(n *ast.TreeNode) bool
	below = func(n *ast.TreeNode) bool {
		for _, c := range n.Children {
			if len(c.Values) > 0 || below(c) {
				return true
			}
		}
		return false
	}
	return below(node)
}

// document is what a rule stands for as a whole.
func (r *reads) document(rule *ast.Rule) *value {
	known := r.byRule[rule]
	if known == nil {
		r.opaque = true
		return &value{}
	}
	out := known.result
	dynamic := len(rule.Head.Ref()) - len(rule.Head.Ref().GroundPrefix())
	if rule.Head.RuleKind() == ast.MultiValue {
		out = &value{elements: out, set: true}
	}
	for range dynamic {
		r.readAll(known.result)
		out = &value{elements: out, keyed: true}
	}
	return out
}

func (r *reads) steps(rr *ruleReads, v *value, steps []*ast.Term) *value {
	for _, step := range steps {
		v = r.step(rr, v, step)
	}
	return v
}

// step returns what is one step below a value. A nil step is any element.
func (r *reads) step(rr *ruleReads, v *value, step *ast.Term) *value {
	out := &value{nodes: map[*paths.Tree]struct{}{}, other: v.other}
	names, known := r.names(rr, v, step)
	for node := range v.nodes {
		switch {
		case node.Whole():
			out.nodes[node] = struct{}{} // all below it is read anyway
		case known:
			for name := range names {
				out.nodes[node.Field(name)] = struct{}{}
			}
		default:
			out.nodes[node.Each()] = struct{}{}
		}
	}
	if v.elements != nil {
		if v.set {
			if rr.arrays > 0 {
				// Elements of a set come in an order that depends on all that is in them.
				r.readAll(v.elements)
			}
			if step != nil {
				r.element(rr, v.elements, step)
			}
		}
		r.merge(out, v.elements, 0)
	}
	if step != nil {
		switch {
		case isScalar(step):
		case isVar(step):
			r.of(rr, step)
		default:
			r.bindParts(rr, step)
			r.readAll(r.of(rr, step))
		}
	}
	return out
}

// names returns the fields that a step can lead to; known is false if it can be any.
func (r *reads) names(rr *ruleReads, v *value, step *ast.Term) (names map[string]struct{}, known bool) {
	if step == nil {
		return nil, false
	}
	switch s := step.Value.(type) {
	case ast.String:
		return map[string]struct{}{string(s): {}}, true
	case ast.Var:
		if rr.keys[step] && (len(v.nodes) > 0 || v.keyed || v.other) {
			r.flow(rr.variable(s), &value{other: true}) // it is whatever fields there are
		}
		names, known = rr.variable(s).fieldNames()
		return names, known && (len(names) > 0 || !r.settled)
	}
	return nil, false
}

// element enters that a set is indexed: a variable gets the elements, everything
// else is compared with them.
func (r *reads) element(rr *ruleReads, elements *value, step *ast.Term) {
	if v, ok := step.Value.(ast.Var); ok {
		r.flow(rr.variable(v), elements)
		return
	}
	r.readAll(elements)
}
