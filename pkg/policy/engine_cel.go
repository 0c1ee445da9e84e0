package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// celProgram is a program of K8sNativeValidation.
type celProgram struct {
	*cel.Program
	ignored string // see notes
}

const (
	failurePolicyFail   = "Fail"
	failurePolicyIgnore = "Ignore"

	// maxUnknownFields is how many fields a note names.
	maxUnknownFields = 5
)

// newCELProgram compiles code of engine K8sNativeValidation. path is where it is.
func newCELProgram(path string, content map[string]any) (*celProgram, error) {
	var code struct {
		Validations []struct {
			Expression        string `json:"expression"`
			Message           string `json:"message"`
			MessageExpression string `json:"messageExpression"`
		} `json:"validations"`
		FailurePolicy   *string              `json:"failurePolicy"`
		MatchConditions []celNamedExpression `json:"matchCondition"` // the singular is Gatekeeper's
		Variables       []celNamedExpression `json:"variables"`
		GenerateVAP     *bool                `json:"generateVAP"`
	}
	var ignored string
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, &code, true)
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		ignored = unknownFields(unknown.Errors())
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// fail mentions unknown fields, which may be what is wrong.
	fail := func(err error) error {
		if ignored != "" {
			err = fmt.Errorf("%w; %s", err, ignored)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(code.Validations) == 0 {
		return nil, fail(errors.New("validations is empty; nothing would ever be found"))
	}
	source := cel.Source{MatchConditions: celExpressions(code.MatchConditions), Variables: celExpressions(code.Variables)}
	for _, v := range code.Validations {
		source.Validations = append(source.Validations, cel.Validation{Expression: v.Expression, Message: v.Message, MessageExpression: v.MessageExpression})
	}
	if code.FailurePolicy != nil {
		switch *code.FailurePolicy {
		case failurePolicyFail:
		case failurePolicyIgnore:
			source.FailurePolicyIgnore = true
		default:
			return nil, fail(fmt.Errorf("failurePolicy is %q; it must be %s or %s", *code.FailurePolicy, failurePolicyFail, failurePolicyIgnore))
		}
	}
	p, err := cel.Compile(source)
	if err != nil {
		return nil, fail(err)
	}
	program := &celProgram{Program: p}
	if ignored != "" {
		program.ignored = path + ": " + ignored
	}
	return program, nil
}

// unknownFields says which fields are ignored, as Gatekeeper ignores them. Each error
// names one.
func unknownFields(errs []error) string {
	var parts []string
	for i, err := range errs {
		if i == maxUnknownFields {
			parts = append(parts, fmt.Sprintf("%d more are ignored", len(errs)-i))
			break
		}
		part := err.Error() + " is ignored"
		if err.Error() == `unknown field "matchConditions"` {
			part += "; Gatekeeper's field is matchCondition"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

type celNamedExpression struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

func celExpressions(list []celNamedExpression) []cel.NamedExpression {
	var out []cel.NamedExpression
	for _, e := range list {
		out = append(out, cel.NamedExpression(e))
	}
	return out
}

func (p *celProgram) readsNamespace() bool { return p.ReadsNamespace }

func (p *celProgram) reads(object, namespace *paths.Tree) {
	object.Add(p.Object)
	namespace.Add(p.NamespaceObject)
}

func (p *celProgram) notes() []string {
	var out []string
	if p.ignored != "" {
		out = append(out, p.ignored)
	}
	if p.ReadsUserInfo {
		out = append(out, "it reads request.userInfo, which is empty in an audit")
	}
	if p.ReadsOldObject {
		out = append(out, "it reads oldObject, which is null in an audit")
	}
	return out
}

func (p *celProgram) bind(parameters any, _ *memo, _ *programInventory) (evaluator, error) {
	return &celEvaluator{celProgram: p, parameters: parameters}, nil
}

// celEvaluator is a program with the parameters of a constraint.
type celEvaluator struct {
	*celProgram
	parameters any
}

// withInventory implements evaluator: CEL reads none.
func (e *celEvaluator) withInventory(evaluator) evaluator { return e }

func (e *celEvaluator) evaluate(ctx context.Context, o *Object) judgement {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	result, err := e.Eval(ctx, o.celInput(e.parameters))
	if err != nil {
		return failed(err)
	}
	j := judgement{outcome: Pass}
	if err := errors.Join(result.Errors...); err != nil {
		j = failed(err)
	}
	return j.with(result.Violations)
}

// celInput is what a template's CEL reads. The object of a DELETE is null.
func (o *Object) celInput(parameters any) cel.Input {
	in := cel.Input{Object: o.obj, Namespace: o.namespace, Params: parameters, Operation: o.operation()}
	if o.request == nil {
		return in
	}
	in.Resource = o.resource()
	in.Object, in.Request = o.request.Object, o.celRequest()
	return in
}

// with adds violations. One that was found counts, whatever else could not be
// evaluated.
func (j judgement) with(violations []cel.Violation) judgement {
	for _, v := range violations {
		j.violations = append(j.violations, Violation(v))
	}
	if len(j.violations) > 0 {
		j.outcome = Fail
	}
	return j
}
