package rego

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

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
	// AllowNet are the hosts that the program may reach, AnyHost for all. Without any,
	// built-in functions that reach the network are not there.
	AllowNet []string
}

// AnyHost in Source.AllowNet stands for all hosts.
const AnyHost = "*"

// Program is a compiled program. It is immutable and may be evaluated by any
// number of goroutines.
type Program struct {
	compiler *ast.Compiler
	query    ast.Body
	// placeholder is what placeholders begin with.
	placeholder string
	// authorsPackage is the package that the template names, for messages.
	authorsPackage string
	// Inventory is what the program reads of data.inventory, nil if it does not refer
	// to it.
	Inventory *paths.Tree
	// network is true if the program uses built-ins that reach the network.
	network bool
	// Nondeterministic is true if the program uses built-ins whose answer depends on
	// more than their arguments, such as the clock.
	Nondeterministic bool
	// Reads is what the program reads of input.review. Texts that it only shows are in
	// the messages of violations as they are and have no other influence on what it says.
	Reads *paths.Tree
}

// templatePackage is where template modules are put, whatever package they name.
const templatePackage = "policy_template"

// violations is what is evaluated. By it the type checker refuses a rule violation
// whose elements cannot have a msg.
const violations = `data.policy_template.violation[element]; msg = element.msg; details = object.get(element, "details", {})`

// Reasons not to allow a built-in function.
const (
	reaches  = "it reaches beyond the object that is judged"
	files    = "schemas can refer to files and to the network"
	memory   = "a short call can take more memory than there is, which ends the process"
	endless  = "a short call can take forever, and cannot be stopped"
	network  = "it reaches the network, which the server allows for hosts that --rego-allow-net names"
	refusing = ": policies may not use this built-in function here, because "
)

// Functions that reach the network.
const (
	httpSend     = "http.send"
	lookupIPAddr = "net.lookup_ip_addr"
	// externalData is a function that Gatekeeper adds.
	externalData = "external_data"
)

// forbiddenBuiltins are built-in functions that programs may not use, and why.
var forbiddenBuiltins = map[string]string{
	"bits.lsh":                memory,
	externalData:              reaches,
	"graph.reachable_paths":   endless,
	httpSend:                  network,
	"json.match_schema":       files,
	"json.verify_schema":      files,
	lookupIPAddr:              network,
	"opa.runtime":             reaches,
	"rego.parse_module":       reaches,
	"strings.render_template": memory,
}

// capabilities are those of OPA without the forbidden built-ins and, but for some hosts,
// the network.
func capabilities(allowNet []string) *ast.Capabilities {
	caps := ast.CapabilitiesForThisVersion()
	caps.AllowNet = slices.Clone(allowNet)
	switch {
	case slices.Contains(allowNet, AnyHost):
		caps.AllowNet = nil
	case len(allowNet) == 0:
		caps.AllowNet = []string{}
	}
	caps.Builtins = slices.DeleteFunc(caps.Builtins, func(b *ast.Builtin) bool {
		return forbiddenBuiltins[b.Name] != "" && (len(allowNet) == 0 || !reachesNetwork(b.Name))
	})
	return caps
}

// reachesNetwork tells whether a built-in function reaches hosts of AllowNet.
func reachesNetwork(name string) bool { return name == httpSend || name == lookupIPAddr }

// Compile compiles a program. Errors name module, line and column, and say what
// to do where that is known.
func Compile(src Source) (*Program, error) {
	options := ast.ParserOptions{RegoVersion: ast.RegoV0, Capabilities: capabilities(src.AllowNet)}
	if src.V1 {
		options.RegoVersion = ast.RegoV1
	}
	p := &Program{placeholder: "{" + rand.Text() + " "}
	modules := map[string]*ast.Module{}
	var errs []error
	module, err := ast.ParseModuleWithOpts("rego", src.Rego, options)
	if err != nil {
		errs = append(errs, explain(err, src.V1))
	} else {
		errs = append(errs, checkTemplate(module)...)
		p.authorsPackage = module.Package.Path.String()
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
		return nil, errors.New(p.inAuthorsPackage(explain(p.compiler.Errors, src.V1).Error()))
	}
	if err := checkSelfContained(p.compiler); err != nil {
		return nil, err
	}
	p.inspect(module)
	query, err := ast.ParseBody(violations)
	if err != nil {
		return nil, fmt.Errorf("parse the query: %w", err)
	}
	if p.query, err = p.compiler.QueryCompiler().Compile(query); err != nil {
		return nil, at(violationRule(module).Location, "the rule violation has no element with a msg, so it would report nothing; %s", howToViolate)
	}
	return p, nil
}

// inAuthorsPackage names rules as the template's author knows them.
func (p *Program) inAuthorsPackage(text string) string {
	return strings.ReplaceAll(text, "data."+templatePackage, p.authorsPackage)
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
		if _, name, ok := strings.Cut(e.Message, "undefined function "); ok && forbiddenBuiltins[name] != "" {
			text += refusing + forbiddenBuiltins[name]
		}
		if !v1 && e.Code == ast.ParseErr && strings.Contains(e.Message, "import future.keywords") {
			text += `; or write the template in Rego v1: code[].source.version: "v1"`
		}
		out = append(out, errors.New(text))
	}
	return errors.Join(out...)
}
