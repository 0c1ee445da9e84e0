package differential

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// testCase is a template, constraints and objects. In constraints, a text that is
// no manifest is the spec of a constraint of kind Test; the first is called c0.
type testCase struct {
	name        string
	templates   []string
	constraints []string
	expansions  []string
	inventory   []string
	objects     []string // names of stock objects, or manifests; a Pod if there are none
}

// program is a case of one constraint without parameters, on one Pod.
func program(name, template string) testCase {
	return testCase{name: name, templates: []string{template}, constraints: []string{"{}"}}
}

// stock has objects that cases name.
var stock = map[string]string{
	"pod": `
apiVersion: v1
kind: Pod
metadata: {name: web-1, generateName: web-, namespace: shop, uid: 11, labels: {app: web, tier: front}, annotations: {size: "7"}}
spec:
  containers:
  - {name: main, image: "registry.example.com/web:1.2", resources: {limits: {cpu: "2", memory: 1Gi}}, ports: [{containerPort: 8080}]}
  - {name: helper, image: nginx}
  terminationGracePeriodSeconds: 30
status: {phase: Running, podIP: 10.0.0.1}`,
	"pod without Namespace": `
apiVersion: v1
kind: Pod
metadata: {name: lost, namespace: gone, labels: {app: web}}
spec: {containers: [{name: main, image: nginx}]}`,
	"pod in kube-system": `
apiVersion: v1
kind: Pod
metadata: {name: dns-x1, namespace: kube-system}
spec: {containers: [{name: main, image: registry.k8s.io/coredns}]}`,
	"unnamed pod": `
apiVersion: v1
kind: Pod
metadata: {generateName: job-, namespace: shop}
spec: {containers: [{name: main, image: nginx}]}`,
	"deployment": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {replicas: 3, template: {spec: {containers: [{name: main, image: nginx}]}}}`,
	"namespace": `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {kubernetes.io/metadata.name: shop, stage: production}}
spec: {finalizers: [kubernetes]}
status: {phase: Active}`,
	"namespace kube-system": `
apiVersion: v1
kind: Namespace
metadata: {name: kube-system, labels: {kubernetes.io/metadata.name: kube-system}}
spec: {finalizers: [kubernetes]}
status: {phase: Active}`,
	"cluster role": `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader, labels: {app: web}}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]`,
	"Namespace of another group": `
apiVersion: example.com/v1
kind: Namespace
metadata: {name: shop, labels: {stage: other}}`,
	"custom": `
apiVersion: example.com/v2beta1
kind: Widget
metadata: {name: shop-widget, namespace: shop, labels: {app: ""}}
spec: {size: 1000000, ratio: 0.5, whole: 2.0, large: 9007199254740993, exponent: 1.5e+30, disabled: false, nothing: null, empty: {}, text: "ü"}`,
}

// everything names all stock objects.
var everything = []string{
	"pod", "pod without Namespace", "pod in kube-system", "unnamed pod", "deployment", "namespace", "namespace kube-system",
	"cluster role", "Namespace of another group", "custom",
}

func parse(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(data); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	return obj
}

// question makes objects of the manifests of a case.
func (c *testCase) question(t testing.TB) *question {
	t.Helper()
	q := &question{}
	for _, text := range c.templates {
		q.templates = append(q.templates, parse(t, text))
	}
	for i, text := range c.constraints {
		if !strings.HasPrefix(text, "apiVersion:") {
			text = fmt.Sprintf("apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: c%d}\nspec:\n%s", i, indent(text, 2))
		}
		q.constraints = append(q.constraints, parse(t, text))
	}
	for _, text := range c.expansions {
		q.expansions = append(q.expansions, parse(t, text))
	}
	for _, text := range c.inventory {
		q.inventory = append(q.inventory, parse(t, text))
	}
	names := c.objects
	if len(names) == 0 {
		names = []string{"pod"}
	}
	for i, name := range names {
		text, ok := stock[name]
		if !ok {
			text, name = name, fmt.Sprintf("object %d", i)
		}
		q.objects = append(q.objects, newObject(name, parse(t, text), parse(t, stock["namespace"]), parse(t, stock["namespace kube-system"])))
	}
	return q
}

// newObject finds the Namespace of an object.
func newObject(name string, obj *unstructured.Unstructured, namespaces ...*unstructured.Unstructured) object {
	o := object{name: name, obj: obj}
	for _, n := range namespaces {
		if n.GetName() == obj.GetNamespace() {
			o.namespace = n
		}
	}
	return o
}

func indent(text string, n int) string {
	return strings.Repeat(" ", n) + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", n))
}

// template is a ConstraintTemplate of kind Test with any parameters, whose target
// is given.
func template(target string) string {
	return templateWith("v1", "validation: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}", target)
}

// templateWith is a ConstraintTemplate of a version, with a piece of its
// spec.crd.spec.
func templateWith(version, crd, target string) string {
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/%s
kind: ConstraintTemplate
metadata: {name: test}
spec:
  crd:
    spec:
      names: {kind: Test}
%s
  targets:
  - target: admission.k8s.gatekeeper.sh
%s`, version, indent(crd, 6), indent(target, 4))
}

func literal(text string) string { return "|\n" + indent(text, 2) }

func libraries(libs []string) string {
	if len(libs) == 0 {
		return ""
	}
	text := "libs:\n"
	for _, lib := range libs {
		text += "- |\n" + indent(lib, 2) + "\n"
	}
	return text
}

// v0 is a template with a legacy program.
func v0(rego string, libs ...string) string { return template(v0Target(rego, libs...)) }

func v0Target(rego string, libs ...string) string {
	return "rego: " + literal(rego) + "\n" + libraries(libs)
}

// v1 is a template with a program of Rego v1.
func v1(rego string, libs ...string) string { return code("v1", rego, libs...) }

// code is a template with a program of some version.
func code(version, rego string, libs ...string) string {
	return template(codeTarget(version, rego, libs...))
}

func codeTarget(version, rego string, libs ...string) string {
	source := "version: " + version + "\nrego: " + literal(rego) + "\n" + libraries(libs)
	return "code:\n- engine: Rego\n  source:\n" + indent(source, 4)
}

// cel is a template with a CEL source.
func cel(source string) string { return template(celTarget(source)) }

func celTarget(source string) string {
	return "code:\n- engine: K8sNativeValidation\n  source:\n" + indent(source, 4)
}

// always is violated by every object.
const always = `package test
violation[{"msg": "always"}] { true }`

// says is a program of which each violation is a line of Rego that sets msg.
func says(lines ...string) string {
	text := "package test\n"
	for _, line := range lines {
		text += "violation[{\"msg\": msg}] { " + line + " }\n"
	}
	return text
}
