package rego

import (
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// This file is about texts that are only shown: of msg := sprintf("pod %v", [name]) in a
// message, the program says the same of all names but for the name.

// violationElement returns the literal of the rule violation of the template that is
// written out in the head, nil if there is none. The compiler may have moved it to the
// body.
func violationElement(module *ast.Module, rule *ast.Rule) *ast.Term {
	head := rule.Head
	if head.Name != "violation" || len(head.Ref()) != 1 || head.RuleKind() != ast.MultiValue ||
		!module.Package.Path.Equal(ast.Ref{ast.DefaultRootDocument, ast.InternedTerm(templatePackage)}) {
		return nil
	}
	if isObject(head.Key) {
		return head.Key
	}
	for _, expr := range rule.Body {
		if expr.IsEquality() && len(expr.Operands()) == 2 && isVar(head.Key) && expr.Operand(0).Equal(head.Key) && isObject(expr.Operand(1)) {
			return expr.Operand(1)
		}
	}
	return nil
}

// violation analyses an element of the rule violation. Its msg is only shown; if it is
// no text, it is in the error.
func (r *reads) violation(rr *ruleReads, element ast.Object) *value {
	out := &value{elements: &value{}, keyed: true}
	element.Foreach(func(k, e *ast.Term) {
		r.readAll(r.of(rr, k))
		if isString(k, string(varMsg)) {
			r.merge(out.elements, r.show(r.follow(rr, e)), 1)
		} else {
			r.part(rr, out, e)
		}
	})
	return out
}

// textOf analyses the making of a text of terms. Those at places where shows is false
// are not only shown; nil is true for all.
func (r *reads) textOf(rr *ruleReads, terms *ast.Array, shows []bool) *value {
	out := &value{other: true}
	for i := range terms.Len() {
		if shows != nil && !shows[i] {
			r.readAll(r.of(rr, terms.Elem(i)))
			continue
		}
		r.merge(out, r.show(r.follow(rr, terms.Elem(i))), 0)
	}
	return out
}

// verbsThatShow tells which arguments of a sprintf are put into the text as they are if
// they are texts: those of %v and %s without flags or a width. ok is false if it is not
// known which argument goes where.
func verbsThatShow(args []*ast.Term) (shows []bool, ok bool) {
	format, isText := args[0].Value.(ast.String)
	array, isArray := args[1].Value.(*ast.Array)
	if !isText || !isArray {
		return nil, false
	}
	rest := string(format)
	for {
		_, after, found := strings.Cut(rest, "%")
		if !found {
			return shows, len(shows) == array.Len()
		}
		switch verb := strings.TrimLeft(after, "+-# 0123456789."); {
		case verb == "":
			return nil, false
		case verb[0] == '%' && verb == after:
			rest = after[1:]
		case 'a' <= verb[0]|0x20 && verb[0]|0x20 <= 'z':
			shows = append(shows, verb == after && (verb[0] == 'v' || verb[0] == 's'))
			rest = verb[1:]
		default:
			return nil, false // "%[2]v", "%*d"
		}
	}
}
