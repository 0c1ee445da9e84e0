package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// exclusive tells whether at most one of several rules can hold: they ask for different
// texts in the same place of the input, as in
//
//	spec = input.review.object.spec { input.review.kind.kind == "Pod" }
//	spec = input.review.object.spec.template.spec { input.review.kind.kind == "Deployment" }
//
// or one asks for something that must not be there for the other, as in
//
//	message = input.parameters.message { input.parameters.message }
//	message = "it is bad" { not input.parameters.message }
func (r *reads) exclusive(rules []*ast.Rule) bool {
	all := make([]guards, len(rules))
	for i, rule := range rules {
		all[i] = r.guards(rule)
	}
	for i := range all {
		for j := range i {
			if !all[i].excludes(all[j]) && !all[j].excludes(all[i]) {
				return false
			}
		}
	}
	return true
}

// guards are what a rule asks for in places of the input.
type guards struct {
	// texts of which one must be in a place.
	texts map[string]map[string]struct{}
	// there and absent are the places where something must be, and neither be false nor
	// undefined, or must not.
	there, absent map[string]bool
}

func (r *reads) guards(rule *ast.Rule) guards {
	rr := r.byRule[rule]
	if rr == nil || rule.Else != nil {
		return guards{} // else is for when the guard does not hold
	}
	out := guards{texts: map[string]map[string]struct{}{}, there: map[string]bool{}, absent: map[string]bool{}}
	for _, expr := range rule.Body {
		if len(expr.With) > 0 {
			continue
		}
		if term, ok := expr.Terms.(*ast.Term); ok {
			if place, ok := inputPlace(term); ok && expr.Negated {
				out.absent[place] = true
			} else if ok {
				out.there[place] = true
			}
			continue
		}
		isEqual := expr.IsEquality() || expr.IsCall() && expr.Operator().String() == ast.Equal.Name
		if !isEqual || expr.Negated {
			continue
		}
		a, b := expr.Operand(0), expr.Operand(1)
		for range 2 {
			if place, ok := inputPlace(a); ok {
				if texts := rr.texts(b); len(texts) > 0 && out.texts[place] == nil {
					out.texts[place], out.there[place] = texts, true
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

// excludes tells whether there is a place in which the other rule cannot find what it
// asks for if this one does.
func (g guards) excludes(other guards) bool {
	for place := range g.there {
		if other.absent[place] {
			return true
		}
	}
	for place, texts := range g.texts {
		others, ok := other.texts[place]
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
