package directory

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/source"
)

// TestList looks through the folder itself: nothing has told it of a change.
func TestList(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: ns}}")
	s, err := New(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	configMaps := source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}
	list := func() (names []string, version string) {
		t.Helper()
		version, err := s.List(t.Context(), configMaps, func(obj *unstructured.Unstructured) error {
			names = append(names, obj.GetNamespace()+"/"+obj.GetName())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return names, version
	}
	first, version := list()
	if !slices.Equal(first, []string{"ns/a"}) {
		t.Errorf("listed %v", first)
	}
	if _, again := list(); again != version {
		t.Errorf("the version is %s, was %s, and nothing has changed", again, version)
	}
	write("b.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: ns}}")
	second, changed := list()
	if !slices.Equal(second, []string{"ns/a", "ns/b"}) || changed == version {
		t.Errorf("listed %v at %s after a file was added, before at %s", second, changed, version)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context(), configMaps, func(*unstructured.Unstructured) error { return nil }); err == nil {
		t.Error("a folder that is gone was listed")
	}
}

// TestEventsAreNotStreamed, and it is said where there are some.
func TestEventsAreNotStreamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "e.yaml"), []byte("{apiVersion: v1, kind: Event, metadata: {name: e, namespace: ns}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := s.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(inventory.Unstreamed) != 1 || inventory.Unstreamed[0].Kind.Kind != "Event" || inventory.Unstreamed[0].Reason == "" {
		t.Errorf("unstreamed are %+v", inventory.Unstreamed)
	}
}
