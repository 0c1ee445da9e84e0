package vap

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

// Subject is an object to be judged.
type Subject struct {
	Object *unstructured.Unstructured
	// Namespace of the object, nil if it is in none or it is not known.
	Namespace *unstructured.Unstructured
	// Resource that the object was read from.
	Resource   schema.GroupVersionResource
	Namespaced bool
	// Operation of the request whose object it is, empty if it is judged because it
	// exists. In a DELETE, Object is the one that goes.
	Operation string
	// Request is what there is of the request besides. It is nil if Operation is empty.
	Request *cel.Request
}

// operations of the requests that the subject is judged as the object of, by
// preference.
func (s *Subject) operations() []admission.Operation {
	if s.Operation == "" {
		return operations()
	}
	return []admission.Operation{admission.Operation(s.Operation)}
}

// oldObject returns the object that a request replaces, nil if there is none.
func (s *Subject) oldObject() *unstructured.Unstructured {
	if s.Request == nil {
		return nil
	}
	return s.Request.OldObject
}

// namespace of a request for the subject. Requests for a Namespace are in it.
func (s *Subject) namespace() string {
	if isNamespaces(s.Resource) {
		return s.Object.GetName()
	}
	if !s.Namespaced {
		return ""
	}
	return s.Object.GetNamespace()
}

func isNamespaces(gvr schema.GroupVersionResource) bool {
	return gvr.Group == "" && gvr.Resource == "namespaces"
}

// isExempt tells whether no policy matches a resource, lest policies lock
// themselves in.
func isExempt(gvr schema.GroupVersionResource) bool {
	if gvr.Group != admissionregistrationv1.GroupName {
		return false
	}
	switch gvr.Resource {
	case "validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings":
		return true
	}
	return false
}

// operations are those by which objects come to be what they are.
func operations() []admission.Operation {
	return []admission.Operation{admission.Create, admission.Update}
}

// matcher is a compiled matchConstraints or matchResources.
type matcher struct {
	namespaceSelector labels.Selector
	objectSelector    labels.Selector
	rules             []rule // none select everything
	excluded          []rule
}

type rule struct {
	admissionregistrationv1.RuleWithOperations
	names []string // none are all
	// versions are the API versions as written.
	versions []string
}

func newMatcher(r *admissionregistrationv1.MatchResources) (*matcher, error) {
	// Any version of a resource is equivalent to any other, by default.
	exact := r.MatchPolicy != nil && *r.MatchPolicy == admissionregistrationv1.Exact
	m := &matcher{rules: newRules(r.ResourceRules, exact), excluded: newRules(r.ExcludeResourceRules, exact)}
	var err error
	if m.namespaceSelector, err = selector(r.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("namespaceSelector: %w", err)
	}
	if m.objectSelector, err = selector(r.ObjectSelector); err != nil {
		return nil, fmt.Errorf("objectSelector: %w", err)
	}
	return m, nil
}

// selector is nil if it selects everything.
func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

func newRules(list []admissionregistrationv1.NamedRuleWithOperations, exact bool) []rule {
	var out []rule
	for _, named := range list {
		r := rule{RuleWithOperations: named.RuleWithOperations, names: named.ResourceNames, versions: named.APIVersions}
		if !exact {
			r.APIVersions = []string{"*"}
		}
		out = append(out, r)
	}
	return out
}

func (r *rule) matches(attr admission.Attributes) bool {
	m := rules.Matcher{Rule: r.RuleWithOperations, Attr: attr}
	return m.Matches()
}

// matchesResource tells whether the rules select the object of a request.
func (m *matcher) matchesResource(attr admission.Attributes) bool {
	if m == nil {
		return true
	}
	matches := func(r rule) bool {
		return r.matches(attr) && (len(r.names) == 0 || slices.Contains(r.names, attr.GetName()))
	}
	if slices.ContainsFunc(m.excluded, matches) {
		return false
	}
	return len(m.rules) == 0 || slices.ContainsFunc(m.rules, matches)
}

// otherVersions returns the versions that the rules name which select the object of a
// request, if none of them is the request's: a kube-apiserver would convert the object
// to one of these.
func (m *matcher) otherVersions(attr admission.Attributes) []string {
	var versions []string
	for _, r := range m.rules {
		if !r.matches(attr) {
			continue
		}
		if slices.Contains(r.versions, "*") || slices.Contains(r.versions, attr.GetResource().Version) {
			return nil
		}
		versions = append(versions, r.versions...)
	}
	slices.Sort(versions)
	return slices.Compact(versions)
}

// matchesKind tells whether the rules select an object of some name.
func (m *matcher) matchesKind(attr admission.Attributes) bool {
	if m == nil {
		return true
	}
	if slices.ContainsFunc(m.excluded, func(r rule) bool { return len(r.names) == 0 && r.matches(attr) }) {
		return false
	}
	return len(m.rules) == 0 || slices.ContainsFunc(m.rules, func(r rule) bool { return r.matches(attr) })
}

func (m *matcher) needsNamespace() bool {
	return m != nil && m.namespaceSelector != nil && !m.namespaceSelector.Empty()
}

