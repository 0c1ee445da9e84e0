package audit

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/pkg/source"
)

// fakeSource is a source whose objects the test sets. Its streams have the
// grammar that source.Handler documents.
type fakeSource struct {
	changed chan struct{}

	mu           sync.Mutex
	kinds        map[schema.GroupKind]source.Kind
	others       []source.Kind // in other versions
	objects      map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured
	failedGroups map[string]error
	failing      map[schema.GroupKind]error // lists of these kinds fail
	problems     []source.Problem
	unstreamed   []source.UnstreamedKind
	streams      map[schema.GroupKind]map[*fakeStream]struct{}
	lists        map[schema.GroupKind]int // complete lists delivered
	version      int
	sweeps       []schema.GroupKind // lists without streams, in order
	// metadataStreams is how many streams of metadata were begun.
	metadataStreams int
}

type fakeStream struct {
	groupVersion string
	wake         chan struct{}
	pending      []func(source.Handler)
	relist       bool
}

func newFakeSource() *fakeSource {
	f := &fakeSource{
		changed:      make(chan struct{}, 1),
		kinds:        map[schema.GroupKind]source.Kind{},
		objects:      map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured{},
		failedGroups: map[string]error{},
		failing:      map[schema.GroupKind]error{},
		streams:      map[schema.GroupKind]map[*fakeStream]struct{}{},
		lists:        map[schema.GroupKind]int{},
	}
	f.addKind("templates.gatekeeper.sh", "v1", "ConstraintTemplate", "constrainttemplates", false)
	f.addKind("", "v1", "Namespace", "namespaces", false)
	f.addKind("", "v1", "Pod", "pods", true)
	f.addKind("", "v1", "ConfigMap", "configmaps", true)
	f.addKind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false)
	return f
}

func (f *fakeSource) addKind(group, version, kind, resource string, namespaced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gvk := schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
	f.kinds[gvk.GroupKind()] = source.Kind{GroupVersionKind: gvk, Resource: resource, Namespaced: namespaced}
	f.signal()
}

// addVersion adds a version in which a kind's objects can be had as well.
func (f *fakeSource) addVersion(group, version, kind, resource string, namespaced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others = append(f.others, source.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Resource: resource, Namespaced: namespaced})
	f.signal()
}

func (f *fakeSource) removeKind(gk schema.GroupKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kinds, gk)
	delete(f.objects, gk)
	f.signal()
}

func (f *fakeSource) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *fakeSource) Inventory(context.Context) (*source.Inventory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	inventory := &source.Inventory{FailedGroups: map[string]error{}, Problems: append([]source.Problem(nil), f.problems...)}
	for group, err := range f.failedGroups {
		inventory.FailedGroups[group] = err
	}
	for gk, kind := range f.kinds {
		if f.failedGroups[gk.Group] == nil {
			inventory.Kinds = append(inventory.Kinds, kind)
		}
	}
	inventory.OtherVersions = append(inventory.OtherVersions, f.others...)
	inventory.Unstreamed = append(inventory.Unstreamed, f.unstreamed...)
	sort.Slice(inventory.Kinds, func(i, j int) bool {
		return inventory.Kinds[i].GroupKind().String() < inventory.Kinds[j].GroupKind().String()
	})
	return inventory, nil
}

// List lists what there is. Tests may hook into it.
func (f *fakeSource) List(_ context.Context, kind source.Kind, visit func(*unstructured.Unstructured) error) (string, error) {
	gk := kind.GroupKind()
	f.mu.Lock()
	err, version := f.failing[gk], strconv.Itoa(f.version)
	var objects []*unstructured.Unstructured
	for _, obj := range f.objects[gk] {
		objects = append(objects, obj.DeepCopy())
	}
	f.sweeps = append(f.sweeps, gk)
	f.mu.Unlock()
	if err != nil {
		return "", err
	}
	for _, obj := range objects {
		if err := visit(obj); err != nil {
			return "", err
		}
	}
	return version, nil
}

func (f *fakeSource) Changed() <-chan struct{} { return f.changed }

func (f *fakeSource) Stream(ctx context.Context, kind source.Kind, handler source.Handler) {
	gk := kind.GroupKind()
	s := &fakeStream{groupVersion: kind.GroupVersion().String(), wake: make(chan struct{}, 1), relist: true}
	s.wake <- struct{}{}
	f.mu.Lock()
	if f.streams[gk] == nil {
		f.streams[gk] = map[*fakeStream]struct{}{}
	}
	f.streams[gk][s] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.streams[gk], s)
		f.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for _, call := range f.next(gk, s) {
			if ctx.Err() != nil {
				return
			}
			call(handler)
		}
	}
}

