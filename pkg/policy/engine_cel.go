package policy

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

// celProgram is a program of K8sNativeValidation.
type celProgram struct {
	*cel.Program
}

const (
	failurePolicyFail   = "Fail"
	failurePolicyIgnore = "Ignore"
)

// newCELProgram compiles code of engine K8sNativeValidation.
func newCELProgram(content map[string]any) (*celProgram, error) {
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
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, &code, true); err != nil {
		return nil, err
	}
	if len(code.Validations) == 0 {
		return nil, errors.New("validations is empty; nothing would ever be found")
	}
	source := cel.Source{MatchConditions: celExpressions(code.MatchConditions), Variables: celExpressions(code.Variables)}
	for _, v := range code.Validations {
		source.Validations = append(source.Validations, cel.Validation{Expression: v.Expression, Message: v.Message, MessageExpression: v.MessageExpression})
	}
	if code.FailurePolicy != nil {
		switch *code.FailurePolicy {
		case failurePolicyFail, "":
		case failurePolicyIgnore:
			source.FailurePolicyIgnore = true
		default:
			return nil, fmt.Errorf("failurePolicy is %q; it must be %s or %s", *code.FailurePolicy, failurePolicyFail, failurePolicyIgnore)
		}
	}
	p, err := cel.Compile(source)
	if err != nil {
		return nil, err
	}
	return &celProgram{p}, nil
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

func (p *celProgram) bind(parameters any, _ *memo) (evaluator, error) {
	return &celEvaluator{celProgram: p, parameters: parameters}, nil
}

// celEvaluator is a program with the parameters of a constraint.
type celEvaluator struct {
	*celProgram
	parameters any
}

func (e *celEvaluator) evaluate(ctx context.Context, o *Object) judgement {
	result, err := e.Eval(ctx, cel.Input{Object: o.obj, Namespace: o.namespace, Params: e.parameters})
	if err != nil {
		return failed(err)
	}
	j := judgement{outcome: Pass}
	if err := errors.Join(result.Errors...); err != nil {
		j = failed(err)
	}
	return j.with(result.Violations)
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
