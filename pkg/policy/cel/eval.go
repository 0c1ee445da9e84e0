package cel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// Input of an evaluation. Nothing of it is modified, and numbers have to be int64
// or float64, as they are in what a decoder of Kubernetes returns.
type Input struct {
	Object *unstructured.Unstructured
	// Namespace of the object. It is nil if the object is in none.
	Namespace *unstructured.Unstructured
	// Params are the parameters of a constraint, a map[string]any or nil, or for
	// native programs an *unstructured.Unstructured or nil.
	Params any
	// Resource and Operation are those of the request. Gatekeeper's audit leaves
	// them empty.
	Resource  schema.GroupVersionResource
	Operation string
	// Request is nil if an object that exists is judged.
	Request *Request
}

// Request is what a request has besides its object, which is nil in a DELETE.
type Request struct {
	// OldObject is nil in a CREATE.
	OldObject *unstructured.Unstructured
	User      User
	// Options of the operation as a document, nil if there are none.
	Options map[string]any
	DryRun  bool
	// Authorizer that native programs may ask, nil if there is none.
	Authorizer Asker
	// Attributes of the request, nil if they are those of the object.
	Attributes *Attributes
}

// Attributes are what a request is for.
type Attributes struct {
	// Name is empty if the API server has yet to make one up.
	Name string
	// Namespace is empty for what is in none, and for a Namespace.
	Namespace   string
	Resource    schema.GroupVersionResource
	Subresource string
	// What the client asked for, before the API server converted it to what the webhook
	// is registered for.
	RequestKind        schema.GroupVersionKind
	RequestResource    schema.GroupVersionResource
	RequestSubresource string
}

// apply enters the attributes into a request.
func (a *Attributes) apply(r *admissionv1.AdmissionRequest) {
	kind, resource := metav1.GroupVersionKind(a.RequestKind), metav1.GroupVersionResource(a.RequestResource)
	r.Name, r.Namespace = a.Name, a.Namespace
	r.Resource, r.SubResource = metav1.GroupVersionResource(a.Resource), a.Subresource
	r.RequestKind, r.RequestResource, r.RequestSubResource = &kind, &resource, a.RequestSubresource
}

// Asker is an authorizer that tells what the user of a request may do.
type Asker = authorizer.UnconditionalAuthorizer

// User makes a request.
type User struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// Violation is a validation that does not hold.
type Violation struct {
	Message string
	// Details as JSON, nil if there are none.
	Details []byte
}

// Result of an evaluation.
type Result struct {
	// Matched is false if a match condition rules the object out.
	Matched bool
	// Violations, sorted by message then details, without duplicates.
	Violations []Violation
	// Errors of evaluation, each with the field; none if failures are to be ignored.
	Errors []error
	// AuditAnnotations by key.
	AuditAnnotations map[string]string
}

// Eval evaluates the program. The error says that the evaluation as a whole has not
// come to an end, because ctx has or for a fault of the server.
func (p *Program) Eval(ctx context.Context, in Input) (result Result, err error) {
	defer func() {
		// A fault of the evaluator costs this evaluation only.
		if r := recover(); r != nil {
			result, err = Result{}, fmt.Errorf("evaluation panicked: %v", r)
		}
	}()
	e, err := p.newEvaluation(ctx, in)
	if err != nil {
		return Result{}, err
	}
	if result.Matched, err = e.matches(&result); err != nil || !result.Matched || len(result.Errors) > 0 {
		return result, err
	}
	if err := e.validate(&result); err != nil {
		return Result{}, err
	}
	if err := e.annotate(&result); err != nil {
		return Result{}, err
	}
	result.Violations = Distinct(result.Violations)
	return result, nil
}

// evaluation of a program for one object.
type evaluation struct {
	*Program
	ctx       context.Context
	variables admissioncel.CompositionContext
	attr      *admission.VersionedAttributes
	request   *admissionv1.AdmissionRequest
	bindings  admissioncel.OptionalVariableBindings
	namespace *corev1.Namespace
}

