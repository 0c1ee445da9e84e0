package vap

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

const (
	apiVersion  = "admissionregistration.k8s.io/v1"
	policyKind  = "ValidatingAdmissionPolicy"
	bindingKind = "ValidatingAdmissionPolicyBinding"
)

// Policy is a compiled ValidatingAdmissionPolicy. It is immutable.
type Policy struct {
	Name string

	match     *matcher
	paramKind *schema.GroupVersionKind
	program   *cel.Program
	// ignore is true if failurePolicy is Ignore.
	ignore bool
	// deferred says what the policy needs that only a request has, deferredRequest
	// what of it a request without an authorizer does not have either.
	deferred, deferredRequest string
}

// CompilePolicy compiles a policy. The error joins everything that is wrong with
// it.
func CompilePolicy(obj *unstructured.Unstructured) (*Policy, error) {
	var spec admissionregistrationv1.ValidatingAdmissionPolicySpec
	if err := decode(obj, policyKind, &spec); err != nil {
		return nil, err
	}
	errs := asErrors(validatePolicy(obj.GetName(), &spec))
	program, err := cel.Compile(source(&spec))
	errs = append(errs, belowSpec(err)...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p := &Policy{
		Name:    obj.GetName(),
		program: program,
		ignore:  spec.FailurePolicy != nil && *spec.FailurePolicy == admissionregistrationv1.Ignore,
	}
	if p.match, err = newMatcher(spec.MatchConstraints); err != nil {
		return nil, fmt.Errorf("spec.matchConstraints: %w", err)
	}
	if spec.ParamKind != nil {
		gvk := schema.FromAPIVersionAndKind(spec.ParamKind.APIVersion, spec.ParamKind.Kind)
		p.paramKind = &gvk
	}
	if reads := needs(program, cel.UserInfo, cel.OldObject, cel.Authorizer); reads != "" {
		p.deferred = "the policy needs what only a request has: " + reads
	}
	if reads := needs(program, cel.Authorizer); reads != "" {
		p.deferredRequest = "the policy asks the authorizer, and there is none here: " + reads
	}
	return p, nil
}

// Deferred says why the policy cannot judge objects that exist, "" if it can.
func (p *Policy) Deferred() string { return p.deferred }

// Program returns the compiled expressions.
func (p *Policy) Program() *cel.Program { return p.program }

// decode decodes the spec of a policy or binding. A field that is not known is an
// error: a rule that has it would be taken for another.
func decode(obj *unstructured.Unstructured, kind string, spec any) error {
	if obj.GetAPIVersion() != apiVersion || obj.GetKind() != kind {
		return fmt.Errorf("it is a %s %s, want %s %s", obj.GetAPIVersion(), obj.GetKind(), apiVersion, kind)
	}
	if obj.GetName() == "" {
		return errors.New("metadata.name is missing")
	}
	content, ok := obj.Object["spec"].(map[string]any)
	if !ok {
		return errors.New("spec is missing; it has to be an object")
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, spec, true)
	if err == nil {
		return nil
	}
	// Only encoding/json says which field is of the wrong type.
	var typeErr *json.UnmarshalTypeError
	if data, jsonErr := json.Marshal(content); jsonErr == nil && errors.As(json.Unmarshal(data, spec), &typeErr) {
		return fmt.Errorf("spec.%s is a %s, want a %s", typeErr.Field, typeErr.Value, typeErr.Type)
	}
	return fmt.Errorf("spec: %w", err)
}

func source(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) cel.Source {
	src := cel.Source{
		Native:              true,
		HasParams:           spec.ParamKind != nil,
		FailurePolicyIgnore: spec.FailurePolicy != nil && *spec.FailurePolicy == admissionregistrationv1.Ignore,
	}
	for _, v := range spec.Validations {
		src.Validations = append(src.Validations, cel.Validation{Expression: v.Expression, Message: v.Message, MessageExpression: v.MessageExpression})
	}
	for _, m := range spec.MatchConditions {
		src.MatchConditions = append(src.MatchConditions, cel.NamedExpression(m))
	}
	for _, v := range spec.Variables {
		src.Variables = append(src.Variables, cel.NamedExpression(v))
	}
	for _, a := range spec.AuditAnnotations {
		src.AuditAnnotations = append(src.AuditAnnotations, cel.AuditAnnotation(a))
	}
	return src
}

// needs says which of several things a program reads, and where.
func needs(program *cel.Program, things ...string) string {
	var reads []string
	for _, what := range things {
		places := program.Places(what)
		for i := range places {
			places[i] = "spec." + places[i]
		}
		if len(places) > 0 {
			reads = append(reads, fmt.Sprintf("%s (in %s)", what, strings.Join(places, ", ")))
		}
	}
	return strings.Join(reads, ", ")
}

// belowSpec prefixes the parts of an error of the compiler with spec.
func belowSpec(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{fmt.Errorf("spec: %w", err)}
	}
	var errs []error
	for _, part := range joined.Unwrap() {
		errs = append(errs, fmt.Errorf("spec.%w", part))
	}
	return errs
}

func asErrors(list field.ErrorList) []error {
	var errs []error
	for _, err := range list {
		errs = append(errs, err)
	}
	return errs
}

// Binding is a compiled ValidatingAdmissionPolicyBinding, with its policy. It is
// immutable.
type Binding struct {
	Name   string
	Policy *Policy

	match    *matcher // nil matches everything
	paramRef *admissionregistrationv1.ParamRef
	params   labels.Selector // of the params, nil if they are named
	actions  []string
}

// NewBinding compiles a binding of a policy. The error joins everything that is
// wrong with it.
func NewBinding(p *Policy, obj *unstructured.Unstructured) (*Binding, error) {
	var spec admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec
	if err := decode(obj, bindingKind, &spec); err != nil {
		return nil, err
	}
	if errs := asErrors(validateBinding(&spec)); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if spec.PolicyName != p.Name {
		return nil, fmt.Errorf("spec.policyName is %q, not %q", spec.PolicyName, p.Name)
	}
	b := &Binding{Name: obj.GetName(), Policy: p}
	var err error
	if spec.MatchResources != nil {
		if b.match, err = newMatcher(spec.MatchResources); err != nil {
			return nil, fmt.Errorf("spec.matchResources: %w", err)
		}
	}
	// Without a paramKind there are no params, whatever the binding says.
	if p.paramKind != nil && spec.ParamRef != nil {
		b.paramRef = spec.ParamRef
		if b.params, err = selector(spec.ParamRef.Selector); err != nil {
			return nil, fmt.Errorf("spec.paramRef.selector: %w", err)
		}
	}
	for _, action := range spec.ValidationActions {
		b.actions = append(b.actions, strings.ToLower(string(action)))
	}
	slices.Sort(b.actions)
	return b, nil
}

// Actions returns the validationActions in lower case, sorted: audit, deny, warn.
func (b *Binding) Actions() []string { return slices.Clone(b.actions) }

// ParamKind returns the kind of the params that Judge looks up.
func (b *Binding) ParamKind() (schema.GroupVersionKind, bool) {
	if b.paramRef == nil {
		return schema.GroupVersionKind{}, false
	}
	return *b.Policy.paramKind, true
}

// NeedsNamespace tells whether a verdict may depend on the object's Namespace.
func (b *Binding) NeedsNamespace() bool {
	return b.Policy.program.ReadsNamespace || b.Policy.match.needsNamespace() || b.match.needsNamespace()
}
