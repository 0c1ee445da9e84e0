package vap

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/fake"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// peer is the admission plugin of the kube-apiserver, with one policy and binding.
type peer struct {
	policy     *admissionregistrationv1.ValidatingAdmissionPolicy
	binding    *admissionregistrationv1.ValidatingAdmissionPolicyBinding
	matcher    generic.PolicyMatcher
	interfaces admission.ObjectInterfaces
}

func newPeer(t testing.TB, policySpec, bindingSpec string, namespace *unstructured.Unstructured) *peer {
	t.Helper()
	p := &peer{
		policy:     &admissionregistrationv1.ValidatingAdmissionPolicy{},
		binding:    &admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
		interfaces: admission.NewObjectInterfacesFromScheme(runtime.NewScheme()),
	}
	convert := func(obj *unstructured.Unstructured, into any) {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, into); err != nil {
			t.Fatal(err)
		}
	}
	convert(parse(t, policyOf(policySpec)), p.policy)
	convert(parse(t, bindingOf(bindingSpec)), p.binding)
	for _, m := range []*admissionregistrationv1.MatchResources{p.policy.Spec.MatchConstraints, p.binding.Spec.MatchResources} {
		if m == nil {
			continue
		}
		if m.MatchPolicy == nil {
			m.MatchPolicy = ptr.To(admissionregistrationv1.Equivalent)
		}
		if m.NamespaceSelector == nil {
			m.NamespaceSelector = &metav1.LabelSelector{}
		}
		if m.ObjectSelector == nil {
			m.ObjectSelector = &metav1.LabelSelector{}
		}
	}
	namespaces := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if namespace != nil {
		ns := &corev1.Namespace{}
		convert(namespace, ns)
		if err := namespaces.Add(ns); err != nil {
			t.Fatal(err)
		}
	}
	p.matcher = generic.NewPolicyMatcher(matching.NewMatcher(listersv1.NewNamespaceLister(namespaces), fake.NewClientset()))
	registry := p.interfaces.GetEquivalentResourceMapper().(runtime.EquivalentResourceRegistry)
	for _, version := range []string{"v1", "v1beta2"} {
		gv := schema.GroupVersion{Group: "apps", Version: version}
		registry.RegisterKindFor(gv.WithResource("deployments"), "", gv.WithKind("Deployment"))
	}
	return p
}

// matches tells whether a request matches. An error is one of what could match.
func (p *peer) matches(attr admission.Attributes) bool {
	byPolicy, _, _, policyErr := p.matcher.DefinitionMatches(attr, p.interfaces, validating.NewValidatingAdmissionPolicyAccessor(p.policy))
	byBinding, bindingErr := p.matcher.BindingMatches(attr, p.interfaces, validating.NewValidatingAdmissionPolicyBindingAccessor(p.binding))
	return (byPolicy || policyErr != nil) && (byBinding || bindingErr != nil)
}

// review returns what the plugin says to the request that creates a subject, or to
// the one that updates it if only that matches.
func (p *peer) review(ctx context.Context, t testing.TB, s Subject) error {
	for _, operation := range operations() {
		attr := admission.NewAttributesRecord(s.Object, nil, s.Object.GroupVersionKind(), s.namespace(), s.Object.GetName(),
			s.Resource, "", operation, nil, false, &user.DefaultInfo{})
		if !p.matches(attr) {
			continue
		}
		hook := validating.PolicyHook{
			Policy:    p.policy,
			Bindings:  []*admissionregistrationv1.ValidatingAdmissionPolicyBinding{p.binding},
			Evaluator: p.evaluator(t),
		}
		return validating.NewDispatcher(nil, p.matcher).Dispatch(ctx, attr, p.interfaces, []validating.PolicyHook{hook})
	}
	return nil
}

func (p *peer) evaluator(t testing.TB) validating.Validator {
	t.Helper()
	compiler, err := admissioncel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	spec := p.policy.Spec
	declared := admissioncel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	for _, v := range spec.Variables {
		compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, declared, environment.StoredExpressions)
	}
	var conditions, validations, messages, annotations []admissioncel.ExpressionAccessor
	for i := range spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&spec.MatchConditions[i]))
	}
	for _, v := range spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message})
		var message admissioncel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
	}
	for _, a := range spec.AuditAnnotations {
		annotations = append(annotations, &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression})
	}
	compile := func(list []admissioncel.ExpressionAccessor) admissioncel.ConditionEvaluator {
		return compiler.CompileCondition(list, declared, environment.StoredExpressions)
	}
	return validating.NewValidator(compile(validations), matchconditions.NewMatcher(compile(conditions), spec.FailurePolicy, "policy", "validate", "p"),
		compile(annotations), compile(messages), spec.FailurePolicy, nil)
}

// checkPeer compares a verdict with what the kube-apiserver says. It denies what
// fails and what cannot be evaluated.
func checkPeer(t *testing.T, policySpec, bindingSpec string, s Subject, v Verdict) {
	t.Helper()
	if v.Outcome == Deferred {
		return
	}
	err := newPeer(t, policySpec, bindingSpec, s.Namespace).review(context.Background(), t, s)
	if denied := v.Outcome == Fail || v.Outcome == Error; denied != (err != nil) {
		t.Errorf("got %v, but the kube-apiserver says %v", summary(v), err)
	}
	if v.Outcome != Fail || v.Message != "" || s.Namespaced && s.Namespace == nil {
		return
	}
	for _, violation := range v.Violations {
		if strings.HasSuffix(err.Error(), violation.Message) {
			return
		}
	}
	t.Errorf("got %v, but the kube-apiserver says %v", summary(v), err)
}
