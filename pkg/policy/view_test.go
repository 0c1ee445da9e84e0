package policy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const celReader = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: test}
spec:
  crd: {spec: {names: {kind: Test}, validation: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    code:
    - engine: K8sNativeValidation
      source:
        variables:
        - {name: spec, expression: "variables.anyObject.?spec"}
        validations:
        - {expression: "!has(object.status) || object.status.phase != 'bad'", message: phase}
        - {expression: "variables.spec.hostNetwork.orValue(false) == false", message: host}
        - {expression: "object.metadata.?labels['a'].orValue('x') != 'y'", messageExpression: "'a of ' + object.metadata.name"}
        - {expression: "namespaceObject == null || !has(namespaceObject.metadata.labels) || !('b' in namespaceObject.metadata.labels)", message: namespace}
`

var podsKind = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true}

// TestViews: what is read is found out exactly enough.
func TestViews(t *testing.T) {
	for name, c := range map[string]struct {
		template, constraint string
		whole                bool
	}{
		"rego": {
			template:   testTemplate(needLabel),
			constraint: testConstraint("c", "match: {}"),
		},
		"cel": {template: celReader, constraint: testConstraint("c", "match: {}")},
		"clock": {
			template:   testTemplate("package test\nviolation[{\"msg\": \"late\"}] { time.now_ns() < 0 }"),
			constraint: testConstraint("c", "match: {}"), whole: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, c.template, c.constraint)
			if len(set.Constraints()) != 1 {
				t.Fatalf("rejected: %v", set.Rejections())
			}
			view := NewView(podsKind, set.Constraints())
			if view.Whole() != c.whole {
				t.Fatalf("whole is %v, want %v: %s", view.Whole(), c.whole, view.Encode())
			}
			decoded, err := DecodeView(view.Encode())
			if err != nil || string(decoded.Encode()) != string(view.Encode()) {
				t.Errorf("decoded %s, %v; want %s", decoded.Encode(), err, view.Encode())
			}
			base := parse(t, podManifest)
			beat := base.DeepCopy()
			beat.SetResourceVersion("2")
			beat.SetGeneration(5)
			beat.SetAnnotations(map[string]string{"x": "y"})
			beat.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "kubelet"}}
			if same := view.Object(base) == view.Object(beat); same == c.whole {
				t.Errorf("a change of annotations and managedFields is seen: %v", !same)
			}
			if decoded.Object(base) != view.Object(base) {
				t.Error("the decoded view has other digests")
			}
		})
	}
}

// TestObjectsThatLookTheSameGetTheSameVerdicts compares verdicts on random objects that
// have the same digest, and sees to it that there are both such objects and others.
func TestObjectsThatLookTheSameGetTheSameVerdicts(t *testing.T) {
	var in Inputs
	in.Templates = append(in.Templates, parse(t, celReader), parse(t, renamed(testTemplate(`
package test
violation[{"msg": msg}] {
  c := input.review.object.spec.containers[_]
  not startswith(c.image, "good/")
  msg := sprintf("%v in %v", [c.name, input.review.object.metadata.annotations.owner])
}
violation[{"msg": "host"}] { input.review.object.spec.hostNetwork; input.review.namespaceObject.metadata.labels.a }`), "Other")))
	in.Constraints = append(in.Constraints,
		parse(t, testConstraint("plain", "match: {}")),
		parse(t, testConstraint("labels", "match: {labelSelector: {matchLabels: {a: 'y'}}}")),
		parse(t, renamed(testConstraint("plain", "match: {}"), "Other")),
		parse(t, renamed(testConstraint("namespaces", "match: {namespaceSelector: {matchExpressions: [{key: b, operator: Exists}]}}"), "Other")))
	in.AdmissionPolicies = append(in.AdmissionPolicies, parse(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: vap}
spec:
  matchConstraints: {objectSelector: {matchExpressions: [{key: c, operator: DoesNotExist}]}, resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods]}]}
  matchConditions: [{name: running, expression: "object.?status.?phase.orValue('') != 'Succeeded'"}]
  validations:
  - {expression: "!has(object.spec.containers) || object.spec.containers.all(c, has(c.image))", messageExpression: "'no image in ' + object.metadata.name"}
`))
	in.AdmissionBindings = append(in.AdmissionBindings, parse(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: vap}
spec: {policyName: vap, validationActions: [Deny]}
`))
	set := Compile(context.Background(), in, nil)
	if len(set.Constraints()) != 5 {
		t.Fatalf("%d constraints, rejected: %+v", len(set.Constraints()), set.Rejections())
	}
	view := NewView(podsKind, set.Constraints())
	random := rand.New(rand.NewPCG(1, 2))
	type seen struct {
		obj, namespace *unstructured.Unstructured
		verdicts       []Verdict
	}
	known := map[string]seen{}
	same := 0
	for i := range 4000 {
		obj, namespace := randomPod(random), randomNamespace(random)
		obj.SetResourceVersion(fmt.Sprint(i))
		key := view.Object(obj) + " " + view.Namespace(namespace)
		verdicts := Review(context.Background(), NewObject(podsKind, obj, namespace), set.Constraints())
		first, ok := known[key]
		if !ok {
			known[key] = seen{obj, namespace, verdicts}
			continue
		}
		same++
		if diff := cmp.Diff(first.verdicts, verdicts, cmpopts.IgnoreFields(Verdict{}, "Constraint")); diff != "" {
			t.Fatalf("objects with the same digest get different verdicts (-first +second):\n%s\n%v %v\n%v %v", diff, first.obj, first.namespace, obj, namespace)
		}
	}
	if same < 500 || len(known) < 100 {
		t.Errorf("%d objects looked like one before, there are %d looks; the test says little", same, len(known))
	}
}

func renamed(manifest, kind string) string {
	return strings.NewReplacer("kind: Test", "kind: "+kind, "name: test}", "name: "+strings.ToLower(kind)+"}").Replace(manifest)
}

func randomPod(random *rand.Rand) *unstructured.Unstructured {
	pick := func(values ...any) any { return values[random.IntN(len(values))] }
	metadata := map[string]any{"name": "p", "namespace": "ns"}
	spec := map[string]any{}
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}}
	set := func(m map[string]any, name string, value any) {
		if value != nil {
			m[name] = value
		}
	}
	set(metadata, "annotations", pick(nil, nil, map[string]any{"owner": pick("me", "you")}, map[string]any{"other": pick("1", "2", "3", "4")}))
	set(metadata, "labels", pick(nil, map[string]any{"a": pick("x", "y")}, map[string]any{"c": "d"}))
	set(metadata, "managedFields", pick(nil, []any{map[string]any{"manager": pick("k1", "k2")}}))
	set(spec, "hostNetwork", pick(nil, true, false))
	set(spec, "nodeName", pick(nil, "n1", "n2", "n3"))
	container := map[string]any{"name": pick("c", "d")}
	set(container, "image", pick(nil, "good/a", "good/b", "bad/a"))
	set(container, "tty", pick(nil, true))
	set(spec, "containers", pick(nil, []any{container}))
	set(obj.Object, "status", pick(nil, map[string]any{"phase": pick("bad", "Running", "Succeeded"), "podIP": pick("1", "2", "3")}, map[string]any{"podIP": "4"}))
	return obj
}

func randomNamespace(random *rand.Rand) *unstructured.Unstructured {
	labels := []map[string]any{{}, {"a": "1"}, {"b": "1"}}[random.IntN(3)]
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": "ns", "labels": labels, "annotations": map[string]any{"note": fmt.Sprint(random.IntN(3))},
	}}}
}

func TestMetadataOnly(t *testing.T) {
	for rego, want := range map[string]bool{
		needLabel: true,
		"package test\nviolation[{\"msg\": \"m\"}] { input.review.object.metadata.annotations.a; input.review.object.kind == \"Pod\" }": true,
		"package test\nviolation[{\"msg\": \"m\"}] { not input.review.object.metadata.labels.a; not input.review.object.spec }":         false,
		"package test\nviolation[{\"msg\": \"m\"}] { input.review.object[_].labels.a }":                                                 false,
		"package test\nviolation[{\"msg\": \"m\"}] { count(input.review.object) > 2 }":                                                  false,
		"package test\nviolation[{\"msg\": \"m\"}] { input.review.name == \"x\" }":                                                      true,
	} {
		set := compile(t, testTemplate(rego), testConstraint("c", "match: {}"))
		if len(set.Constraints()) != 1 {
			t.Fatalf("rejected: %v", set.Rejections())
		}
		if got := NewView(podsKind, set.Constraints()).MetadataOnly(); got != want {
			t.Errorf("%s\nmetadata only is %v, want %v", rego, got, want)
		}
	}
}
