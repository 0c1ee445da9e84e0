package rego

import (
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The rules of this file are Gatekeeper's for what a template may refer to.

// checkTemplate checks the template module.
func checkTemplate(m *ast.Module) []error {
	errs := append(checkImports(m), checkData(m)...)
	for _, rule := range m.Rules {
		head := rule.Head
		if ref := head.Ref(); len(ref) > 0 && ref[0].Value.Compare(ast.Var("violation")) == 0 && len(head.Args) == 0 && head.RuleKind() == ast.MultiValue {
			return errs
		}
	}
	return append(errs, fmt.Errorf(`rego:1:1: the template has no rule violation; write violation[{"msg": msg}] { ... }, in Rego v1 violation contains {"msg": msg} if { ... }`))
}

// checkLib checks a library module.
func checkLib(m *ast.Module) []error {
	errs := append(checkImports(m), checkData(m)...)
	path := m.Package.Path
	if len(path) < 3 || !isString(path[1], "lib") {
		errs = append(errs, at(m.Package.Location, "package %s: a library must be in a package below data.lib, such as package lib.helpers", packageName(path)))
	}
	return errs
}

func packageName(path ast.Ref) string { return strings.TrimPrefix(path.String(), "data.") }

func checkImports(m *ast.Module) []error {
	var errs []error
	for _, imp := range m.Imports {
		ref, ok := imp.Path.Value.(ast.Ref)
		switch {
		case ok && len(ref) >= 2 && ref[0].Value.Compare(ast.Var("future")) == 0:
		case ok && len(ref) >= 3 && ref[0].Equal(ast.DefaultRootDocument) && isString(ref[1], "lib"):
		case ok && len(ref) > 0 && ref[0].Value.Compare(ast.Var("rego")) == 0:
			errs = append(errs, at(imp.Location, `bad import %s: remove it and set code[].source.version: "v1"`, imp.Path))
		default:
			errs = append(errs, at(imp.Location, "bad import %s: only data.lib.* and future.* can be imported", imp.Path))
		}
	}
	return errs
}

// checkData checks that nothing but libraries and the inventory is read of data.
func checkData(m *ast.Module) []error {
	var errs []error
	visit := func(ref ast.Ref) bool {
		if len(ref) == 0 || !ref[0].Equal(ast.DefaultRootDocument) {
			return false
		}
		if len(ref) < 2 || !isString(ref[1], "lib") && !isString(ref[1], "inventory") {
			errs = append(errs, at(ref[0].Location, "bad reference %s: only data.lib.* and data.inventory.* can be read", ref))
		}
		return false
	}
	for _, rule := range m.Rules {
		ast.WalkRefs(rule, visit)
	}
	return errs
}

// inspect finds out what a program reads, and whether it says the same each time.
func (p *Program) inspect() {
	p.Reads = inputReads(p.compiler).Field("review")
	for _, module := range p.compiler.Modules {
		ast.WalkRefs(module, func(ref ast.Ref) bool {
			if ref[0].Equal(ast.DefaultRootDocument) && len(ref) > 1 && isString(ref[1], "inventory") {
				p.ReadsInventory = true
			}
			if builtin := ast.BuiltinMap[ref.String()]; builtin != nil && builtin.Nondeterministic {
				p.Nondeterministic = true
			}
			return false
		})
	}
}

func isString(t *ast.Term, s string) bool {
	v, ok := t.Value.(ast.String)
	return ok && string(v) == s
}

func at(loc *ast.Location, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if loc == nil {
		return fmt.Errorf("%s", text)
	}
	return fmt.Errorf("%s:%d:%d: %s", loc.File, loc.Row, loc.Col, text)
}