func (p *Program) newEvaluation(ctx context.Context, in Input) (*evaluation, error) {
	attr := p.attributes(&in)
	e := &evaluation{
		Program: p,
		ctx:     ctx,
		attr:    attr,
		request: admissioncel.CreateAdmissionRequest(attr, metav1.GroupVersionResource(in.Resource), metav1.GroupVersionKind(attr.VersionedKind)),
	}
	if in.Request != nil && p.source.Native {
		e.bindings.Authorizer = in.Request.Authorizer
	}
	if in.Request != nil && in.Request.Attributes != nil {
		in.Request.Attributes.apply(e.request)
	}
	if in.Request != nil && in.Request.Options != nil {
		data, err := json.Marshal(in.Request.Options)
		if err != nil {
			return nil, fmt.Errorf("options of the request: %w", err)
		}
		e.request.Options.Raw = data
	}
	if p.ReadsNamespace && in.Namespace != nil {
		ns := &corev1.Namespace{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(in.Namespace.Object, ns); err != nil {
			return nil, fmt.Errorf("convert the Namespace: %w", err)
		}
		e.namespace = admissioncel.CreateNamespaceObject(ns)
	}
	var err error
	e.bindings.VersionedParams, err = p.bindParams(in.Params)
	return e, err
}

// attributes of the request that is judged, or of none.
func (p *Program) attributes(in *Input) *admission.VersionedAttributes {
	subject, request := in.Object, in.Request
	if request == nil {
		request = &Request{}
	}
	if subject == nil {
		subject = request.OldObject
	}
	namespace := subject.GetNamespace()
	if p.source.Native && in.Resource.Group == "" && in.Resource.Resource == "namespaces" {
		// Requests for a Namespace are requests in it.
		namespace = subject.GetName()
	}
	who := &user.DefaultInfo{Name: request.User.Name, UID: request.User.UID, Groups: request.User.Groups, Extra: request.User.Extra}
	// A nil pointer in an interface is not nil.
	var object, oldObject runtime.Object
	if in.Object != nil {
		object = in.Object
	}
	if request.OldObject != nil {
		oldObject = request.OldObject
	}
	gvk := subject.GroupVersionKind()
	return &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(object, oldObject, gvk, namespace, subject.GetName(),
			in.Resource, "", admission.Operation(in.Operation), nil, request.DryRun, who),
		VersionedObject:    admission.NewLazyObject(object),
		VersionedOldObject: admission.NewLazyObject(oldObject),
		VersionedKind:      gvk,
	}
}

// params are read as they are. Without ToUnstructured they would be marshalled for
// each expression.
type params struct{ *unstructured.Unstructured }

// ToUnstructured returns the document that expressions read.
func (p params) ToUnstructured() any { return p.Object }

func (p *Program) bindParams(in any) (runtime.Object, error) {
	switch v := in.(type) {
	case nil:
		if p.source.Native {
			return nil, nil
		}
		return params{&unstructured.Unstructured{Object: map[string]any{parametersKey: nil}}}, nil
	case map[string]any:
		if p.source.Native {
			return nil, errors.New("params are a map, want an object")
		}
		document := map[string]any{parametersKey: nil}
		if v != nil {
			document[parametersKey] = v
		}
		return params{&unstructured.Unstructured{Object: document}}, nil
	case *unstructured.Unstructured:
		if !p.source.Native {
			return nil, errors.New("params are an object, want a map")
		}
		if v == nil {
			return nil, nil
		}
		return params{v}, nil
	}
	return nil, fmt.Errorf("params are a %T, want a map or an object", in)
}

// scope lets expressions share variables, which are evaluated when they are first
// read.
type scope struct {
	admissioncel.CompositionContext
	variables ref.Val
}

// Variables returns the same variables for each activation.
func (s *scope) Variables(activation any) ref.Val {
	if s.variables == nil {
		s.variables = s.CompositionContext.Variables(activation)
	}
	return s.variables
}

// run evaluates expressions until the budget is spent. It hands each result to
// visit, with a nil value if there is an error, and returns what is left of the
// budget.
func (e *evaluation) run(ctx context.Context, namespace *corev1.Namespace, list []admissioncel.CompilationResult, budget int64, visit func(i int, value ref.Val, err error)) (int64, error) {
	for i := range list {
		if list[i].ExpressionAccessor == nil {
			continue
		}
		results, remaining, err := admissioncel.NewCondition(list[i:i+1]).ForInput(ctx, e.attr, e.request, e.bindings, namespace, budget)
		if e.ctx.Err() != nil {
			return 0, fmt.Errorf("evaluation was stopped: %w", context.Cause(e.ctx))
		}
		if errors.Is(err, apiservercel.ErrOutOfBudget) {
			visit(i, nil, errors.New("the budget of the evaluation is spent; what follows was not evaluated"))
			return 0, nil
		}
		if err != nil {
			visit(i, nil, err)
			return 0, nil
		}
		budget = remaining
		if err := results[0].Error; err != nil {
			visit(i, nil, errors.New(problem(err, list[i].ExpressionAccessor.GetExpression())))
			continue
		}
		visit(i, results[0].EvalResult, nil)
	}
	return budget, nil
}

