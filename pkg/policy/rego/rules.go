package rego

import (
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The rules of this file are Gatekeeper's for what a template may refer to.

// howToViolate says how the rule violation is written.
const howToViolate = `write violation[{"msg": msg}] { ... }, in Rego v1 violation contains {"msg": msg} if { ... }`

// checkTemplate checks the template module.
func checkTemplate(m *ast.Module) []error {
	errs := append(checkImports(m), checkData(m)...)
	if violationRule(m) == nil {
		errs = append(errs, fmt.Errorf("rego:1:1: the template has no rule violation; %s", howToViolate))
	}
	return errs
}

// violationRule returns the first rule violation, or nil. Rules with a longer name,
// such as violation.a, are others.
func violationRule(m *ast.Module) *ast.Rule {
	for _, rule := range m.Rules {
		if rule.Head.Name == "violation" {
			return rule
		}
	}
	return nil
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
		case ok && len(ref) >= 2 && ref[0].Equal(ast.DefaultRootDocument) && isString(ref[1], "lib"):
		case ok && len(ref) > 0 && ref[0].Value.Compare(ast.Var("rego")) == 0:
			errs = append(errs, at(imp.Location, `bad import %s: remove it and set code[].source.version: "v1"`, imp.Path))
		default:
			errs = append(errs, at(imp.Location, "bad import %s: only data.lib and future can be imported", imp.Path))
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

// readsClock are built-ins that ask for the time and are not marked as such: whether a
// certificate is valid depends on it.
var readsClock = map[string]bool{
	ast.CryptoX509ParseAndVerifyCertificates.Name:            true,
	ast.CryptoX509ParseAndVerifyCertificatesWithOptions.Name: true,
}

// inspect finds out what a program reads, and whether it says the same each time.
func (p *Program) inspect(template *ast.Module) {
	root, inventory := documentReads(p.compiler)
	p.Reads = root.Below("review")
	for _, rule := range template.Rules {
		// What is in a literal is known to be read. An element that is not one may be a
		// part of the input, of which msg and details are read.
		if rule.Head.Name == "violation" && (rule.Head.Key == nil || !isObject(rule.Head.Key)) {
			p.Reads.ReadAll()
			inventory.ReadAll()
		}
	}
	for _, module := range p.compiler.Modules {
		ast.WalkRefs(module, func(ref ast.Ref) bool {
			if ref[0].Equal(ast.DefaultRootDocument) && len(ref) > 1 && isString(ref[1], "inventory") {
				p.Inventory = inventory
			}
			if builtin := ast.BuiltinMap[ref.String()]; builtin != nil && (builtin.Nondeterministic || readsClock[builtin.Name]) {
				p.Nondeterministic = true
				p.network = p.network || reachesNetwork(builtin.Name)
			}
			return false
		})
	}
}

func isString(t *ast.Term, s string) bool {
	v, ok := t.Value.(ast.String)
	return ok && string(v) == s
}

func isObject(t *ast.Term) bool {
	_, ok := t.Value.(ast.Object)
	return ok
}

func at(loc *ast.Location, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if loc == nil {
		return fmt.Errorf("%s", text)
	}
	return fmt.Errorf("%s:%d:%d: %s", loc.File, loc.Row, loc.Col, text)
}
