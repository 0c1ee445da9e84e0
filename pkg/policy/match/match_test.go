package match

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	if manifest == "" {
		return nil
	}
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &obj.Object); err != nil {
		t.Fatal(err)
	}
	return obj
}

const (
	pod       = "{apiVersion: v1, kind: Pod, metadata: {name: web-1, generateName: web-, namespace: shop, labels: {app: web}}}"
	shop      = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {tier: gold}}}"
	role      = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: admin}}"
	generated = "{apiVersion: v1, kind: Pod, metadata: {generateName: web-, namespace: shop}}"
)

// TestMatches has the edge rules of each field, on a Pod in its Namespace, on the
// Namespace itself and on another cluster-scoped object.
func TestMatches(t *testing.T) {
	for _, test := range []struct {
		match                      string
		onPod, onNamespace, onRole bool
	}{
		{"{}", true, true, true},
		{"{kinds: []}", true, true, true},
		{"{kinds: [{}]}", true, true, true},
		{"{kinds: [{apiGroups: [''], kinds: ['*']}]}", true, true, false},
		{"{kinds: [{apiGroups: ['*'], kinds: [Pod]}, {kinds: [ClusterRole]}]}", true, false, true},
		{"{kinds: [{apiGroups: [apps], kinds: [Pod]}]}", false, false, false},
		{"{scope: Cluster}", false, true, true},
		{"{scope: Namespaced}", true, false, false},
		{"{scope: '*'}", true, true, true},
		{"{scope: typo}", true, true, true},
		{"{namespaces: [shop]}", true, true, true},
		{"{namespaces: [other]}", false, false, true},
		{"{namespaces: ['sh*']}", true, true, true},
		{"{namespaces: ['*op']}", true, true, true},
		{"{namespaces: ['*ho*']}", true, true, true},
		{"{namespaces: ['*']}", true, true, true},
		{"{excludedNamespaces: [shop]}", false, false, true},
		{"{excludedNamespaces: ['*']}", false, false, true},
		{"{namespaces: [shop], excludedNamespaces: ['s*']}", false, false, true},
		{"{labelSelector: {matchLabels: {app: web}}}", true, false, false},
		{"{labelSelector: {}}", true, true, true},
		{"{namespaceSelector: {matchLabels: {tier: gold}}}", true, true, true},
		{"{namespaceSelector: {matchLabels: {tier: tin}}}", false, false, true},
		{"{name: web-1}", true, false, false},
		{"{name: 'web*'}", true, false, false},
		{"{name: '*n'}", false, false, true},
		{"{source: All}", true, true, true},
		{"{source: Original}", true, true, true},
		{"{source: Generated}", false, false, false},
	} {
		m, err := Compile(parse(t, test.match).Object)
		if err != nil {
			t.Fatalf("%s: %v", test.match, err)
		}
		for _, on := range []struct {
			obj, namespace string
			want           bool
		}{{pod, shop, test.onPod}, {shop, "", test.onNamespace}, {role, "", test.onRole}} {
			got, err := m.Matches(parse(t, on.obj), parse(t, on.namespace), Original)
			if err != nil || got != on.want {
				t.Errorf("%s on %s: %v, %v; want %v", test.match, on.obj, got, err, on.want)
			}
		}
	}
}

func TestUnknownNamespace(t *testing.T) {
	m, err := Compile(parse(t, "{namespaceSelector: {}}").Object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Matches(parse(t, pod), nil, Original); !errors.Is(err, ErrNamespaceUnknown) {
		t.Errorf("error is %v", err)
	}
	// What another field rules out needs no Namespace.
	m, err = Compile(parse(t, "{namespaceSelector: {}, kinds: [{kinds: [Service]}]}").Object)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := m.Matches(parse(t, pod), nil, Original); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestGenerateName(t *testing.T) {
	for pattern, want := range map[string]bool{"web-*": true, "web-": false, "*b-": false, "x*": false} {
		m, err := Compile(map[string]any{"name": pattern})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.Matches(parse(t, generated), parse(t, shop), Original); got != want || err != nil {
			t.Errorf("%s: %v, %v", pattern, got, err)
		}
	}
}

func TestSource(t *testing.T) {
	for block, want := range map[string]map[Source]bool{
		"{}":                  {Original: true, Generated: true},
		"{source: All}":       {Original: true, Generated: true},
		"{source: Original}":  {Original: true, Generated: false},
		"{source: Generated}": {Original: false, Generated: true},
	} {
		m, err := Compile(parse(t, block).Object)
		if err != nil {
			t.Fatalf("%s: %v", block, err)
		}
		for source, want := range want {
			got, err := m.Matches(parse(t, pod), parse(t, shop), source)
			if got != want || err != nil {
				t.Errorf("%s on %s objects: %v, %v; want %v", block, source, got, err, want)
			}
			if m.SelectsKind(schema.GroupKind{Kind: "Pod"}, true, source) != want || m.SelectsGroup("", source) != want {
				t.Errorf("%s: SelectsKind and SelectsGroup of %s objects, want %v", block, source, want)
			}
		}
	}
	if _, err := Compile(map[string]any{"source": "original"}); err == nil || !strings.Contains(err.Error(), `spec.match.source is "original"; it must be All, Original or Generated`) {
		t.Errorf("error of an unknown source: %v", err)
	}
}
