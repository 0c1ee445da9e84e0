package match

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

type document = map[string]any

// Answers of the oracle.
const (
	yes     = "matches"
	no      = "does not match"
	unknown = "the Namespace is not known"
)

// oracle decides by the table of the match block's fields, row by row, on documents
// and without any of the package's code. The Namespace is nil if it is not known.
func oracle(block, obj, namespace document, source Source) string {
	isNamespace := obj["apiVersion"] == "v1" && obj["kind"] == "Namespace"
	inNamespace := text(obj, "metadata", "namespace") != ""

	// kinds: any entry, each by kind and by group.
	if entries := list(block["kinds"]); len(entries) > 0 {
		found := false
		for _, e := range entries {
			entry := e.(document)
			group, _, grouped := strings.Cut(obj["apiVersion"].(string), "/")
			if !grouped {
				group = ""
			}
			found = found || allows(entry["kinds"], obj["kind"].(string)) && allows(entry["apiGroups"], group)
		}
		if !found {
			return no
		}
	}
	// scope: a typo is no restriction.
	if block["scope"] == "Cluster" && inNamespace && !isNamespace {
		return no
	}
	if block["scope"] == "Namespaced" && (isNamespace || !inNamespace) {
		return no
	}
	// namespaces and excludedNamespaces: of a Namespace its name; they say nothing of
	// other objects without one.
	name, concerned := text(obj, "metadata", "namespace"), inNamespace
	if isNamespace {
		name, concerned = text(obj, "metadata", "name"), true
	}
	if names := list(block["namespaces"]); concerned && len(names) > 0 && !anyLike(names, name) {
		return no
	}
	if concerned && anyLike(list(block["excludedNamespaces"]), name) {
		return no
	}
	// labelSelector
	if selector, ok := block["labelSelector"].(document); ok && !selected(selector, labelsOf(obj)) {
		return no
	}
	// namespaceSelector: of a Namespace its own labels; it says nothing of other objects
	// without one.
	if selector, ok := block["namespaceSelector"].(document); ok {
		switch {
		case isNamespace:
			if !selected(selector, labelsOf(obj)) {
				return no
			}
		case inNamespace && namespace == nil:
			return unknown
		case inNamespace && !selected(selector, labelsOf(namespace)):
			return no
		}
	}
	// name: also generateName, for patterns that are open at the end.
	if pattern, _ := block["name"].(string); pattern != "" && !like(pattern, text(obj, "metadata", "name")) {
		generate := text(obj, "metadata", "generateName")
		if pattern[len(pattern)-1] != '*' || generate == "" || !like(pattern, generate) {
			return no
		}
	}
	if wanted, _ := block["source"].(string); wanted != "" && wanted != "All" && wanted != string(source) {
		return no
	}
	return yes
}

func list(v any) []any {
	out, _ := v.([]any)
	return out
}

func text(d document, path ...string) string {
	out, _, _ := unstructured.NestedString(d, path...)
	return out
}

func labelsOf(d document) map[string]string {
	out, _, _ := unstructured.NestedStringMap(d, "metadata", "labels")
	return out
}

// allows tells whether a list, of which an empty one is everything, has a value.
func allows(v any, value string) bool {
	for _, e := range list(v) {
		if e == "*" || e == value {
			return true
		}
	}
	return len(list(v)) == 0
}

func anyLike(patterns []any, value string) bool {
	for _, p := range patterns {
		if like(p.(string), value) {
			return true
		}
	}
	return false
}

// like compares by trying all places where the fixed part of a pattern could be.
func like(pattern, value string) bool {
	open, openEnd := false, false
	if n := len(pattern); n > 0 && pattern[n-1] == '*' {
		pattern, openEnd = pattern[:n-1], true
	}
	if len(pattern) > 0 && pattern[0] == '*' {
		pattern, open = pattern[1:], true
	}
	for from := 0; from+len(pattern) <= len(value); from++ {
		to := from + len(pattern)
		if value[from:to] == pattern && (open || from == 0) && (openEnd || to == len(value)) {
			return true
		}
	}
	return false
}

