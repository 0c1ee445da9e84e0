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
	Source             Source                `json:"source,omitempty"`
}

// Kinds selects objects by group and kind; versions never matter. An empty list,
// and "*", select everything.
type Kinds struct {
	APIGroups []string `json:"apiGroups,omitempty"`
	Kinds     []string `json:"kinds,omitempty"`
}

// Source is where an object comes from. A match block with a source selects objects
// of no other; All, and none, select those of both.
type Source string

const (
	// Original objects exist.
	Original Source = "Original"
	// Generated objects only exist as what another object expands to.
	Generated Source = "Generated"

	sourceAll = "All"
)

const (
	scopeCluster    = "Cluster"
	scopeNamespaced = "Namespaced"
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
	switch m.spec.Source {
	case "", sourceAll, Original, Generated:
	default:
		return nil, fmt.Errorf("spec.match.source is %q; it must be All, Original or Generated", m.spec.Source)
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

// ReadsLabels tells whether the decision may depend on the labels of the object, besides
// what namespaceSelector asks of a Namespace.
func (m *Matcher) ReadsLabels() bool { return m.labelSelector != nil }

// ReadsGenerateName tells whether the decision may depend on the object's generateName.
func (m *Matcher) ReadsGenerateName() bool { return strings.HasSuffix(m.spec.Name, "*") }

// SelectsKind tells whether objects of a kind and a source can match at all.
func (m *Matcher) SelectsKind(gk schema.GroupKind, namespaced bool, source Source) bool {
	switch m.spec.Scope {
	case scopeCluster:
		if namespaced && gk != namespaceKind {
			return false
		}
	case scopeNamespaced:
		if !namespaced || gk == namespaceKind {
			return false
		}
	}
	return m.selectsSource(source) && m.selectsGroupKind(gk)
}

// NamesKind tells whether kinds has a kind by its name.
func (m *Matcher) NamesKind(gk schema.GroupKind) bool {
	return slices.ContainsFunc(m.spec.Kinds, func(k Kinds) bool {
		return slices.Contains(k.Kinds, gk.Kind) && listed(k.APIGroups, gk.Group)
	})
}

func (m *Matcher) selectsSource(source Source) bool {
	switch m.spec.Source {
	case "", sourceAll:
		return true
	}
	return m.spec.Source == source
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

// SelectsGroup tells whether objects of some kind of an API group, and of a source,
// can match.
func (m *Matcher) SelectsGroup(group string, source Source) bool {
	return m.selectsSource(source) &&
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

// Matches tells whether an object is selected. namespace is its Namespace, nil if it
// has none or it is not known.
func (m *Matcher) Matches(obj, namespace *unstructured.Unstructured, source Source) (bool, error) {
	field, err := m.Excludes(obj, namespace, source)
	return field == "" && err == nil, err
}

// Excludes returns the field that rules an object out, "" if it is selected.
func (m *Matcher) Excludes(obj, namespace *unstructured.Unstructured, source Source) (field string, err error) {
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
	case !m.selectsSource(source):
		return "spec.match.source", nil
	}
	return "", nil
}

// CanMatch tells whether an object of a kind may be selected of which no more is known
// than where it is. namespaceName is empty if it may be in any namespace or in none.
func (m *Matcher) CanMatch(gvk schema.GroupVersionKind, namespaceName string, namespace *unstructured.Unstructured, source Source) bool {
	relaxed := *m
	relaxed.labelSelector, relaxed.spec.Name = nil, ""
	if gvk.GroupKind() == namespaceKind || namespaceName == "" {
		relaxed.namespaceSelector, relaxed.spec.Namespaces, relaxed.spec.ExcludedNamespaces = nil, nil, nil
	}
	if namespaceName == "" {
		relaxed.spec.Scope = ""
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetGroupVersionKind(gvk)
	obj.SetNamespace(namespaceName)
	matches, err := relaxed.Matches(obj, namespace, source)
	return matches || err != nil
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
