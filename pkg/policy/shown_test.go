package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
)

// said is what a verdict says: the messages, with their details, or the error.
func said(v Verdict) []string {
	out := []string{}
	for _, violation := range v.Violations {
		out = append(out, violation.Message+string(violation.Details))
	}
	if v.Outcome == Error {
		out = append(out, "error: "+v.Message)
	}
	return out
}

// TestShown has programs that show texts of objects, of which each is judged by what was
// said of those before it.
func TestShown(t *testing.T) {
	pods := []string{
		"metadata: {name: a, namespace: ns}\nspec: {x: a, side: b}",
		"metadata: {name: b, namespace: ns}\nspec: {x: a, side: b}",
		"metadata: {name: b, namespace: b}\nspec: {x: a, side: b}",
		"metadata: {name: '%v', namespace: ns}\nspec: {x: a, side: b}",
		"metadata: {name: a, namespace: ns}\nspec: {x: 7, side: b}",
		"metadata: {name: a, namespace: ns}\nspec: {x: {a: b}, side: b}",
		"metadata: {name: a, namespace: ns}\nspec: {side: b}",
	}
	for name, test := range map[string]struct {
		rego string
		// misses is how many of the Pods are evaluated.
		misses int
		want   [][]string
	}{
		"the name": {
			`violation[{"msg": msg}] { input.review.object.spec.side == "b"; msg := sprintf("pod %v/%s", [input.review.namespace, input.review.name]) }`,
			1,
			[][]string{{"pod ns/a"}, {"pod ns/b"}, {"pod b/b"}, {"pod ns/%v"}, {"pod ns/a"}, {"pod ns/a"}, {"pod ns/a"}},
		},
		"what is no text": {
			`violation[{"msg": msg}] { msg := sprintf("%v is %v", [input.review.name, input.review.object.spec.x]) }`,
			4,
			[][]string{{"a is a"}, {"b is a"}, {"b is a"}, {"%v is a"}, {"a is 7"}, {`a is {"a": "b"}`}, {}},
		},
		"messages that are the same for some": {
			`violation[{"msg": input.review.name}] { true }
violation[{"msg": m}] { m := input.review.namespace }`,
			1,
			[][]string{{"a", "ns"}, {"b", "ns"}, {"b"}, {"%v", "ns"}, {"a", "ns"}, {"a", "ns"}, {"a", "ns"}},
		},
		"the order of messages": {
			`violation[{"msg": m, "details": {"n": 1}}] { m := sprintf("%v", [input.review.name]) }
violation[{"msg": m, "details": {"n": 0}}] { m := sprintf("%v", [input.review.namespace]) }
violation[{"msg": "am"}] { true }`,
			1,
			[][]string{
				{`a{"n":1}`, "am", `ns{"n":0}`},
				{"am", `b{"n":1}`, `ns{"n":0}`},
				{"am", `b{"n":0}`, `b{"n":1}`},
				{`%v{"n":1}`, "am", `ns{"n":0}`},
				{`a{"n":1}`, "am", `ns{"n":0}`},
				{`a{"n":1}`, "am", `ns{"n":0}`},
				{`a{"n":1}`, "am", `ns{"n":0}`},
			},
		},
		"compared as well": {
			`violation[{"msg": m}] { m := sprintf("%v %v", [input.review.name, input.review.namespace]); input.review.name == "b" }`,
			3,
			[][]string{{}, {"b ns"}, {"b b"}, {}, {}, {}, {}},
		},
		"errors": {
			`violation[{"msg": m}] { m := input.review.object.spec.x }
violation[{"msg": n}] { n := sprintf("%v", [input.review.name]) }
f(x) = input.review.name { x }
f(x) = input.review.namespace { x }
violation[{"msg": "m"}] { input.review.object.spec.x == 7; f("a") }`,
			5,
			[][]string{
				{"a"},
				{"a", "b"},
				{"a", "b"},
				{"%v", "a"},
				{"error: template Test: rego:5:1: eval_conflict_error: function data.test.f produced conflicting values for the same inputs:"},
				{`error: template Test: msg of a violation is a object, want a string: {"a": "b"}`},
				{"a"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, testTemplate("package test\n"+test.rego), testConstraint("c", "{}"))
			if len(set.Rejections()) > 0 {
				t.Fatalf("%+v", set.Rejections())
			}
			m := set.Constraints()[0].rule.(*gatekeeperRule).evaluator.(*regoEvaluator).memo
			var got [][]string
			for _, pod := range pods {
				o := subject(parse(t, "apiVersion: v1\nkind: Pod\n"+pod), nil)
				messages := said(Review(t.Context(), o, set.Constraints())[0])
				for i := range messages {
					messages[i], _, _ = strings.Cut(messages[i], "\n")
				}
				got = append(got, messages)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			entries := 0
			for i := range m.shards {
				entries += len(m.shards[i].recent)
			}
			if entries != test.misses {
				t.Errorf("%d verdicts are remembered, want %d", entries, test.misses)
			}
		})
	}
}

// TestShownIsAsEvaluated: of random objects, what is said by what is remembered is what
// is said of each alone.
func TestShownIsAsEvaluated(t *testing.T) {
	template := testTemplate(`
package test
containers[c] { c := input.review.object.spec.containers[_] }
say(text) = m { m := sprintf("container %v", [text]) }
violation[{"msg": m}] { c := containers[_]; not c.limit; m := say(c.name) }
violation[{"msg": m}] { c := containers[_]; c.image == "a"; m := sprintf("%v: %s of %v", [c.image, c.name, input.review.name]) }
violation[{"msg": m, "details": {"n": count(input.review.object.spec.containers)}}] { m := concat("/", [input.review.namespace, input.review.name]) }
`)
	constraints := []string{testConstraint("c", "{}"), testConstraint("d", "parameters: {label: x}")}
	set := compile(t, template, constraints...)
	texts := rapid.SampledFrom([]string{"a", "b", "c", "", "%v", `"`, "{"})
	containers := rapid.Custom(func(t *rapid.T) any {
		c := map[string]any{"image": texts.Draw(t, "image"), "other": texts.Draw(t, "other")}
		if n := rapid.IntRange(0, 5).Draw(t, "kind of name"); n == 0 {
			c["name"] = int64(1)
		} else if n > 1 {
			c["name"] = texts.Draw(t, "name")
		}
		if rapid.Bool().Draw(t, "limited") {
			c["limit"] = texts.Draw(t, "limit")
		}
		return c
	})
	rapid.Check(t, func(t *rapid.T) {
		obj := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": texts.Draw(t, "name"), "namespace": texts.Draw(t, "namespace")},
			"spec":     map[string]any{"containers": rapid.SliceOfN(containers, 0, 2).Draw(t, "containers")},
		}}
		kind := Kind{GroupVersionKind: obj.GroupVersionKind(), Namespaced: true}
		var got, want []string
		for _, v := range Review(t.Context(), NewObject(kind, obj, nil), set.Constraints()) {
			got = append(got, said(v)...)
		}
		c := set.Constraints()[0].rule.(*gatekeeperRule).evaluator.(*regoEvaluator)
		input, err := (&Object{obj: obj, program: c.regoProgram}).input(false)
		if err != nil {
			t.Fatal(err)
		}
		found, err := c.Eval(t.Context(), input, c.parameters, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range constraints {
			for _, v := range found {
				want = append(want, v.Message+string(v.Details))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
