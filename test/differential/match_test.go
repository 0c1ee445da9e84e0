package differential

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/test/differential/engine"
)

type document = map[string]any

// maybe draws a value, or nothing in about half of the cases.
func maybe[V any](t *rapid.T, d document, key string, g *rapid.Generator[V]) {
	if rapid.Bool().Draw(t, "has "+key) {
		d[key] = any(g.Draw(t, key))
	}
}

var (
	words = rapid.SampledFrom([]string{"", "a", "b", "ab", "shop", "shop-a", "a-shop", "kube-system", "x:y"})
	// wildcards are mostly of the form that the schema demands.
	wildcards = rapid.OneOf(
		rapid.SampledFrom([]string{"", "*", "**", "***", "a*", "*a", "*a*", "shop", "shop*", "*shop", "*-*", "kube-*", "*-system", "-", ":"}),
		rapid.StringMatching(`\*?[-:ab]{0,3}\*?`),
		rapid.StringMatching(`\*?[ab*A_.]{0,3}\*?`),
	)
	groups     = rapid.SampledFrom([]string{"", "*", "apps", "example.com", "rbac.authorization.k8s.io", "app*"})
	kinds      = rapid.SampledFrom([]string{"*", "Pod", "Namespace", "Deployment", "ClusterRole", "Widget", "pod", ""})
	scopes     = rapid.SampledFrom([]string{"", "*", "Cluster", "Namespaced", "cluster", "Namespace", "namespaced"})
	sources    = rapid.SampledFrom([]string{"All", "Original", "Original", "Generated", "", "original"})
	labelKeys  = rapid.SampledFrom([]string{"app", "tier", "stage", "example.com/x", "kubernetes.io/metadata.name"})
	labelTexts = rapid.SampledFrom([]string{"", "a", "b", "shop", "A.b_c", "-", "not valid"})
	operators  = rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist", "In", "NotIn", "Exists", "DoesNotExist", "Is"})
)

func list[V any](g *rapid.Generator[V]) *rapid.Generator[[]any] {
	return rapid.Custom(func(t *rapid.T) []any {
		out := []any{}
		for _, v := range rapid.SliceOfN(g, 0, 3).Draw(t, "list") {
			out = append(out, v)
		}
		return out
	})
}

func labelMap(values *rapid.Generator[string]) *rapid.Generator[document] {
	return rapid.Custom(func(t *rapid.T) document {
		out := document{}
		for k, v := range rapid.MapOfN(labelKeys, values, 0, 3).Draw(t, "labels") {
			out[k] = v
		}
		return out
	})
}

var selectors = rapid.Custom(func(t *rapid.T) document {
	d := document{}
	maybe(t, d, "matchLabels", labelMap(labelTexts))
	maybe(t, d, "matchExpressions", list(rapid.Custom(func(t *rapid.T) document {
		e := document{"key": labelKeys.Draw(t, "key"), "operator": operators.Draw(t, "operator")}
		// Values as the operator wants them, but for some.
		wants := e["operator"] == "In" || e["operator"] == "NotIn"
		if wants != (rapid.IntRange(0, 9).Draw(t, "wrong") == 0) {
			e["values"] = append(list(labelTexts).Draw(t, "values"), labelTexts.Draw(t, "value"))
		}
		return e
	})))
	return d
})

var matchBlocks = rapid.Custom(func(t *rapid.T) document {
	d := document{}
	maybe(t, d, "kinds", list(rapid.Custom(func(t *rapid.T) document {
		e := document{}
		maybe(t, e, "apiGroups", list(groups))
		maybe(t, e, "kinds", list(kinds))
		return e
	})))
	maybe(t, d, "scope", scopes)
	maybe(t, d, "namespaces", list(wildcards))
	maybe(t, d, "excludedNamespaces", list(wildcards))
	maybe(t, d, "labelSelector", selectors)
	maybe(t, d, "namespaceSelector", selectors)
	maybe(t, d, "name", wildcards)
	maybe(t, d, "source", sources)
	// Blocks of few fields match more often.
	for key := range d {
		if rapid.IntRange(0, 2).Draw(t, "drop "+key) == 0 {
			delete(d, key)
		}
	}
	return d
})

var validTexts = rapid.SampledFrom([]string{"", "a", "b", "shop", "A.b_c"})