// ReadsLabels tells whether selectors of the policy or the binding may decide by the labels
// of objects of a resource, and by those of their Namespaces.
func (b *Binding) ReadsLabels(gvr schema.GroupVersionResource) (ofObject, ofNamespace bool) {
	for _, m := range []*matcher{b.Policy.match, b.match} {
		if m == nil {
			continue
		}
		ofObject = ofObject || m.objectSelector != nil && !m.objectSelector.Empty() || isNamespaces(gvr) && m.needsNamespace()
		ofNamespace = ofNamespace || m.needsNamespace()
	}
	return ofObject, ofNamespace
}

// matchesObject tells whether the objectSelector selects an object or the one that it
// replaces.
func (m *matcher) matchesObject(s *Subject) bool {
	if m.objectSelector == nil || m.objectSelector.Matches(labels.Set(s.Object.GetLabels())) {
		return true
	}
	old := s.oldObject()
	return old != nil && m.objectSelector.Matches(labels.Set(old.GetLabels()))
}

// matchesSelectors tells whether the selectors select an object. The error says
// that its Namespace is not known.
func (m *matcher) matchesSelectors(s *Subject) (bool, error) {
	if m == nil {
		return true, nil
	}
	if !m.matchesObject(s) {
		return false, nil
	}
	switch {
	case !m.needsNamespace():
		return true, nil
	case isNamespaces(s.Resource):
		return m.namespaceSelector.Matches(labels.Set(s.Object.GetLabels())), nil
	case !s.Namespaced:
		return true, nil
	case s.Namespace == nil:
		return false, fmt.Errorf("the Namespace %s is not known, and the namespaceSelector needs it", s.Object.GetNamespace())
	}
	return m.namespaceSelector.Matches(labels.Set(s.Namespace.GetLabels())), nil
}

// SelectsGroup tells whether objects of some resource of an API group can match.
func (b *Binding) SelectsGroup(group string) bool {
	return b.Policy.match.matchesGroup(group) && b.match.matchesGroup(group)
}

func (m *matcher) matchesGroup(group string) bool {
	return m == nil || len(m.rules) == 0 || slices.ContainsFunc(m.rules, func(r rule) bool {
		return slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, group)
	})
}

// SelectsKind tells whether objects of a resource can match, by the rules of the
// policy and the binding for objects that are created or updated.
func (b *Binding) SelectsKind(gvr schema.GroupVersionResource, namespaced bool) bool {
	if isExempt(gvr) {
		return false
	}
	namespace := ""
	if namespaced || isNamespaces(gvr) {
		namespace = "any"
	}
	for _, operation := range operations() {
		attr := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, namespace, "", gvr, "", operation, nil, false, nil)
		if b.Policy.match.matchesKind(attr) && b.match.matchesKind(attr) {
			return true
		}
	}
	return false
}

// NamesResource tells whether a rule of the policy has a resource by its name.
func (b *Binding) NamesResource(gvr schema.GroupVersionResource) bool {
	return b.Policy.match != nil && slices.ContainsFunc(b.Policy.match.rules, func(r rule) bool {
		return slices.Contains(r.Resources, gvr.Resource) && (slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, gvr.Group))
	})
}

// attributes of a request for an object.
func (s *Subject) attributes(operation admission.Operation) admission.Attributes {
	return admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, s.namespace(), s.Object.GetName(), s.Resource, "", operation, nil, false, nil)
}

// Why an object is not matched.
const (
	whyExempt          = "policies do not apply to policies"
	whyPolicyRules     = "spec.matchConstraints of the policy has no rule for it"
	whyBindingRules    = "spec.matchResources of the binding has no rule for it"
	whyPolicySelector  = "a selector in spec.matchConstraints of the policy does not select it"
	whyBindingSelector = "a selector in spec.matchResources of the binding does not select it"
	whyConditions      = "a match condition of the policy is false"
)

// matches tells of which operation the request is by which policy and binding match an
// object, or why they do not.
func (b *Binding) matches(s *Subject) (operation admission.Operation, why string, err error) {
	if isExempt(s.Resource) {
		return "", whyExempt, nil
	}
	why = whyPolicyRules
	for _, o := range s.operations() {
		attr := s.attributes(o)
		if !b.Policy.match.matchesResource(attr) {
			continue
		}
		why = whyBindingRules
		if b.match.matchesResource(attr) {
			operation = o
			break
		}
	}
	if operation == "" {
		return "", why, nil
	}
	// One selector that does not match is enough, whatever the other needs.
	byPolicy, policyErr := b.Policy.match.matchesSelectors(s)
	byBinding, bindingErr := b.match.matchesSelectors(s)
	switch {
	case !byPolicy && policyErr == nil:
		return "", whyPolicySelector, nil
	case !byBinding && bindingErr == nil:
		return "", whyBindingSelector, nil
	case policyErr != nil:
		return "", "", fmt.Errorf("policy %s: spec.matchConstraints: %w", b.Policy.Name, policyErr)
	case bindingErr != nil:
		return "", "", fmt.Errorf("spec.matchResources: %w", bindingErr)
	}
	return operation, "", nil
}
