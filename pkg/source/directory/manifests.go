package directory

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"policy.example.io/policy-apiserver/pkg/source"
)

// Manifest is an object as its file describes it, in the namespace that it is in.
type Manifest struct {
	Object *unstructured.Unstructured
	// File is the path below the folder, with slashes, and Line where the object's
	// document begins, counted from 1.
	File string
	Line int
}

// Manifests returns what the files describe, in the order of files and documents,
// without what a cluster adds: uid, resourceVersion and generation.
func (s *Source) Manifests() ([]Manifest, error) {
	snap, _ := s.snapshot()
	if snap.err != nil {
		return nil, snap.err
	}
	type placed struct {
		Manifest
		position int
	}
	var found []placed
	for _, objects := range snap.objects {
		for _, o := range objects {
			if o.file == "" {
				continue
			}
			var content map[string]any
			if err := utiljson.Unmarshal(o.json, &content); err != nil {
				return nil, fmt.Errorf("%s: %s %s: %w", o.file, o.gvk.Kind, o.key.Name, err)
			}
			obj := &unstructured.Unstructured{Object: content}
			obj.SetNamespace(o.key.Namespace)
			found = append(found, placed{Manifest{Object: obj, File: o.file, Line: o.line}, o.position})
		}
	}
	slices.SortFunc(found, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.position, b.position))
	})
	out := make([]Manifest, len(found))
	for i := range found {
		out[i] = found[i].Manifest
	}
	return out, nil
}

// Objects returns the objects of a kind as they are streamed, by namespace and name.
func (s *Source) Objects(gk schema.GroupKind) ([]*unstructured.Unstructured, error) {
	snap, _ := s.snapshot()
	if snap.err != nil {
		return nil, snap.err
	}
	var out []*unstructured.Unstructured
	for _, o := range snap.objects[gk].sorted() {
		obj, err := o.render()
		if err != nil {
			return nil, err
		}
		out = append(out, obj)
	}
	return out, nil
}

// Get returns an object as it is streamed. The error is one of the API.
func (s *Source) Get(_ context.Context, kind source.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	snap, _ := s.snapshot()
	if snap.err != nil {
		return nil, apierrors.NewServiceUnavailable(snap.err.Error())
	}
	o, ok := snap.objects[kind.GroupKind()][types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, apierrors.NewNotFound(kind.GroupVersionResource().GroupResource(), name)
	}
	return o.render()
}

// pageSize is the number of objects in a page of ListPages.
const pageSize = 500

// ListPages hands over the objects of a kind as they are streamed, page by page. namespace is
// empty for all, and so is selector, of labels. The error is one of the API, or what page
// returns.
func (s *Source) ListPages(ctx context.Context, kind source.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
	snap, _ := s.snapshot()
	if snap.err != nil {
		return apierrors.NewServiceUnavailable(snap.err.Error())
	}
	wanted, err := labels.Parse(selector)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	var objects []*unstructured.Unstructured
	for _, o := range snap.objects[kind.GroupKind()].sorted() {
		if namespace != "" && o.key.Namespace != namespace {
			continue
		}
		obj, err := o.render()
		if err != nil {
			return err
		}
		if !wanted.Matches(labels.Set(obj.GetLabels())) {
			continue
		}
		if objects = append(objects, obj); len(objects) < pageSize {
			continue
		}
		if err := page(objects); err != nil {
			return err
		}
		objects = nil
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if len(objects) == 0 {
		return nil
	}
	return page(objects)
}

// GuessKind tells resource and scope of a kind that no manifest is of; inNamespace
// tells that its object has a namespace, which decides if nothing else does. known is
// true if it is a kind of Kubernetes or of policies.
func GuessKind(gvk schema.GroupVersionKind, inNamespace bool) (kind source.Kind, known bool) {
	_, builtIn := builtInGroups[gvk.Group]
	return newKind(gvk, nil, inNamespace), builtIn || gvk.Group == constraintGroup || gvk.Group == templateKind.Group
}