// randomObjects draws objects, most of which have a Namespace that is known.
func randomObjects(t *rapid.T) []object {
	var objects []object
	types := rapid.SampledFrom([][2]string{
		{"v1", "Pod"},
		{"v1", "Namespace"},
		{"example.com/v1", "Namespace"},
		{"apps/v1", "Deployment"},
		{"rbac.authorization.k8s.io/v1", "ClusterRole"},
		{"example.com/v1", "Widget"},
	})
	for i := range rapid.IntRange(1, 6).Draw(t, "objects") {
		kind := types.Draw(t, "type")
		metadata := document{}
		maybe(t, metadata, "labels", labelMap(validTexts))
		maybe(t, metadata, "generateName", rapid.SampledFrom([]string{"a", "a-", "shop-"}))
		if name := words.Draw(t, "name"); name != "" {
			metadata["name"] = name
		}
		o := object{name: fmt.Sprintf("%d %s", i, kind[1]), obj: &unstructured.Unstructured{Object: document{"apiVersion": kind[0], "kind": kind[1], "metadata": metadata}}}
		if namespace := words.Draw(t, "namespace"); namespace != "" && kind[1] != "ClusterRole" && kind != [2]string{"v1", "Namespace"} {
			metadata["namespace"] = namespace
			if rapid.IntRange(0, 4).Draw(t, "unknown") > 0 {
				o.namespace = &unstructured.Unstructured{Object: document{
					"apiVersion": "v1", "kind": "Namespace",
					"metadata": document{"name": namespace, "labels": labelMap(validTexts).Draw(t, "labels of the namespace")},
					"spec":     document{"finalizers": []any{"kubernetes"}}, "status": document{"phase": "Active"},
				}}
			}
		}
		if kind[1] == "Deployment" {
			template := document{}
			maybe(t, template, "labels", labelMap(validTexts))
			o.obj.Object["spec"] = document{"template": document{"metadata": template, "spec": document{}}}
		}
		objects = append(objects, o)
	}
	return objects
}

// TestMatch compares which objects, and Pods of Deployments, random match blocks select.
func TestMatch(t *testing.T) {
	always, deployments := parse(t, v0(always)), parse(t, expandsDeployments)
	rapid.Check(t, func(rt *rapid.T) {
		q := &question{templates: []*unstructured.Unstructured{always}, objects: randomObjects(rt)}
		if rapid.Bool().Draw(rt, "expands") {
			q.expansions = append(q.expansions, deployments)
		}
		for i, block := range rapid.SliceOfN(matchBlocks, 1, 8).Draw(rt, "blocks") {
			q.constraints = append(q.constraints, &unstructured.Unstructured{Object: document{
				"apiVersion": "constraints.gatekeeper.sh/v1beta1", "kind": "Test",
				"metadata": document{"name": fmt.Sprintf("c%d", i)}, "spec": document{"match": block},
			}})
		}
		compare(rt, "random match blocks", q.ours(t.Context(), rt), q.theirs(t.Context(), rt, inProcess))
		checkForKind(rt, q)
	})
}

// checkForKind checks that choosing constraints by kind loses none that selects an
// object or a resultant, nor an error, but for constraints that are for generated
// objects only.
func checkForKind(t *rapid.T, q *question) {
	set, err := engine.CompileAll(t.Context(), q.templates, q.constraints, q.expansions, q.inventory)
	if err != nil {
		t.Fatal(err)
	}
	auditor := set.Auditor()
	for _, o := range q.objects {
		chosen := map[string]engine.Verdict{}
		for _, v := range auditor.Review(t.Context(), o.obj, o.namespace) {
			chosen[v.Constraint.ID.Name] = v
		}
		for _, v := range set.Review(t.Context(), o.obj, o.namespace) {
			if v.Outcome != engine.NotMatched && chosen[v.Constraint.ID.Name].Outcome != v.Outcome && !generated(q, v.Constraint.ID.Name) {
				t.Errorf("%s: constraint %s gives %v, chosen by kind %v", o.name, v.Constraint.ID.Name, v, chosen[v.Constraint.ID.Name])
			}
		}
	}
}

func generated(q *question, name string) bool {
	for _, c := range q.constraints {
		if c.GetName() == name {
			source, _, _ := unstructured.NestedString(c.Object, "spec", "match", "source")
			return source == "Generated"
		}
	}
	return false
}
