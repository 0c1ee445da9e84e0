package directory

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/source"
)

func TestManifests(t *testing.T) {
	s := open(t, folder(t,
		"b.yaml", "# shop\napiVersion: v1\nkind: Pod\nmetadata: {name: z, generateName: z-}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\n",
		"a/list.json", `{"apiVersion": "v1", "kind": "List", "items": [
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two", "resourceVersion": "7"}},
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}]}`,
	))
	manifests, err := s.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range manifests {
		got = append(got, fmt.Sprintf("%s:%d %s %s/%s %q %q %d", m.File, m.Line, m.Object.GetKind(), m.Object.GetNamespace(), m.Object.GetName(),
			m.Object.GetUID(), m.Object.GetResourceVersion(), m.Object.GetGeneration()))
	}
	want := []string{
		`a/list.json:1 ConfigMap default/two "" "7" 0`,
		`a/list.json:1 ConfigMap default/one "" "" 0`,
		`b.yaml:2 Pod default/z "" "" 0`,
		`b.yaml:6 Pod shop/a "" "" 0`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifests (-want +got):\n%s", diff)
	}
}

func TestGetAndObjects(t *testing.T) {
	s := open(t, folder(t, "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\n"))
	pods := source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true}
	obj, err := s.Get(t.Context(), pods, "shop", "a")
	if err != nil || obj.GetName() != "a" || obj.GetUID() == "" || obj.GetResourceVersion() == "" {
		t.Errorf("a: %v, %v", obj, err)
	}
	if _, err := s.Get(t.Context(), pods, "shop", "b"); !apierrors.IsNotFound(err) {
		t.Errorf("b: %v", err)
	}
	namespaces, err := s.Objects(namespaceKind)
	if err != nil || len(namespaces) != 1 || namespaces[0].GetLabels()[nameLabel] != "shop" {
		t.Errorf("Namespaces: %v, %v", namespaces, err)
	}
}

func TestGuessKind(t *testing.T) {
	for _, test := range []struct {
		group, kind string
		inNamespace bool
		want        string
	}{
		{"", "Pod", false, "pods true true"},
		{"rbac.authorization.k8s.io", "ClusterRole", true, "clusterroles false true"},
		{"shop.example", "Policy", true, "policies true false"},
		{"shop.example", "Policy", false, "policies false false"},
	} {
		kind, known := GuessKind(schema.GroupVersionKind{Group: test.group, Version: "v1", Kind: test.kind}, test.inNamespace)
		if got := fmt.Sprint(kind.Resource, " ", kind.Namespaced, " ", known); got != test.want {
			t.Errorf("%s: %s, want %s", test.kind, got, test.want)
		}
	}
}
