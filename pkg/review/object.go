package review

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// nameLabel is what every Namespace of a cluster has its name in.
const nameLabel = "kubernetes.io/metadata.name"

// subject is an object to be judged.
type subject struct {
	index int
	kind  policy.Kind
	// object is nil in a DELETE, old in a CREATE.
	object, old *unstructured.Unstructured
}

// judged is the object that the verdicts are about.
func (s *subject) judged() *unstructured.Unstructured {
	if s.object == nil {
		return s.old
	}
	return s.object
}

// decode reads the objects of the spec, and its Namespaces.
func (e *evaluation) decode() ([]subject, field.ErrorList) {
	path := field.NewPath("spec")
	var errs field.ErrorList
	read := func(path *field.Path, raw *runtime.RawExtension) (policy.Kind, *unstructured.Unstructured) {
		kind, obj, problems := e.object(path, raw)
		errs = append(errs, problems...)
		return kind, obj
	}
	var subjects []subject
	switch operation := operationOf(e.Spec); {
	case e.Spec.Scope != nil:
	case e.Spec.Resource != nil:
		s, problem := e.live(operation)
		if problem != nil {
			return nil, field.ErrorList{problem}
		}
		subjects = append(subjects, s)
	case operation == v1alpha1.ReviewDelete:
		kind, old := read(path.Child("oldObject"), e.Spec.OldObject)
		subjects = append(subjects, subject{kind: kind, old: old})
	case operation == v1alpha1.ReviewUpdate:
		kind, obj := read(path.Child("object"), e.Spec.Object)
		oldKind, old := read(path.Child("oldObject"), e.Spec.OldObject)
		if len(errs) == 0 && (kind.GroupKind() != oldKind.GroupKind() || obj.GetNamespace() != old.GetNamespace() || obj.GetName() != old.GetName()) {
			errs = append(errs, field.Invalid(path.Child("oldObject"), oldKind.Kind+" "+old.GetName(), "it is another object than spec.object"))
		}
		subjects = append(subjects, subject{kind: kind, object: obj, old: old})
	case len(e.Spec.Objects) > 0:
		for i := range e.Spec.Objects {
			kind, obj := read(path.Child("objects").Index(i), &e.Spec.Objects[i])
			subjects = append(subjects, subject{index: i, kind: kind, object: obj})
		}
	default:
		kind, obj := read(path.Child("object"), e.Spec.Object)
		subjects = append(subjects, subject{kind: kind, object: obj})
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return subjects, e.decodeNamespaces(path.Child("namespaceObjects"), subjects)
}

// live is the object that spec.resource refers to.
func (e *evaluation) live(operation v1alpha1.ReviewOperation) (subject, *field.Error) {
	path := field.NewPath("spec", "resource")
	switch {
	case e.Live == nil:
		return subject{}, field.NotFound(path, e.Spec.Resource.Name)
	case e.Namespace != "" && e.Live.GetNamespace() != e.Namespace:
		return subject{}, field.Invalid(path.Child("namespace"), e.Live.GetNamespace(), "a LocalReview is for objects in its namespace, "+e.Namespace)
	}
	kind, problem := e.kind(path, e.Live)
	s := subject{kind: kind, object: e.Live}
	switch operation {
	case v1alpha1.ReviewUpdate:
		s.old = e.Live
	case v1alpha1.ReviewDelete:
		s.object, s.old = nil, e.Live
	}
	return s, problem
}

// decodeNamespaces reads the Namespaces of the spec; those among the objects are some as
// well.
func (e *evaluation) decodeNamespaces(path *field.Path, subjects []subject) field.ErrorList {
	e.namespaces = map[string]*unstructured.Unstructured{}
	for i := range subjects {
		if subjects[i].kind.GroupKind() == namespaceKind && subjects[i].object != nil {
			e.addNamespace(subjects[i].object)
		}
	}
	var errs field.ErrorList
	for i := range e.Spec.NamespaceObjects {
		obj, problem := decodeObject(path.Index(i), &e.Spec.NamespaceObjects[i])
		switch {
		case problem != nil:
			errs = append(errs, problem)
		case obj.GroupVersionKind() != namespaceKind.WithVersion("v1") || obj.GetName() == "":
			errs = append(errs, field.Invalid(path.Index(i), obj.GetKind(), "it has to be a v1 Namespace with a name"))
		default:
			e.addNamespace(obj)
		}
	}
	return errs
}

// addNamespace adds a Namespace, with the label that a cluster gives it.
func (e *evaluation) addNamespace(obj *unstructured.Unstructured) {
	namespace := obj.DeepCopy()
	labels := namespace.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[nameLabel] = namespace.GetName()
	namespace.SetLabels(labels)
	e.namespaces[namespace.GetName()] = namespace
}

// object reads an object and puts it into its namespace.
func (e *evaluation) object(path *field.Path, raw *runtime.RawExtension) (policy.Kind, *unstructured.Unstructured, field.ErrorList) {
	obj, problem := decodeObject(path, raw)
	if problem != nil {
		return policy.Kind{}, nil, field.ErrorList{problem}
	}
	kind, problem := e.kind(path, obj)
	if problem == nil {
		problem = e.place(path, kind, obj)
	}
	if problem != nil {
		return policy.Kind{}, nil, field.ErrorList{problem}
	}
	return kind, obj, nil
}

// place puts an object into the namespace that a request for it would be in.
func (e *evaluation) place(path *field.Path, kind policy.Kind, obj *unstructured.Unstructured) *field.Error {
	namespace := obj.GetNamespace()
	switch {
	case !kind.Namespaced && e.Namespace != "":
		return field.Invalid(path.Child("kind"), kind.Kind, "a LocalReview is for objects in its namespace, and this kind is in none")
	case !kind.Namespaced:
		namespace = ""
	case namespace == "" && e.Namespace != "":
		namespace = e.Namespace
	case namespace == "":
		namespace = metav1.NamespaceDefault
	case e.Namespace != "" && namespace != e.Namespace:
		return field.Invalid(path.Child("metadata", "namespace"), namespace, "a LocalReview is for objects in its namespace, "+e.Namespace)
	}
	obj.SetNamespace(namespace)
	return nil
}

// kind returns the kind of an object, in the object's version.
func (e *evaluation) kind(path *field.Path, obj *unstructured.Unstructured) (policy.Kind, *field.Error) {
	gvk := obj.GroupVersionKind()
	kind, ok, err := e.policies.Kind(gvk.GroupKind())
	switch {
	case err != nil:
		return policy.Kind{}, field.InternalError(path.Child("kind"), err)
	case !ok && e.GuessKind == nil:
		return policy.Kind{}, field.Invalid(path.Child("kind"), gvk.Kind, fmt.Sprintf("the cluster has no kind %s in %s that can be listed", gvk.Kind, gvk.GroupVersion()))
	case !ok:
		var known bool
		if kind, known = e.GuessKind(gvk, obj.GetNamespace() != ""); !known {
			e.addNote(fmt.Sprintf("the kind %s of %s is not known; its resource is taken for %s", gvk.Kind, gvk.GroupVersion(), kind.Resource))
		}
	case kind.Version != gvk.Version:
		e.addNote(fmt.Sprintf("%s %s is judged as it is written; the cluster prefers the version %s", gvk.GroupVersion(), gvk.Kind, kind.Version))
	}
	kind.GroupVersionKind = gvk
	return kind, nil
}

// decodeObject reads an object as a cluster would have to understand it.
func decodeObject(path *field.Path, raw *runtime.RawExtension) (*unstructured.Unstructured, *field.Error) {
	var content map[string]any
	if empty(raw) || len(raw.Raw) == 0 {
		return nil, field.Required(path, "")
	}
	if err := utiljson.Unmarshal(raw.Raw, &content); err != nil || content == nil {
		return nil, field.Invalid(path, "", "it is not an object")
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if text, ok := content[name].(string); !ok || text == "" {
			return nil, field.Required(path.Child(name), "an object has one")
		}
	}
	obj := &unstructured.Unstructured{Object: content}
	if gv, err := schema.ParseGroupVersion(obj.GetAPIVersion()); err != nil || gv.Version == "" {
		return nil, field.Invalid(path.Child("apiVersion"), obj.GetAPIVersion(), "it has to be VERSION or GROUP/VERSION")
	}
	if _, isList := content["items"].([]any); isList && strings.HasSuffix(obj.GetKind(), "List") {
		return nil, field.Invalid(path.Child("kind"), obj.GetKind(), "give the items of a list one by one, in spec.objects")
	}
	metadata, ok := content["metadata"].(map[string]any)
	if !ok {
		return nil, field.Required(path.Child("metadata"), "an object has a name")
	}
	// What is of the wrong type would be taken for absent.
	var decoded metav1.ObjectMeta
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &decoded); err != nil {
		return nil, wrongMetadata(path.Child("metadata"), metadata, err)
	}
	if decoded.Name == "" && decoded.GenerateName == "" {
		return nil, field.Required(path.Child("metadata", "name"), "")
	}
	return obj, nil
}

// wrongMetadata says which field is of the wrong type; only encoding/json tells.
func wrongMetadata(path *field.Path, metadata map[string]any, err error) *field.Error {
	var typeErr *json.UnmarshalTypeError
	if data, jsonErr := json.Marshal(metadata); jsonErr == nil && errors.As(json.Unmarshal(data, &metav1.ObjectMeta{}), &typeErr) {
		return field.Invalid(path.Child(typeErr.Field), typeErr.Value, fmt.Sprintf("it has to be a %s", typeErr.Type))
	}
	return field.Invalid(path, "", err.Error())
}
