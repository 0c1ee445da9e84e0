package vap

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

// Outcome of judging an object.
type Outcome int

const (
	// NotMatched means that the policy or the binding rules the object out.
	NotMatched Outcome = iota
	// Pass means that the object complies.
	Pass
	// Fail means that the object violates the policy.
	Fail
	// Error means that the object could not be evaluated.
	Error
	// Deferred means that the policy needs what is not there: of an object that
	// exists, what only a request has.
	Deferred
)

// Verdict is what a binding says of an object.
type Verdict struct {
	Outcome Outcome
	// Violations, sorted by message then details, without duplicates. Empty unless
	// Outcome is Fail.
	Violations []cel.Violation
	// Message says why Outcome is Error or Deferred. If Outcome is Fail, it says
	// which expressions could not be evaluated besides.
	Message string
	// Reason says why Outcome is NotMatched.
	Reason string
}

// Params finds the objects that bindings take their params from. What it returns
// is not modified.
type Params interface {
	// Namespaced tells whether objects of a kind are in namespaces. known is false if
	// there is no such kind.
	Namespaced(gvk schema.GroupVersionKind) (namespaced, known bool)
	// Get returns an object. namespace is empty for kinds that are in none.
	Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, bool)
	// List returns the objects of a namespace that a selector selects.
	List(gvk schema.GroupVersionKind, namespace string, selector labels.Selector) []*unstructured.Unstructured
}

// notFound is what the kube-apiserver says if there are no params where there have
// to be some.
const notFound = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"

// Judge judges an object. params is used only if ParamKind returns a kind.
func (b *Binding) Judge(ctx context.Context, s Subject, params Params) Verdict {
	operation, why, err := b.matches(&s)
	switch {
	case err != nil:
		return failed(err)
	case why != "":
		return Verdict{Outcome: NotMatched, Reason: why}
	}
	needs := b.Policy.deferred
	if s.Request != nil {
		needs = ""
		if s.Request.Authorizer == nil {
			needs = b.Policy.deferredRequest
		}
	}
	if needs != "" {
		return Verdict{Outcome: Deferred, Message: needs}
	}
	in := cel.Input{Object: s.Object, Resource: s.Resource, Operation: string(operation), Request: s.Request}
	if operation == admission.Delete {
		in.Object = nil
	}
	if versions := b.Policy.match.otherVersions(s.attributes(operation)); len(versions) > 0 {
		return Verdict{Outcome: Deferred, Message: fmt.Sprintf("policy %s: spec.matchConstraints.resourceRules name %s of %s, to which a kube-apiserver converts objects, and the object is read as %s; name that version",
			b.Policy.Name, strings.Join(versions, ", "), s.Resource.GroupResource(), s.Resource.Version)}
	}
	if s.Namespaced {
		in.Namespace = s.Namespace
		if in.Namespace == nil && b.Policy.program.ReadsNamespace {
			return failed(fmt.Errorf("the Namespace %s is not known, and the policy reads namespaceObject", s.Object.GetNamespace()))
		}
	}
	if b.paramRef == nil {
		return b.evaluate(ctx, in, []*unstructured.Unstructured{nil})
	}
	found, verdict := b.findParams(&s, params)
	if verdict != nil {
		return *verdict
	}
	return b.evaluate(ctx, in, found)
}

func failed(err error) Verdict { return Verdict{Outcome: Error, Message: err.Error()} }

// findParams returns the params for an object, or a verdict if there are none that
// it can be evaluated with.
func (b *Binding) findParams(s *Subject, params Params) ([]*unstructured.Unstructured, *Verdict) {
	gvk := *b.Policy.paramKind
	misconfigured := func(format string, args ...any) *Verdict {
		v := Verdict{Outcome: Pass}
		if !b.Policy.ignore {
			v = failed(fmt.Errorf(format, args...))
		}
		return &v
	}
	namespaced, known := params.Namespaced(gvk)
	if !known {
		v := failed(fmt.Errorf("policy %s: spec.paramKind: there is no kind %s in %s", b.Policy.Name, gvk.Kind, gvk.GroupVersion()))
		return nil, &v
	}
	namespace := b.paramRef.Namespace
	switch {
	case !namespaced && namespace != "":
		return nil, misconfigured("spec.paramRef.namespace is set, but a %s is in no namespace", gvk.Kind)
	case namespaced && namespace == "":
		if namespace = s.namespace(); namespace == "" {
			return nil, misconfigured("spec.paramRef.namespace is not set, and the object is in no namespace to take a %s from", gvk.Kind)
		}
	}
	var found []*unstructured.Unstructured
	if b.params != nil {
		found = slices.Clone(params.List(gvk, namespace, b.params))
		slices.SortFunc(found, func(x, y *unstructured.Unstructured) int {
			return cmp.Or(cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetName(), y.GetName()))
		})
	} else if param, ok := params.Get(gvk, namespace, b.paramRef.Name); ok {
		found = append(found, param)
	}
	if len(found) > 0 {
		return found, nil
	}
	v := Verdict{Outcome: Pass}
	if *b.paramRef.ParameterNotFoundAction == admissionregistrationv1.DenyAction && !b.Policy.ignore {
		v = Verdict{Outcome: Fail, Violations: []cel.Violation{{Message: notFound}}}
	}
	return nil, &v
}

// evaluate evaluates the policy with each of the params; nil is without any.
func (b *Binding) evaluate(ctx context.Context, in cel.Input, params []*unstructured.Unstructured) Verdict {
	var violations []cel.Violation
	var problems []string
	matched := false
	for _, param := range params {
		prefix := fmt.Sprintf("policy %s: ", b.Policy.Name)
		if param != nil {
			in.Params = param
			prefix += fmt.Sprintf("with params %s: ", strings.TrimPrefix(param.GetNamespace()+"/"+param.GetName(), "/"))
		}
		result, err := b.Policy.program.Eval(ctx, in)
		if err != nil {
			return failed(fmt.Errorf("%s%w", prefix, err))
		}
		matched = matched || result.Matched
		for _, err := range result.Errors {
			problems = append(problems, fmt.Sprintf("%sspec.%v", prefix, err))
		}
		details, err := detailsOf(result.AuditAnnotations)
		if err != nil {
			return failed(fmt.Errorf("%saudit annotations: %w", prefix, err))
		}
		for _, v := range result.Violations {
			violations = append(violations, cel.Violation{Message: v.Message, Details: details})
		}
	}
	v := Verdict{Violations: cel.Distinct(violations), Message: strings.Join(problems, "; ")}
	switch {
	case len(violations) > 0:
		v.Outcome = Fail
	case len(problems) > 0:
		v.Outcome = Error
	case matched:
		v.Outcome = Pass
	default:
		v.Reason = whyConditions
	}
	return v
}

// detailsOf returns the details of violations that come with audit annotations.
func detailsOf(annotations map[string]string) ([]byte, error) {
	if len(annotations) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"auditAnnotations": annotations})
}
