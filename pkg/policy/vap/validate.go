package vap

import (
	"regexp"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of the kube-apiserver.
const (
	maxMatchConditions  = 64
	maxAuditAnnotations = 20
	maxValueExpression  = 5 << 10
)

// The rules of this file are those of the kube-apiserver for what it stores, as far
// as a policy or binding would otherwise mean something else here than there. CEL
// itself, and names that repeat, are for the compiler to check.

func validatePolicy(name string, spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if p := spec.FailurePolicy; p != nil {
		errs = append(errs, oneOf(path.Child("failurePolicy"), *p, admissionregistrationv1.Fail, admissionregistrationv1.Ignore)...)
	}
	if spec.ParamKind != nil {
		errs = append(errs, validateParamKind(path.Child("paramKind"), spec.ParamKind)...)
	}
	if constraints := path.Child("matchConstraints"); spec.MatchConstraints == nil {
		errs = append(errs, field.Required(constraints, "it says which resources the policy is for"))
	} else {
		if len(spec.MatchConstraints.ResourceRules) == 0 {
			errs = append(errs, field.Required(constraints.Child("resourceRules"), "a policy needs one at least"))
		}
		errs = append(errs, validateMatch(constraints, spec.MatchConstraints)...)
	}
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		errs = append(errs, field.Required(path.Child("validations"), "a policy needs validations or auditAnnotations"))
	}
	for i := range spec.Validations {
		errs = append(errs, validateValidation(path.Child("validations").Index(i), &spec.Validations[i])...)
	}
	if n := len(spec.MatchConditions); n > maxMatchConditions {
		errs = append(errs, field.TooMany(path.Child("matchConditions"), n, maxMatchConditions))
	}
	for i, m := range spec.MatchConditions {
		errs = append(errs, validateQualifiedName(path.Child("matchConditions").Index(i).Child("name"), m.Name, m.Name)...)
	}
	for i, v := range spec.Variables {
		if !isIdentifier(v.Name) {
			errs = append(errs, field.Invalid(path.Child("variables").Index(i).Child("name"), v.Name, "it has to be an identifier of CEL"))
		}
	}
	return append(errs, validateAnnotations(path.Child("auditAnnotations"), name, spec.AuditAnnotations)...)
}

func validateParamKind(path *field.Path, kind *admissionregistrationv1.ParamKind) field.ErrorList {
	var errs field.ErrorList
	if gv, err := schema.ParseGroupVersion(kind.APIVersion); err != nil || gv.Version == "" {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), kind.APIVersion, "it has to be VERSION or GROUP/VERSION"))
	}
	if kind.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	}
	return errs
}

func validateValidation(path *field.Path, v *admissionregistrationv1.Validation) field.ErrorList {
	var errs field.ErrorList
	message := strings.TrimSpace(v.Message)
	switch {
	case v.Message != "" && message == "":
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "it says nothing"))
	case strings.ContainsAny(message, "\r\n"):
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "it must not have line breaks"))
	case message == "" && strings.ContainsAny(strings.TrimSpace(v.Expression), "\r\n"):
		errs = append(errs, field.Required(path.Child("message"), "the expression has line breaks and is no message"))
	}
	if v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		errs = append(errs, field.Invalid(path.Child("messageExpression"), v.MessageExpression, "it says nothing"))
	}
	if v.Reason != nil {
		errs = append(errs, oneOf(path.Child("reason"), *v.Reason, metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden,
			metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
	}
	return errs
}

func validateAnnotations(path *field.Path, policyName string, annotations []admissionregistrationv1.AuditAnnotation) field.ErrorList {
	var errs field.ErrorList
	if n := len(annotations); n > maxAuditAnnotations {
		errs = append(errs, field.TooMany(path, n, maxAuditAnnotations))
	}
	seen := map[string]bool{}
	for i, a := range annotations {
		errs = append(errs, validateQualifiedName(path.Index(i).Child("key"), a.Key, policyName+"/"+a.Key)...)
		if seen[a.Key] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("key"), a.Key))
		}
		seen[a.Key] = true
		if len(a.ValueExpression) > maxValueExpression {
			errs = append(errs, field.TooLong(path.Index(i).Child("valueExpression"), "", maxValueExpression))
		}
	}
	return errs
}

// validateQualifiedName checks a name, which is qualified as written or by what it
// belongs to.
func validateQualifiedName(path *field.Path, name, qualified string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if problems := validation.IsQualifiedName(qualified); len(problems) > 0 {
		return field.ErrorList{field.Invalid(path, name, strings.Join(problems, ", "))}
	}
	return nil
}

