// Package match decides whether a constraint's match block selects an object, by
// the rules of Gatekeeper's match block, natively and without evaluating policy.
//
// It imports only k8s.io/apimachinery.
package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Spec is the match block as it is written. All its fields have to select an
// object; a field that is absent selects every object.
type Spec struct {
	Kinds              []Kinds               `json:"kinds,omitempty"`
	Scope              string                `json:"scope,omitempty"`
	Namespaces         []string              `json:"namespaces,omitempty"`
	ExcludedNamespaces []string              `json:"excludedNamespaces,omitempty"`
	LabelSelector      *metav1.LabelSelector `json:"labelSelector,omitempty"`
	NamespaceSelector  *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	Name               string                `json:"name,omitempty"`
	Source             string                `json:"source,omitempty"`
}

// Kinds selects objects by group and kind; versions never matter. An empty list,
// and "*", select everything.
type Kinds struct {
	APIGroups []string `json:"apiGroups,omitempty"`
	Kinds     []string `json:"kinds,omitempty"`
}

const (
	scopeCluster    = "Cluster"
	scopeNamespaced = "Namespaced"

	// sourceGenerated selects objects that only exist as what another object expands
	// to, sourceOriginal all others.
	sourceGenerated = "Generated"
	sourceOriginal  = "Original"
)

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// ErrNamespaceUnknown is returned by Matches when a namespaceSelector has to
// decide about an object whose Namespace is not known.
var ErrNamespaceUnknown = errors.New("the Namespace of the object is not known, so namespaceSelector cannot be evaluated")

// Matcher is a compiled match block. It is immutable.
type Matcher struct {
	spec              Spec
	labelSelector     labels.Selector // nil selects everything
	namespaceSelector labels.Selector // nil selects everything
}

// Compile turns the content of spec.match, which may be nil, into a Matcher. The
// error says what is wrong with it.
func Compile(content map[string]any) (*Matcher, error) {
	m := &Matcher{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &m.spec); err != nil {
		return nil, fmt.Errorf("spec.match: %w", err)
	}
	var err error
	if m.labelSelector, err = selector(m.spec.LabelSelector); err != nil {
		return nil, fmt.Errorf("spec.match.labelSelector: %w", err)
	}
	if m.namespaceSelector, err = selector(m.spec.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("spec.match.namespaceSelector: %w", err)
	}
	return m, nil
}

func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// NeedsNamespace tells whether the decision may depend on the Namespace object.
func (m *Matcher) NeedsNamespace() bool { return m.namespaceSelector != nil }

// SelectsKind tells whether objects of a kind can match at all.
func (m *Matcher) SelectsKind(gk schema.GroupKind, namespaced bool) bool {
	switch m.spec.Scope {
	case scopeCluster:
		if namespaced {
			return false
		}
	case scopeNamespaced:
		if !namespaced || gk == namespaceKind {
			return false
		}
	}
	// What an audit sees are objects that exist.
	return m.spec.Source != sourceGenerated && m.selectsGroupKind(gk)
}

// UnknownScope returns the scope if it is none that means anything: it selects
// everything then, as in Gatekeeper.
func (m *Matcher) UnknownScope() string {
	switch m.spec.Scope {
	case "", "*", scopeCluster, scopeNamespaced:
		return ""
	}
	return m.spec.Scope
}

// SelectsGroup tells whether objects of some kind of an API group can match.
func (m *Matcher) SelectsGroup(group string) bool {
	return m.spec.Source != sourceGenerated &&
		(len(m.spec.Kinds) == 0 || slices.ContainsFunc(m.spec.Kinds, func(k Kinds) bool { return listed(k.APIGroups, group) }))
}

func (m *Matcher) selectsGroupKind(gk schema.GroupKind) bool {
	if len(m.spec.Kinds) == 0 {
		return true
	}
	for _, k := range m.spec.Kinds {
		if listed(k.Kinds, gk.Kind) && listed(k.APIGroups, gk.Group) {
			return true
		}
	}
	return false
}

func listed(list []string, value string) bool {
	return len(list) == 0 || slices.Contains(list, "*") || slices.Contains(list, value)
}

// Matches tells whether an object that exists is selected. namespace is its
// Namespace, nil if it has none or it is not known.
func (m *Matcher) Matches(obj, namespace *unstructured.Unstructured) (bool, error) {
	field, err := m.Excludes(obj, namespace, false)
	return field == "" && err == nil, err
}

