package cel

import (
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// rootKind is what an expression that is evaluated in its own right is for.
type rootKind int

const (
	rootCondition rootKind = iota
	rootResult
)

// reader finds out what the expressions of a source may read. It errs on the side
// of reading.
type reader struct {
	env       *cel.Env
	variables map[string]reads // by name
	order     []string         // names of variables, as they are written
	roots     []root
	// object and namespaceObject are what is read of these, by any expression.
	object, namespaceObject *paths.Tree
}

// reads is what one expression may read.
type reads struct {
	path string
	// what of NamespaceObject, OldObject, UserInfo and Authorizer.
	what []string
	// variables by name, or allVariables.
	variables []string
}

type root struct {
	reads
	kind rootKind
}

// allVariables stands for an expression that uses variables as a whole.
const allVariables = "*"

func newReader(env *cel.Env) *reader {
	return &reader{env: env, variables: map[string]reads{}, object: &paths.Tree{}, namespaceObject: &paths.Tree{}}
}

func (r *reader) variable(name, path, expression string) reads {
	e := r.read(path, expression)
	r.order = append(r.order, name)
	r.variables[name] = e
	return e
}

func (r *reader) root(kind rootKind, path, expression string) reads {
	e := r.read(path, expression)
	r.roots = append(r.roots, root{reads: e, kind: kind})
	return e
}

// read looks at an expression. One that cannot be parsed reads nothing: the
// compiler refuses it.
func (r *reader) read(path, expression string) reads {
	out := reads{path: path}
	parsed, issues := r.env.Parse(expression)
	if issues.Err() != nil {
		return out
	}
	add := func(list *[]string, name string) {
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(parsed.NativeRep()), ast.KindMatcher(ast.IdentKind)) {
		switch name := strings.TrimPrefix(e.AsIdent(), "."); name {
		case object:
			readPath(r.object, e)
		case NamespaceObject:
			readPath(r.namespaceObject, e)
			add(&out.what, name)
		case OldObject, Authorizer:
			add(&out.what, name)
		case admissioncel.RequestVarName:
			if field, ok := fieldOf(e); !ok || field == "userInfo" {
				add(&out.what, UserInfo)
			}
		case admissioncel.VariableVarName:
			field, ok := fieldOf(e)
			if !ok {
				field = allVariables
			}
			add(&out.variables, field)
			switch field {
			case variableAnyObject:
				if variable, ok := e.Parent(); ok {
					readPath(r.object, variable)
				}
			case allVariables:
				r.object.ReadAll()
			}
		}
	}
	return out
}

// readPath says that what fields are selected of an expression is read, with all that is
// below the last of them.
func readPath(t *paths.Tree, e ast.NavigableExpr) {
	for {
		field, ok := fieldOf(e)
		if !ok {
			break
		}
		t = t.Field(field)
		e, _ = e.Parent()
		if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
			return // whether it is there
		}
	}
	if !comparedWithNull(e) {
		t.ReadAll()
	}
}

// comparedWithNull tells whether all that is done with an expression is to ask whether it
// is null.
func comparedWithNull(e ast.NavigableExpr) bool {
	parent, ok := e.Parent()
	if !ok || parent.Kind() != ast.CallKind {
		return false
	}
	call := parent.AsCall()
	if name := call.FunctionName(); name != operators.Equals && name != operators.NotEquals {
		return false
	}
	return slices.ContainsFunc(call.Args(), func(arg ast.Expr) bool {
		return arg.Kind() == ast.LiteralKind && arg.AsLiteral() == types.NullValue
	})
}

// fieldOf returns the field that is selected of an expression, if that is all that
// is done with it.
func fieldOf(e ast.NavigableExpr) (string, bool) {
	parent, ok := e.Parent()
	if !ok {
		return "", false
	}
	switch parent.Kind() {
	case ast.SelectKind:
		return parent.AsSelect().FieldName(), true
	case ast.CallKind:
		call := parent.AsCall()
		if !slices.Contains(selections, call.FunctionName()) || len(call.Args()) != 2 || call.Args()[0].ID() != e.ID() {
			return "", false
		}
		if field := call.Args()[1]; field.Kind() == ast.LiteralKind {
			name, ok := field.AsLiteral().(types.String)
			return string(name), ok
		}
	}
	return "", false
}

// selections are the calls that select a field.
var selections = []string{operators.OptSelect, operators.Index, operators.OptIndex}

// report tells a program what its expressions may read.
func (r *reader) report(p *Program) {
	p.places = map[string][]string{}
	p.Object, p.NamespaceObject = r.object, r.namespaceObject
	// namespaceObject is null in conditions, and so for the variables they use.
	conditions := r.reachable(rootCondition)
	results := r.reachable(rootResult)
	for _, e := range r.inOrder() {
		for _, what := range e.what {
			if results[e.path] || conditions[e.path] && what != NamespaceObject {
				p.places[what] = append(p.places[what], e.path)
			}
		}
	}
	p.ReadsNamespace = len(p.places[NamespaceObject]) > 0
	p.ReadsOldObject = len(p.places[OldObject]) > 0
	p.ReadsUserInfo = len(p.places[UserInfo]) > 0
	p.UsesAuthorizer = len(p.places[Authorizer]) > 0
}

// inOrder returns variables, then the others, as they are written.
func (r *reader) inOrder() []reads {
	var out []reads
	for _, name := range r.order {
		out = append(out, r.variables[name])
	}
	for _, root := range r.roots {
		out = append(out, root.reads)
	}
	return out
}

// reachable returns the paths of the expressions of a kind, and of the variables
// that they use, directly or not.
func (r *reader) reachable(kind rootKind) map[string]bool {
	out := map[string]bool{}
	var visit func(reads)
	visit = func(e reads) {
		if out[e.path] {
			return
		}
		out[e.path] = true
		for _, name := range e.variables {
			if name == allVariables {
				for _, v := range r.variables {
					visit(v)
				}
			} else if v, ok := r.variables[name]; ok {
				visit(v)
			}
		}
	}
	for _, root := range r.roots {
		if root.kind == kind {
			visit(root.reads)
		}
	}
	return out
}
