package cel

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Each expression has to be true.
func TestTemplateInputs(t *testing.T) {
	parameters := map[string]any{"names": []any{"a"}, "count": int64(2)}
	for name, tc := range map[string]struct {
		expression string
		params     any
		namespace  string
		object     string
	}{
		"anyObject":            {expression: `variables.anyObject == object && variables.anyObject.metadata.name == "p"`},
		"parameters":           {expression: `variables.params.names == ["a"] && variables.params.count + 1 == 3`, params: parameters},
		"no parameters":        {expression: `variables.params == null`},
		"nil parameters":       {expression: `variables.params == null`, params: map[string]any(nil)},
		"empty parameters":     {expression: `variables.params != null && !has(variables.params.names)`, params: map[string]any{}},
		"oldObject":            {expression: `oldObject == null`},
		"kind":                 {expression: `request.kind.group == "" && request.kind.version == "v1" && request.kind.kind == "Pod"`},
		"name and namespace":   {expression: `request.name == "p" && request.namespace == "ns"`},
		"operation":            {expression: `request.operation == ""`},
		"user":                 {expression: `request.userInfo == request.userInfo && !has(request.userInfo.username) && !has(request.userInfo.groups)`},
		"resource":             {expression: `request.resource.group == "" && request.resource.version == "" && request.resource.resource == ""`},
		"no subresource":       {expression: `!has(request.subResource) && request.dryRun == false`},
		"namespaceObject":      {expression: `namespaceObject.metadata.name == "ns" && namespaceObject.metadata.labels.env == "prod" && namespaceObject.status.phase == "Active"`, namespace: namespace},
		"no namespaceObject":   {expression: `namespaceObject == null`},
		"cluster-scoped":       {expression: `!has(request.namespace) && namespaceObject == null`, object: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}`},
		"libraries of v1.28":   {expression: `quantity("1Gi").isGreaterThan(quantity("1Mi"))`},
		"libraries of v1.34":   {expression: `[1, 2, 3].reverse() == [3, 2, 1]`},
		"optional":             {expression: `object.?spec.?absent.orValue(3) == 3`},
		"two-variable macros":  {expression: `object.metadata.labels.all(k, v, k == "app" && v == "x")`},
		"escaped names":        {expression: `object.metadata.__namespace__ == "ns" || object.metadata.namespace == "ns"`},
		"parameters, in macro": {expression: `object.spec.containers.exists(c, c.name in variables.params.names)`, params: parameters},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Object: parse(t, pod), Params: tc.params}
			if tc.object != "" {
				in.Object = parse(t, tc.object)
			}
			if tc.namespace != "" {
				in.Namespace = parse(t, tc.namespace)
			}
			if got := evaluate(t, valid(tc.expression), in); len(got) > 0 {
				t.Errorf("%s: %q", tc.expression, got)
			}
		})
	}
}

// Each expression has to be true.
func TestNativeInputs(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"max":"3"}}`
	for name, tc := range map[string]struct {
		src Source
		in  Input
	}{
		"operation":      {valid(`request.operation == "CREATE"`), Input{Object: parse(t, pod), Operation: "CREATE", Resource: pods}},
		"resource":       {valid(`request.resource.resource == "pods" && request.requestResource.version == "v1"`), Input{Object: parse(t, pod), Resource: pods}},
		"params":         {valid(`params.data.max == "3" && params.kind == "ConfigMap"`).params(), Input{Object: parse(t, pod), Params: parse(t, config)}},
		"params, twice":  {valid(`params.data.max == "3"`, `params.data.max == "3"`).params(), Input{Object: parse(t, pod), Params: parse(t, config)}},
		"no params":      {valid(`params == null`).params(), Input{Object: parse(t, pod)}},
		"typed nil":      {valid(`params == null`).params(), Input{Object: parse(t, pod), Params: (*unstructured.Unstructured)(nil)}},
		"own namespace":  {valid(`request.namespace == "ns" && namespaceObject == null`), Input{Object: parse(t, namespace), Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}},
		"own variables":  {valid(`variables.params == 1 && variables.anyObject == 2`).with("params", "1").with("anyObject", "2"), Input{Object: parse(t, pod)}},
		"cluster-scoped": {valid(`!has(request.namespace)`), Input{Object: parse(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := evaluate(t, tc.src.native(), tc.in); len(got) > 0 {
				t.Errorf("%q", got)
			}
		})
	}
}

// The kube-apiserver gives match conditions no Namespace.
func TestConditionsSeeNoNamespace(t *testing.T) {
	in := Input{Object: parse(t, pod), Namespace: parse(t, namespace)}
	for name, src := range map[string]Source{
		"direct":             valid(`namespaceObject.metadata.name == "other"`).where(`namespaceObject == null`),
		"through a variable": valid(`!variables.none`).with("none", "namespaceObject == null").where("variables.none"),
	} {
		t.Run(name, func(t *testing.T) {
			want := []string{"violation: 0"}
			if name != "direct" {
				want = []string{}
			}
			if diff := cmp.Diff(want, evaluate(t, src, in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParamsOfTheWrongDialect(t *testing.T) {
	for name, tc := range map[string]struct {
		src    Source
		params any
		want   string
	}{
		"object for a template": {valid("true"), parse(t, pod), "params are an object, want a map"},
		"map for a native one":  {valid("true").params(), map[string]any{}, "params are a map, want an object"},
		"something else":        {valid("true"), 1, "params are a int, want a map or an object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := compile(t, tc.src).Eval(context.Background(), Input{Object: parse(t, pod), Params: tc.params})
			if err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}