func selected(selector document, labels map[string]string) bool {
	wanted, _ := selector["matchLabels"].(document)
	for key, value := range wanted {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	for _, e := range list(selector["matchExpressions"]) {
		expression := e.(document)
		value, there := labels[expression["key"].(string)]
		among := false
		for _, v := range list(expression["values"]) {
			among = among || v == value
		}
		if ok := map[string]bool{"In": there && among, "NotIn": !there || !among, "Exists": there, "DoesNotExist": !there}[expression["operator"].(string)]; !ok {
			return false
		}
	}
	return true
}

var (
	names      = rapid.SampledFrom([]string{"a", "b", "ab", "shop", "shop-a", "a-shop", "kube-system"})
	patterns   = rapid.OneOf(rapid.SampledFrom([]string{"*", "**", "a*", "*a", "*a*", "shop", "shop*", "*shop", "*-*", "kube-*", ""}), rapid.StringMatching(`\*?[-:ab]{0,2}\*?`))
	labelKeys  = rapid.SampledFrom([]string{"app", "tier"})
	labelTexts = rapid.SampledFrom([]string{"", "web", "db"})
	groups     = rapid.SampledFrom([]string{"", "*", "apps", "rbac.authorization.k8s.io", "app*"})
	kinds      = rapid.SampledFrom([]string{"*", "Pod", "Namespace", "Deployment", "ClusterRole", "pod"})
	scopes     = rapid.SampledFrom([]string{"", "*", "Cluster", "Namespaced", "cluster", "Namespace"})
	sources    = rapid.SampledFrom([]string{"All", "Original", "Generated", ""})

	selectors = rapid.Custom(func(t *rapid.T) document {
		d := document{}
		maybe(t, d, "matchLabels", labelMaps)
		maybe(t, d, "matchExpressions", lists(expressions))
		return d
	})
	expressions = rapid.Custom(func(t *rapid.T) document {
		d := document{"key": labelKeys.Draw(t, "key"), "operator": rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")}
		if d["operator"] == "In" || d["operator"] == "NotIn" {
			d["values"] = append(lists(labelTexts).Draw(t, "values"), labelTexts.Draw(t, "value"))
		}
		return d
	})
	labelMaps = rapid.Custom(func(t *rapid.T) document {
		d := document{}
		maybe(t, d, "app", labelTexts)
		maybe(t, d, "tier", labelTexts)
		return d
	})
	entries = rapid.Custom(func(t *rapid.T) document {
		d := document{}
		maybe(t, d, "apiGroups", lists(groups))
		maybe(t, d, "kinds", lists(kinds))
		return d
	})
	blocks = rapid.Custom(func(t *rapid.T) document {
		d := document{}
		maybe(t, d, "kinds", lists(entries))
		maybe(t, d, "scope", scopes)
		maybe(t, d, "namespaces", lists(patterns))
		maybe(t, d, "excludedNamespaces", lists(patterns))
		maybe(t, d, "labelSelector", selectors)
		maybe(t, d, "namespaceSelector", selectors)
		maybe(t, d, "name", patterns)
		maybe(t, d, "source", sources)
		return d
	})
)

// maybe sets a field in one of three cases.
func maybe[V any](t *rapid.T, d document, key string, g *rapid.Generator[V]) {
	if rapid.IntRange(0, 2).Draw(t, "has "+key) == 0 {
		d[key] = any(g.Draw(t, key))
	}
}

func lists[V any](g *rapid.Generator[V]) *rapid.Generator[[]any] {
	return rapid.Custom(func(t *rapid.T) []any {
		out := []any{}
		for _, v := range rapid.SliceOfN(g, 0, 3).Draw(t, "list") {
			out = append(out, v)
		}
		return out
	})
}

// drawObject draws an object and its Namespace, which is not known in some cases.
func drawObject(t *rapid.T) (obj, namespace document) {
	kind := rapid.SampledFrom([]string{"v1 Pod", "v1 Pod", "v1 Namespace", "example.com/v1 Namespace", "apps/v1 Deployment", "rbac.authorization.k8s.io/v1 ClusterRole"}).Draw(t, "kind")
	apiVersion, kind, _ := strings.Cut(kind, " ")
	metadata := document{}
	maybe(t, metadata, "generateName", rapid.SampledFrom([]string{"a", "a-", "shop-"}))
	maybe(t, metadata, "labels", labelMaps)
	if rapid.IntRange(0, 4).Draw(t, "named") > 0 || kind == "Namespace" {
		metadata["name"] = names.Draw(t, "name")
	}
	obj = document{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	// A Namespace that says it is in one is still a Namespace.
	odd := rapid.IntRange(0, 5).Draw(t, "odd") == 0
	if kind == "ClusterRole" || apiVersion == "v1" && kind == "Namespace" && !odd {
		return obj, nil
	}
	metadata["namespace"] = names.Draw(t, "namespace")
	if rapid.IntRange(0, 3).Draw(t, "known") > 0 {
		namespace = document{"apiVersion": "v1", "kind": "Namespace", "metadata": document{"name": metadata["namespace"], "labels": labelMaps.Draw(t, "labels of the Namespace")}}
	}
	return obj, namespace
}

// TestMatchesAsTheTableSays compares Matches with the oracle, and checks that what
// selects by kind or group leaves out no object that could match.
func TestMatchesAsTheTableSays(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		block := blocks.Draw(t, "block")
		m, err := Compile(block)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			obj, namespace := drawObject(t)
			source := rapid.SampledFrom([]Source{Original, Original, Generated}).Draw(t, "source")
			want, got := oracle(block, obj, namespace, source), ask(t, m, obj, namespace, source)
			seen[want]++
			if got != want {
				t.Fatalf("%s, want: %s\nblock     %v\nobject    %v\nnamespace %v", got, want, block, obj, namespace)
			}
			gk := schema.FromAPIVersionAndKind(obj["apiVersion"].(string), obj["kind"].(string)).GroupKind()
			namespaced := text(obj, "metadata", "namespace") != ""
			if got == yes && (!m.SelectsKind(gk, namespaced, source) || !m.SelectsGroup(gk.Group, source)) {
				t.Fatalf("%s matches and is not selected\nblock  %v\nobject %v", gk, block, obj)
			}
			// Of an object about which less is known, no less can match.
			gvk := unstructuredOf(obj).GroupVersionKind()
			if got != no && !m.CanMatch(gvk, text(obj, "metadata", "namespace"), unstructuredOf(namespace), source) || got == yes && !m.CanMatch(gvk, "", nil, source) {
				t.Fatalf("CanMatch denies what is so: %s\nblock     %v\nobject    %v\nnamespace %v", got, block, obj, namespace)
			}
			if got == unknown && !m.NeedsNamespace() {
				t.Fatalf("the Namespace is needed, which NeedsNamespace denies\nblock %v", block)
			}
		}
	})
	for _, answer := range []string{yes, no, unknown} {
		if seen[answer] == 0 {
			t.Errorf("no case of: %s", answer)
		}
	}
}

func unstructuredOf(d document) *unstructured.Unstructured {
	if d == nil {
		return nil
	}
	return &unstructured.Unstructured{Object: d}
}

func ask(t *rapid.T, m *Matcher, obj, namespace document, source Source) string {
	switch ok, err := m.Matches(unstructuredOf(obj), unstructuredOf(namespace), source); {
	case errors.Is(err, ErrNamespaceUnknown):
		return unknown
	case err != nil:
		t.Fatal(err)
		return ""
	default:
		return map[bool]string{true: yes, false: no}[ok]
	}
}

// TestWildcardAsTheOracle compares patterns of any form with values of any form.
func TestWildcardAsTheOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`\*?[ab*]{0,3}\*?`).Draw(t, "pattern")
		value := rapid.StringMatching(`[ab*]{0,5}`).Draw(t, "value")
		if got, want := Wildcard(pattern, value), like(pattern, value); got != want {
			t.Fatalf("%q and %q: %v, want %v", pattern, value, got, want)
		}
	})
}
