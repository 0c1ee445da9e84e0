package cel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// What templates find among their variables, and may not define.
const (
	variableParams    = "params"
	variableAnyObject = "anyObject"
	reservedPrefix    = "gatekeeper_internal_"

	// parametersKey is where the document that params is bound to has the parameters
	// of a constraint.
	parametersKey = "parameters"
)

// fieldNames returns the paths of a source's fields.
type fieldNames struct{ conditions string }

func (n fieldNames) condition(i int) string { return fmt.Sprintf("%s[%d]", n.conditions, i) }

func (fieldNames) variable(i int) string   { return fmt.Sprintf("variables[%d]", i) }
func (fieldNames) expression(i int) string { return fmt.Sprintf("validations[%d].expression", i) }
func (fieldNames) message(i int) string    { return fmt.Sprintf("validations[%d].messageExpression", i) }
func (fieldNames) annotation(i int) string { return fmt.Sprintf("auditAnnotations[%d]", i) }

// Compile compiles a source. The error joins everything that is wrong with it;
// each part names the field, line and column where they are known, and the problem.
func Compile(src Source) (p *Program, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("compilation panicked: %v", r)
		}
	}()
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	compiler, err := admissioncel.NewCompositedCompiler(base)
	if err != nil {
		return nil, fmt.Errorf("environment of the expressions: %w", err)
	}
	c := &compilation{
		program: &Program{source: src, names: fieldNames{conditions: "matchConditions"}, compiler: compiler},
		reader:  newReader(base.StoredExpressionsEnv()),
	}
	if !src.Native {
		c.program.names.conditions = "matchCondition" // as templates write it
	}
	c.compile(src)
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...)
	}
	c.reader.report(c.program)
	return c.program, nil
}

type compilation struct {
	program *Program
	reader  *reader
	// broken are variables that do not compile. Their type is not known.
	broken []string
	errs   []error
}

func (c *compilation) compile(src Source) {
	names, compiler := c.program.names, c.program.compiler
	declared := admissioncel.OptionalVariableDeclarations{}
	if src.Native {
		declared.HasParams, declared.HasAuthorizer = src.HasParams, true
	} else {
		c.predefine(variableAnyObject, "object == null ? oldObject : object") // null in a DELETE
		c.predefine(variableParams, "params."+parametersKey)
	}
	c.checkNames(src)
	for i, v := range src.Variables {
		accessor := &validating.Variable{Name: v.Name, Expression: v.Expression}
		result := compiler.CompileAndStoreVariable(accessor, declared, environment.StoredExpressions)
		uses := c.reader.variable(v.Name, names.variable(i)+".expression", v.Expression)
		if c.keep(uses, result); result.Error != nil {
			c.broken = append(c.broken, v.Name)
		}
	}
	one := func(path string, root rootKind, accessor admissioncel.ExpressionAccessor, declared admissioncel.OptionalVariableDeclarations) admissioncel.CompilationResult {
		uses := c.reader.root(root, path, accessor.GetExpression())
		return c.keep(uses, compiler.CompileCELExpression(accessor, declared, environment.StoredExpressions))
	}
	p := c.program
	for i, m := range src.MatchConditions {
		accessor := matchconditions.MatchCondition(admissionregistrationv1.MatchCondition(m))
		p.conditions = append(p.conditions, one(names.condition(i)+".expression", rootCondition, &accessor, declared))
	}
	// Messages may not ask the authorizer.
	forMessages := declared
	forMessages.HasAuthorizer = false
	for i, v := range src.Validations {
		p.validations = append(p.validations, one(names.expression(i), rootResult, &validating.ValidationCondition{Expression: v.Expression}, declared))
		message := admissioncel.CompilationResult{}
		if v.MessageExpression != "" {
			message = one(names.message(i), rootResult, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, forMessages)
		}
		p.messages = append(p.messages, message)
	}
	for i, a := range src.AuditAnnotations {
		accessor := &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}
		p.annotations = append(p.annotations, one(names.annotation(i)+".valueExpression", rootResult, accessor, declared))
	}
}

// predefine gives templates a variable that they have not written.
func (c *compilation) predefine(name, expression string) {
	result := c.program.compiler.CompileAndStoreVariable(&validating.Variable{Name: name, Expression: expression},
		admissioncel.OptionalVariableDeclarations{HasParams: true}, environment.StoredExpressions)
	c.keep(reads{path: "variables." + name}, result)
}

// checkNames refuses names that hide others.
func (c *compilation) checkNames(src Source) {
	names := c.program.names
	unique := func(list []NamedExpression, path func(int) string) {
		seen := map[string]int{}
		for i, e := range list {
			if first, ok := seen[e.Name]; ok {
				c.errs = append(c.errs, fmt.Errorf("%s.name: %q is the name of %s already", path(i), e.Name, path(first)))
			} else {
				seen[e.Name] = i
			}
		}
	}
	unique(src.Variables, names.variable)
	if src.Native {
		unique(src.MatchConditions, names.condition)
		return
	}
	for i, e := range src.Variables {
		if e.Name == variableParams || e.Name == variableAnyObject || strings.HasPrefix(e.Name, reservedPrefix) {
			c.errs = append(c.errs, fmt.Errorf("%s.name: %q is reserved, as are %q, %q and what begins with %q", names.variable(i), e.Name, variableParams, variableAnyObject, reservedPrefix))
		}
	}
	// Nothing refers to a match condition, so its name can be any other.
	for i, e := range src.MatchConditions {
		if strings.HasPrefix(e.Name, reservedPrefix) {
			c.errs = append(c.errs, fmt.Errorf("%s.name: %q is reserved, as is what begins with %q", names.condition(i), e.Name, reservedPrefix))
		}
	}
}

// conversion says how to make an expression of unknown type one of a wanted type.
func conversion(detail string) string {
	switch {
	case !strings.HasSuffix(detail, "but got dyn"):
		return ""
	case strings.Contains(detail, "string"):
		return "; its type is not known here, wrap it in string(...)"
	}
	return "; its type is not known here, compare it, as in ... == true"
}

// keep collects what is wrong with an expression.
func (c *compilation) keep(e reads, result admissioncel.CompilationResult) admissioncel.CompilationResult {
	if result.Error == nil {
		return result
	}
	var compilationErr *apiservercel.CompilationError
	if !errors.As(result.Error, &compilationErr) || compilationErr.Issues == nil {
		// It is of the wrong type, but maybe only for what it uses.
		if !slices.ContainsFunc(e.variables, func(v string) bool { return slices.Contains(c.broken, v) }) {
			c.errs = append(c.errs, fmt.Errorf("%s: %s%s", e.path, result.Error.Detail, conversion(result.Error.Detail)))
		}
		return result
	}
	for _, issue := range compilationErr.Issues.Errors() {
		// Columns count from zero; the end of a text has none.
		line, column := issue.Location.Line(), max(issue.Location.Column(), 0)+1
		if line < 1 {
			c.errs = append(c.errs, fmt.Errorf("%s: %s", e.path, issue.Message))
			continue
		}
		c.errs = append(c.errs, fmt.Errorf("%s:%d:%d: %s", e.path, line, column, issue.Message))
	}
	return result
}