func validateMatch(path *field.Path, m *admissionregistrationv1.MatchResources) field.ErrorList {
	var errs field.ErrorList
	if m.MatchPolicy != nil {
		errs = append(errs, oneOf(path.Child("matchPolicy"), *m.MatchPolicy, admissionregistrationv1.Exact, admissionregistrationv1.Equivalent)...)
	}
	errs = append(errs, validateSelector(path.Child("namespaceSelector"), m.NamespaceSelector)...)
	errs = append(errs, validateSelector(path.Child("objectSelector"), m.ObjectSelector)...)
	for i := range m.ResourceRules {
		errs = append(errs, validateRule(path.Child("resourceRules").Index(i), &m.ResourceRules[i])...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateRule(path.Child("excludeResourceRules").Index(i), &m.ExcludeResourceRules[i])...)
	}
	return errs
}

func validateSelector(path *field.Path, s *metav1.LabelSelector) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

func validateRule(path *field.Path, r *admissionregistrationv1.NamedRuleWithOperations) field.ErrorList {
	var errs field.ErrorList
	for i, operation := range r.Operations {
		errs = append(errs, oneOf(path.Child("operations").Index(i), operation, admissionregistrationv1.OperationAll, admissionregistrationv1.Create,
			admissionregistrationv1.Update, admissionregistrationv1.Delete, admissionregistrationv1.Connect)...)
	}
	errs = append(errs, validateList(path.Child("operations"), r.Operations)...)
	errs = append(errs, validateList(path.Child("apiGroups"), r.APIGroups)...)
	errs = append(errs, validateList(path.Child("apiVersions"), r.APIVersions)...)
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(path.Child("resources"), ""))
	}
	for _, list := range []struct {
		name   string
		values []string
	}{{"apiVersions", r.APIVersions}, {"resources", r.Resources}, {"resourceNames", r.ResourceNames}} {
		for i, value := range list.values {
			if value == "" {
				errs = append(errs, field.Required(path.Child(list.name).Index(i), ""))
			}
		}
	}
	if r.Scope != nil {
		errs = append(errs, oneOf(path.Child("scope"), *r.Scope, admissionregistrationv1.AllScopes, admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope)...)
	}
	return errs
}

// validateList checks a list that has to have something, where * stands alone.
func validateList[T ~string](path *field.Path, list []T) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(list) > 1 && slices.Contains(list, "*") {
		return field.ErrorList{field.Invalid(path, list, "* has to be alone")}
	}
	return nil
}

func validateBinding(spec *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if spec.PolicyName == "" {
		errs = append(errs, field.Required(path.Child("policyName"), ""))
	}
	actions := path.Child("validationActions")
	if len(spec.ValidationActions) == 0 {
		errs = append(errs, field.Required(actions, ""))
	}
	for i, action := range spec.ValidationActions {
		errs = append(errs, oneOf(actions.Index(i), action, admissionregistrationv1.Deny, admissionregistrationv1.Warn, admissionregistrationv1.Audit)...)
		if slices.Contains(spec.ValidationActions[:i], action) {
			errs = append(errs, field.Duplicate(actions.Index(i), action))
		}
	}
	if slices.Contains(spec.ValidationActions, admissionregistrationv1.Deny) && slices.Contains(spec.ValidationActions, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(actions, spec.ValidationActions, "Deny and Warn must not be used together"))
	}
	if spec.MatchResources != nil {
		errs = append(errs, validateMatch(path.Child("matchResources"), spec.MatchResources)...)
	}
	if spec.ParamRef != nil {
		errs = append(errs, validateParamRef(path.Child("paramRef"), spec.ParamRef)...)
	}
	return errs
}

func validateParamRef(path *field.Path, ref *admissionregistrationv1.ParamRef) field.ErrorList {
	var errs field.ErrorList
	if (ref.Name == "") == (ref.Selector == nil) {
		errs = append(errs, field.Invalid(path, ref.Name, "it needs either name or selector"))
	}
	errs = append(errs, validateSelector(path.Child("selector"), ref.Selector)...)
	if ref.ParameterNotFoundAction == nil {
		return append(errs, field.Required(path.Child("parameterNotFoundAction"), "it has to be Allow or Deny"))
	}
	return append(errs, oneOf(path.Child("parameterNotFoundAction"), *ref.ParameterNotFoundAction, admissionregistrationv1.AllowAction, admissionregistrationv1.DenyAction)...)
}

func oneOf[T ~string](path *field.Path, value T, supported ...T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}

// isIdentifier tells whether a variable of a name can be referred to.
func isIdentifier(name string) bool {
	switch name {
	case "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
		"import", "let", "loop", "package", "namespace", "return", "var", "void", "while":
		return false
	}
	matched, err := regexp.MatchString(`^[_a-zA-Z][_a-zA-Z0-9]*$`, name)
	return err == nil && matched
}
