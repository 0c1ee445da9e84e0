package rego

import (
	"errors"
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// Source of a program.
type Source struct {
	// Rego is the template module.
	Rego string
	// Libs are the library modules.
	Libs []string
	// V1 is true for Rego v1 and false for v0.
	V1 bool
}

// Program is a compiled program. It is immutable and may be evaluated by any
// number of goroutines.
type Program struct {
	compiler *ast.Compiler
	query    ast.Body
	store    storage.Store
	// ReadsInventory is true if the program refers to data.inventory.
	ReadsInventory bool
	// Nondeterministic is true if the program uses built-ins whose answer depends on
	// more than their arguments, such as the clock.
	Nondeterministic bool
	// Reads is what the program reads of input.review.
	Reads *paths.Tree
}

// templatePackage is where template modules are put, whatever package they name.
const templatePackage = "policy_template"

// forbiddenBuiltins reach beyond the input: to the network, or to the environment
// of the server.
var forbiddenBuiltins = []string{"http.send", "net.lookup_ip_addr", "opa.runtime", "rego.parse_module"}

// ForbiddenBuiltins returns the built-in functions that programs may not use.
func ForbiddenBuiltins() []string { return append([]string(nil), forbiddenBuiltins...) }

// capabilities are those of OPA without the forbidden built-ins.
func capabilities() *ast.Capabilities {
	caps := ast.CapabilitiesForThisVersion()
	kept := caps.Builtins[:0]
	for _, b := range caps.Builtins {
		if !contains(forbiddenBuiltins, b.Name) {
			kept = append(kept, b)
		}
	}
	caps.Builtins = kept
	return caps
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// Compile compiles a program. Errors name module, line and column, and say what
// to do where that is known.
func Compile(src Source) (*Program, error) {
	options := ast.ParserOptions{RegoVersion: ast.RegoV0, Capabilities: capabilities()}
	if src.V1 {
		options.RegoVersion = ast.RegoV1
	}
	p := &Program{store: inmem.New()}
	modules := map[string]*ast.Module{}
	var errs []error
	module, err := ast.ParseModuleWithOpts("rego", src.Rego, options)
	if err != nil {
		errs = append(errs, explain(err, src.V1))
	} else {
		errs = append(errs, checkTemplate(module)...)
		module.Package.Path = ast.Ref{ast.DefaultRootDocument, ast.InternedTerm(templatePackage)}
		modules["rego"] = module
	}
	for i, text := range src.Libs {
		name := fmt.Sprintf("libs[%d]", i)
		lib, err := ast.ParseModuleWithOpts(name, text, options)
		if err != nil {
			errs = append(errs, explain(err, src.V1))
			continue
		}
		errs = append(errs, checkLib(lib)...)
		modules[name] = lib
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p.compiler = ast.NewCompiler().WithCapabilities(options.Capabilities)
	if p.compiler.Compile(modules); p.compiler.Failed() {
		return nil, explain(p.compiler.Errors, src.V1)
	}
	p.inspect()
	query, err := ast.ParseBodyWithOpts(fmt.Sprintf("result = data.%s.violation", templatePackage), options)
	if err != nil {
		return nil, fmt.Errorf("parse the query: %w", err)
	}
	if p.query, err = p.compiler.QueryCompiler().Compile(query); err != nil {
		return nil, fmt.Errorf("compile the query: %w", err)
	}
	return p, nil
}

// explain puts the errors of OPA into one line each, with what to do about common
// ones.
func explain(err error, v1 bool) error {
	var list ast.Errors
	if !errors.As(err, &list) {
		return err
	}
	var out []error
	for _, e := range list {
		text := fmt.Sprintf("%s: %s", e.Code, e.Message)
		if e.Location != nil {
			text = fmt.Sprintf("%s:%d:%d: %s", e.Location.File, e.Location.Row, e.Location.Col, text)
		}
		for _, name := range forbiddenBuiltins {
			if strings.Contains(e.Message, "undefined function "+name) {
				text += ": policies may not use this built-in function here, because it reaches beyond the object that is judged"
			}
		}
		if !v1 && e.Code == ast.ParseErr && strings.Contains(e.Message, "import future.keywords") {
			text += `; or write the template in Rego v1: code[].source.version: "v1"`
		}
		out = append(out, errors.New(text))
	}
	return errors.Join(out...)
}
