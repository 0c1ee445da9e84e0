package expand

import (
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Expansion is what becomes of an object.
type Expansion struct {
	// Resultants of the object and of its resultants, each before its own.
	Resultants []Resultant
	// Failures are resultants that could not be made.
	Failures []Failure
}

// Resultant is an object that would be made.
type Resultant struct {
	Template *Template
	Object   *unstructured.Unstructured
}

// Failure is a resultant that could not be made.
type Failure struct {
	Template *Template
	// Kinds of which there may be resultants that are not known for that: the
	// template's and what others make of it.
	Kinds []schema.GroupVersionKind
	// Err says which field of which object is wrong.
	Err error
}

// Expand expands an object by the templates that apply to exactly its version. The
// answer is nil if there are none.
//
// A resultant is the content of the template's source field with the kind that it
// says; the namespace of the object; the object's name, a dash and the kind in lower
// case as its name; and, unless it is there already, an owner reference to the object
// without a uid.
func (s *System) Expand(obj *unstructured.Unstructured) *Expansion {
	gvk := obj.GroupVersionKind()
	if len(s.forKind[gvk]) == 0 {
		return nil
	}
	e := &Expansion{}
	s.expand(obj, gvk, e)
	return e
}

// Sources returns the fields that resultants of objects of a kind, in any version, are
// made of, each as a path. What resultants of resultants are made of is in them.
func (s *System) Sources(gk schema.GroupKind) [][]string {
	var out [][]string
	for gvk, templates := range s.forKind {
		if gvk.GroupKind() != gk {
			continue
		}
		for _, t := range templates {
			out = append(out, t.source)
		}
	}
	return out
}

// expand ends because there are no circles; NewSystem sees to that.
func (s *System) expand(obj *unstructured.Unstructured, gvk schema.GroupVersionKind, e *Expansion) {
	for _, t := range s.forKind[gvk] {
		resultant, err := t.expand(obj)
		if err != nil {
			e.Failures = append(e.Failures, Failure{Template: t, Kinds: s.makes[t], Err: fmt.Errorf("no %s can be made of %s %s: %w", t.Generates.Kind, obj.GetKind(), obj.GetName(), err)})
			continue
		}
		e.Resultants = append(e.Resultants, Resultant{Template: t, Object: resultant})
		s.expand(resultant, t.Generates, e)
	}
}

// expand makes the resultant of an object.
func (t *Template) expand(parent *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	source, err := t.sourceOf(parent)
	if err != nil {
		return nil, err
	}
	content := maps.Clone(source)
	switch metadata := source["metadata"].(type) {
	case nil:
		content["metadata"] = map[string]any{}
	case map[string]any:
		content["metadata"] = maps.Clone(metadata)
	default:
		return nil, fmt.Errorf("%s.metadata is no object", strings.Join(t.source, "."))
	}
	r := &unstructured.Unstructured{Object: content}
	r.SetGroupVersionKind(t.Generates)
	if namespace := parent.GetNamespace(); namespace != "" {
		r.SetNamespace(namespace)
	}
	r.SetName(strings.ToLower(parent.GetName() + "-" + t.Generates.Kind))
	addOwner(r, parent)
	return r, nil
}

// sourceOf returns the content of the object's source field.
func (t *Template) sourceOf(obj *unstructured.Unstructured) (map[string]any, error) {
	content := obj.Object
	for i, field := range t.source {
		value := content[field]
		next, ok := value.(map[string]any)
		switch path := strings.Join(t.source[:i+1], "."); {
		case value == nil:
			return nil, fmt.Errorf("%s is missing, which spec.templateSource needs", path)
		case !ok:
			return nil, fmt.Errorf("%s is no object, which spec.templateSource needs", path)
		}
		content = next
	}
	return content, nil
}

// addOwner adds an owner reference to the parent.
func addOwner(r, parent *unstructured.Unstructured) {
	owner := metav1.OwnerReference{APIVersion: parent.GetAPIVersion(), Kind: parent.GetKind(), Name: parent.GetName()}
	if owner.APIVersion == "" || owner.Kind == "" || owner.Name == "" {
		return
	}
	owners := r.GetOwnerReferences()
	for _, o := range owners {
		if o.APIVersion == owner.APIVersion && o.Kind == owner.Kind && o.Name == owner.Name {
			return
		}
	}
	r.SetOwnerReferences(append(owners, owner))
}