// Excludes returns the field that rules an object out, "" if it is selected. generated
// is true for an object that exists only as what another one expands to.
func (m *Matcher) Excludes(obj, namespace *unstructured.Unstructured, generated bool) (field string, err error) {
	gk := obj.GroupVersionKind().GroupKind()
	isNamespace := gk == namespaceKind
	namespaceName, inNamespace := namespaceOf(obj, namespace, isNamespace)
	switch {
	case !m.selectsGroupKind(gk):
		return "spec.match.kinds", nil
	case !m.selectsScope(obj, namespace, isNamespace):
		return "spec.match.scope", nil
	case inNamespace && len(m.spec.Namespaces) > 0 && !anyWildcard(m.spec.Namespaces, namespaceName):
		return "spec.match.namespaces", nil
	case inNamespace && anyWildcard(m.spec.ExcludedNamespaces, namespaceName):
		return "spec.match.excludedNamespaces", nil
	case m.labelSelector != nil && !m.labelSelector.Matches(labels.Set(obj.GetLabels())):
		return "spec.match.labelSelector", nil
	}
	switch ok, err := m.selectsNamespace(obj, namespace, isNamespace); {
	case err != nil:
		return "", err
	case !ok:
		return "spec.match.namespaceSelector", nil
	case !m.selectsName(obj):
		return "spec.match.name", nil
	case !m.selectsSource(generated):
		return "spec.match.source", nil
	}
	return "", nil
}

// selectsSource applies source; a value other than Original and Generated selects
// everything.
func (m *Matcher) selectsSource(generated bool) bool {
	switch m.spec.Source {
	case sourceOriginal:
		return !generated
	case sourceGenerated:
		return generated
	}
	return true
}

// namespaceOf returns the name that namespaces and excludedNamespaces are
// compared with; ok is false for cluster-scoped objects that are no Namespace,
// which neither of them rules out.
func namespaceOf(obj, namespace *unstructured.Unstructured, isNamespace bool) (name string, ok bool) {
	switch {
	case isNamespace:
		return obj.GetName(), true
	case namespace != nil:
		return namespace.GetName(), true
	case obj.GetNamespace() != "":
		return obj.GetNamespace(), true
	}
	return "", false
}

// selectsScope applies scope; a value other than Cluster and Namespaced selects
// everything.
func (m *Matcher) selectsScope(obj, namespace *unstructured.Unstructured, isNamespace bool) bool {
	switch m.spec.Scope {
	case scopeCluster:
		return isNamespace || obj.GetNamespace() == ""
	case scopeNamespaced:
		return !isNamespace && (obj.GetNamespace() != "" || namespace != nil)
	}
	return true
}

// selectsNamespace applies namespaceSelector: to a Namespace by its own labels,
// to other cluster-scoped objects not at all.
func (m *Matcher) selectsNamespace(obj, namespace *unstructured.Unstructured, isNamespace bool) (bool, error) {
	switch {
	case m.namespaceSelector == nil:
		return true, nil
	case isNamespace:
		return m.namespaceSelector.Matches(labels.Set(obj.GetLabels())), nil
	case namespace != nil:
		return m.namespaceSelector.Matches(labels.Set(namespace.GetLabels())), nil
	case obj.GetNamespace() == "":
		return true, nil
	}
	return false, fmt.Errorf("namespace %s: %w", obj.GetNamespace(), ErrNamespaceUnknown)
}

// selectsName applies name: to the object's name, or to its generateName if the
// pattern is a prefix.
func (m *Matcher) selectsName(obj *unstructured.Unstructured) bool {
	pattern := m.spec.Name
	if pattern == "" || Wildcard(pattern, obj.GetName()) {
		return true
	}
	return strings.HasSuffix(pattern, "*") && obj.GetGenerateName() != "" && Wildcard(pattern, obj.GetGenerateName())
}

func anyWildcard(patterns []string, value string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Wildcard(p, value) })
}

// Wildcard compares a value with a pattern that may have an asterisk in front,
// behind, or both, for a suffix, a prefix, or any part.
func Wildcard(pattern, value string) bool {
	prefix, anyEnd := strings.CutSuffix(pattern, "*")
	switch part, anyStart := strings.CutPrefix(prefix, "*"); {
	case anyStart && anyEnd:
		return strings.Contains(value, part)
	case anyStart:
		return strings.HasSuffix(value, part)
	case anyEnd:
		return strings.HasPrefix(value, prefix)
	}
	return pattern == value
}