// problem is what an error says besides the expression, which the path stands for.
func problem(err error, expression string) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("expression '%s' resulted in error: ", expression))
}

// matches evaluates the match conditions: one that is false rules the object out,
// whatever is wrong with others.
func (e *evaluation) matches(result *Result) (bool, error) {
	if len(e.conditions) == 0 {
		return true, nil
	}
	excluded := false
	var errs []error
	scope := &scope{CompositionContext: e.compiler.CreateContext(e.ctx)}
	_, err := e.run(scope, nil, e.conditions, celconfig.RuntimeCELCostBudgetMatchConditions, func(i int, value ref.Val, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.expression: %w", e.names.condition(i), err))
		}
		excluded = excluded || value == types.False
	})
	switch {
	case err != nil:
		return false, err
	case excluded, len(errs) > 0 && e.source.FailurePolicyIgnore:
		return false, nil
	}
	result.Errors = errs
	return true, nil
}

func (e *evaluation) fail(result *Result, path string, err error) {
	if !e.source.FailurePolicyIgnore {
		result.Errors = append(result.Errors, fmt.Errorf("%s: %w", path, err))
	}
}

func (e *evaluation) validate(result *Result) error {
	budget := int64(celconfig.PerCallLimit)
	if e.source.Native {
		budget = celconfig.RuntimeCELCostBudget
	}
	e.variables = &scope{CompositionContext: e.compiler.CreateContext(e.ctx)}
	var violated []int
	budget, err := e.run(e.variables, e.namespace, e.validations, budget, func(i int, value ref.Val, err error) {
		switch {
		case err != nil:
			e.fail(result, e.names.expression(i), err)
		case value != types.True:
			violated = append(violated, i)
		}
	})
	if err != nil || len(violated) == 0 {
		return err
	}
	messages := make([]admissioncel.CompilationResult, len(violated))
	texts := make([]string, len(violated))
	for i, v := range violated {
		messages[i] = e.messages[v]
	}
	if _, err = e.run(e.variables, e.namespace, messages, budget, func(i int, value ref.Val, _ error) {
		texts[i] = message(value)
	}); err != nil {
		return err
	}
	for i, v := range violated {
		validation := e.source.Validations[v]
		text := texts[i]
		if text == "" {
			text = strings.TrimSpace(validation.Message)
		}
		if text == "" {
			text = "failed expression: " + strings.TrimSpace(validation.Expression)
		}
		result.Violations = append(result.Violations, Violation{Message: text})
	}
	return nil
}

// message is what a messageExpression has to say, "" if it is of no use.
func message(value ref.Val) string {
	text, ok := value.(types.String)
	if !ok {
		return ""
	}
	trimmed := strings.TrimSpace(string(text))
	if len(trimmed) > celconfig.MaxEvaluatedMessageExpressionSizeBytes || strings.Contains(trimmed, "\n") {
		return ""
	}
	return trimmed
}

func (e *evaluation) annotate(result *Result) error {
	if len(e.annotations) == 0 {
		return nil
	}
	_, err := e.run(e.variables, e.namespace, e.annotations, celconfig.RuntimeCELCostBudget, func(i int, value ref.Val, err error) {
		if err != nil {
			e.fail(result, e.names.annotation(i)+".valueExpression", err)
			return
		}
		text, ok := value.(types.String)
		if trimmed := strings.TrimSpace(string(text)); ok && trimmed != "" {
			if result.AuditAnnotations == nil {
				result.AuditAnnotations = map[string]string{}
			}
			result.AuditAnnotations[e.source.AuditAnnotations[i].Key] = trimmed
		}
	})
	return err
}

// Distinct sorts violations by message then details, and removes duplicates. It
// works in place.
func Distinct(violations []Violation) []Violation {
	slices.SortFunc(violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Message, b.Message), bytes.Compare(a.Details, b.Details))
	})
	return slices.CompactFunc(violations, func(a, b Violation) bool {
		return a.Message == b.Message && bytes.Equal(a.Details, b.Details)
	})
}
