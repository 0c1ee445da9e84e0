package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// exclusive tells whether at most one of several rules can hold: they ask for different
// texts in the same place of the input, as in
//
//	spec = input.review.object.spec { input.review.kind.kind == "Pod" }
//	spec = input.review.object.spec.template.spec { input.review.kind.kind == "Deployment" }
func (r *reads) exclusive(rules []*ast.Rule) bool {
	guards := make([]map[string]map[string]struct{}, len(rules))
	for i, rule := range rules {
		guards[i] = r.guards(rule)
	}
	for i := range guards {
		for j := range i {
			if !disjoint(guards[i], guards[j]) {
				return false
			}
		}
	}
	return true
}

// guards returns the texts that a rule asks for, by the place in the input.
func (r *reads) guards(rule *ast.Rule) map[string]map[string]struct{} {
	rr := r.byRule[rule]
	if rr == nil || rule.Else != nil {
		return nil // else is for when the guard does not hold
	}
	out := map[string]map[string]struct{}{}
	for _, expr := range rule.Body {
		isEqual := expr.IsEquality() || expr.IsCall() && expr.Operator().String() == ast.Equal.Name
		if !isEqual || expr.Negated || len(expr.With) > 0 {
			continue
		}
		a, b := expr.Operand(0), expr.Operand(1)
		for range 2 {
			if place, ok := inputPlace(a); ok {
				if texts := rr.texts(b); len(texts) > 0 && out[place] == nil {
					out[place] = texts
				}
			}
			a, b = b, a
		}
	}
	return out
}

// inputPlace returns the place of a reference into the input that is known.
func inputPlace(term *ast.Term) (string, bool) {
	ref, ok := term.Value.(ast.Ref)
	if !ok || !ref[0].Equal(ast.InputRootDocument) || !ref.IsGround() {
		return "", false
	}
	return ref.String(), true
}

// texts returns what a term can be, if that is one of a few texts.
func (rr *ruleReads) texts(term *ast.Term) map[string]struct{} {
	switch t := term.Value.(type) {
	case ast.String:
		return map[string]struct{}{string(t): {}}
	case ast.Var:
		if names, known := rr.variable(t).fieldNames(); known {
			return names
		}
	}
	return nil
}

// disjoint tells whether there is a place of which two rules ask for different texts.
func disjoint(a, b map[string]map[string]struct{}) bool {
	for place, texts := range a {
		others, ok := b[place]
		for text := range texts {
			if _, both := others[text]; both {
				ok = false
			}
		}
		if ok {
			return true
		}
	}
	return false
}