// next takes what a stream has to deliver.
func (f *fakeSource) next(gk schema.GroupKind, s *fakeStream) []func(source.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failing[gk]; err != nil {
		s.relist, s.pending = true, nil
		return []func(source.Handler){func(h source.Handler) { h.ListStarted(); h.Failed(err) }}
	}
	if !s.relist {
		calls := s.pending
		s.pending = nil
		return calls
	}
	s.relist, s.pending = false, nil
	f.lists[gk]++
	calls := []func(source.Handler){func(h source.Handler) { h.ListStarted() }}
	for _, obj := range f.objects[gk] {
		calls = append(calls, func(h source.Handler) { h.Upsert(obj.DeepCopy()) })
	}
	version := strconv.Itoa(f.version)
	return append(calls, func(h source.Handler) { h.Listed(version) })
}

// versionsOf returns the versions in which a kind is streamed, sorted.
func (f *fakeSource) versionsOf(gk schema.GroupKind) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for s := range f.streams[gk] {
		out = append(out, s.groupVersion)
	}
	sort.Strings(out)
	return out
}

func (f *fakeSource) send(gk schema.GroupKind, call func(source.Handler)) {
	for s := range f.streams[gk] {
		if call == nil {
			s.relist = true
		} else {
			s.pending = append(s.pending, call)
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// fail makes lists of a kind fail; a nil error mends them.
func (f *fakeSource) fail(gk schema.GroupKind, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.failing, gk)
	} else {
		f.failing[gk] = err
	}
	f.send(gk, nil)
}

func (f *fakeSource) setProblems(problems ...source.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = problems
	f.signal()
}

func (f *fakeSource) failGroup(group string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.failedGroups, group)
	} else {
		f.failedGroups[group] = err
	}
	f.signal()
}

// apply creates or replaces objects.
func (f *fakeSource) apply(t testing.TB, manifests ...string) {
	t.Helper()
	for _, manifest := range manifests {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &obj.Object); err != nil {
			t.Fatalf("manifest: %v\n%s", err, manifest)
		}
		f.put(obj)
	}
}

func (f *fakeSource) put(obj *unstructured.Unstructured) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gk := obj.GroupVersionKind().GroupKind()
	if _, ok := f.kinds[gk]; !ok {
		panic(fmt.Sprintf("unknown kind %s", gk))
	}
	key := source.ObjectKey{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if f.objects[gk] == nil {
		f.objects[gk] = map[source.ObjectKey]*unstructured.Unstructured{}
	}
	f.version++
	obj.SetResourceVersion(strconv.Itoa(f.version))
	if old := f.objects[gk][key]; old != nil {
		obj.SetUID(old.GetUID())
	} else {
		obj.SetUID(types.UID(fmt.Sprintf("uid-%d", f.version)))
	}
	obj.SetGeneration(1)
	f.objects[gk][key] = obj
	f.send(gk, func(h source.Handler) { h.Upsert(obj.DeepCopy()) })
}

func (f *fakeSource) remove(gk schema.GroupKind, namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := source.ObjectKey{Namespace: namespace, Name: name}
	old := f.objects[gk][key]
	if old == nil {
		return
	}
	delete(f.objects[gk], key)
	key.UID = old.GetUID()
	f.send(gk, func(h source.Handler) { h.Delete(key) })
}

var errForbidden = errors.New("pods is forbidden: User cannot list resource")

// Metadata is a source of the same objects without their content.
func (f *fakeSource) Metadata() source.Source { return fakeMetadata{f} }

type fakeMetadata struct{ *fakeSource }

func (f fakeMetadata) Stream(ctx context.Context, kind source.Kind, handler source.Handler) {
	f.mu.Lock()
	f.metadataStreams++
	f.mu.Unlock()
	f.fakeSource.Stream(ctx, kind, metadataHandler{handler})
}

func (f fakeMetadata) List(ctx context.Context, kind source.Kind, visit func(*unstructured.Unstructured) error) (string, error) {
	return f.fakeSource.List(ctx, kind, func(obj *unstructured.Unstructured) error { return visit(metadataOf(obj)) })
}

// metadataHandler gets objects without their content.
type metadataHandler struct{ source.Handler }

func (h metadataHandler) Upsert(obj *unstructured.Unstructured) { h.Handler.Upsert(metadataOf(obj)) }

func metadataOf(obj *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "metadata": obj.Object["metadata"],
	}}
}
