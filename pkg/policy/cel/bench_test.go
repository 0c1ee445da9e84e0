package cel

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const benchPod = `{
"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-7d4b9c","namespace":"shop","uid":"0b1c","resourceVersion":"42",
 "labels":{"app":"web","team":"shop"},"annotations":{"a":"b"},
 "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c","uid":"1"}]},
"spec":{"serviceAccountName":"web","nodeName":"n1","volumes":[{"name":"tmp","emptyDir":{}},{"name":"cfg","configMap":{"name":"cfg"}}],
 "securityContext":{"runAsNonRoot":true},
 "containers":[
 {"name":"web","image":"registry.example.io/web:1.2","ports":[{"containerPort":8080,"protocol":"TCP"}],"resources":{"limits":{"cpu":"500m","memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"securityContext":{"privileged":false,"allowPrivilegeEscalation":false},"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]},
 {"name":"proxy","image":"registry.example.io/proxy:9","resources":{"limits":{"cpu":"100m","memory":"64Mi"}},"securityContext":{"privileged":false}},
 {"name":"log","image":"registry.example.io/log:3","resources":{"limits":{"cpu":"100m","memory":"64Mi"}}}]},
"status":{"phase":"Running","podIP":"10.1.2.3","conditions":[{"type":"Ready","status":"True"}]}}`

// benchSource is in the style of the public library of templates.
func benchSource() Source {
	return Source{
		Variables: []NamedExpression{
			{"containers", `has(variables.anyObject.spec.containers) ? variables.anyObject.spec.containers : []`},
			{"initContainers", `has(variables.anyObject.spec.initContainers) ? variables.anyObject.spec.initContainers : []`},
			{"exempt", `has(variables.params.exemptImages) ? variables.params.exemptImages : []`},
			{"badContainers", `(variables.containers + variables.initContainers).filter(c, !(c.image in variables.exempt) && has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged == true).map(c, c.name)`},
		},
		Validations: []Validation{
			{Expression: `size(variables.badContainers) == 0`, MessageExpression: `"Privileged container is not allowed: " + variables.badContainers.join(", ")`},
			{Expression: `variables.containers.all(c, c.image.startsWith("registry.example.io/"))`, Message: "images come from the registry"},
			{Expression: `has(object.metadata.labels) && "team" in object.metadata.labels`, Message: "team is missing"},
		},
	}
}

func BenchmarkEval(b *testing.B) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON([]byte(benchPod)); err != nil {
		b.Fatal(err)
	}
	program, err := Compile(benchSource())
	if err != nil {
		b.Fatal(err)
	}
	in := Input{Object: obj, Params: map[string]any{"exemptImages": []any{"a", "b"}}}
	b.ReportAllocs()
	for b.Loop() {
		result, err := program.Eval(context.Background(), in)
		if err != nil || len(result.Errors) > 0 || len(result.Violations) > 0 {
			b.Fatal(result, err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(benchSource()); err != nil {
			b.Fatal(err)
		}
	}
}
