package rego

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

type readsTest struct {
	rego string
	libs []string
	want []string
}

func readsTests() map[string]readsTest {
	return map[string]readsTest{
		"a flag": {
			rego: `violation[{"msg": "m"}] { input.review.object.spec.hostPID }`,
			want: []string{".object.spec.hostPID"},
		},
		"nothing": {
			rego: `violation[{"msg": "m"}] { input.parameters.on }`,
			want: []string{""},
		},
		"fields of elements": {
			rego: `violation[{"msg": msg}] {
				c := input.review.object.spec.containers[_]
				not c.resources.limits.memory
				msg := sprintf("%v", [c.name])
			}`,
			want: []string{".object.spec.containers[].name~", ".object.spec.containers[].resources.limits.memory"},
		},
		"compared with a constant": {
			rego: `violation[{"msg": "m"}] { input.review.object.kind == "Pod"; input.review.kind.kind = "Pod"; 1 > input.review.object.x }`,
			want: []string{".kind.kind=", ".object.kind=", ".object.x="},
		},
		"compared with a parameter": {
			rego: `violation[{"msg": "m"}] { input.review.object.x == input.parameters.x }`,
			want: []string{".object.x*"},
		},
		"a partial set of elements": {
			rego: `
			containers[c] { c := input.review.object.spec.containers[_] }
			containers[c] { c := input.review.object.spec.initContainers[_] }
			violation[{"msg": "m"}] { containers[c]; c.image == "x" }`,
			want: []string{".object.spec.containers[].image=", ".object.spec.initContainers[].image="},
		},
		"the order of a set": {
			rego: `
			containers[c] { c := input.review.object.spec.containers[_] }
			violation[{"msg": msg}] { msg := concat(",", [c.name | containers[c]]) }`,
			want: []string{".object.spec.containers[]*"},
		},
		"the size of a set": {
			rego: `
			containers[c] { c := input.review.object.spec.containers[_] }
			violation[{"msg": "m"}] { count(containers) > 1 }`,
			want: []string{".object.spec.containers[]*"},
		},
		"the length of an array": {
			rego: `violation[{"msg": "m"}] { count(input.review.object.spec.containers) > 1 }`,
			want: []string{".object.spec.containers[]"},
		},
		"keys": {
			rego: `violation[{"msg": "m"}] {
				missing := {l | l := input.parameters.labels[_]} - {l | input.review.object.metadata.labels[l]}
				count(missing) > 0
			}`,
			want: []string{".object.metadata.labels[]"},
		},
		"functions": {
			rego: `
			spec(o) = o.spec
			privileged(c) { c.securityContext.privileged }
			violation[{"msg": "m"}] { s := spec(input.review.object); privileged(s.containers[_]) }`,
			want: []string{".object.spec.containers[].securityContext.privileged"},
		},
		"the whole input given to a function": {
			rego: `
			labels(i) = i.review.object.metadata.labels
			violation[{"msg": "m"}] { labels(input).app }`,
			want: []string{".object.metadata.labels.app"},
		},
		"a library": {
			rego: `
			import data.lib.pods
			violation[{"msg": "m"}] { pods.host(input.review.object.spec) }`,
			libs: []string{`package lib.pods
			host(spec) { spec.hostNetwork }
			host(spec) { spec.hostPID }`},
			want: []string{".object.spec.hostNetwork", ".object.spec.hostPID"},
		},
		"object.get": {
			rego: `violation[{"msg": "m"}] {
				o := object.get(input.review.object, ["spec", "template"], {})
				object.get(o, "x", 1) == 1
			}`,
			want: []string{".object.spec.template.x="},
		},
		"a built-in function": {
			rego: `violation[{"msg": "m"}] { json.marshal(input.review.object.spec) == "{}" }`,
			want: []string{".object.spec*"},
		},
		"shapes": {
			rego: `violation[{"msg": "m"}] { is_object(input.review.object.spec); not is_null(input.review.object.x) }`,
			want: []string{".object.spec", ".object.x"},
		},
		"walk": {
			rego: `violation[{"msg": "m"}] { walk(input.review.object.spec, [p, v]); v == "x" }`,
			want: []string{".object.spec*"},
		},
		"a variable that is used twice": {
			rego: `violation[{"msg": "m"}] { x := input.review.object.a; input.review.object.b[_] = x }`,
			want: []string{".object.a*", ".object.b[]*"},
		},
		"an index that is used twice": {
			rego: `violation[{"msg": "m"}] { input.review.object.a[i].x == "1"; input.review.object.b[i].y == "2" }`,
			want: []string{".object.a[].x=", ".object.b[].y="},
		},
		"a field that the object names": {
			rego: `violation[{"msg": "m"}] { k := input.review.object.key; input.review.object.data[k] == "x" }`,
			want: []string{".object.data[]=", ".object.key*"},
		},
		"fields that the program names": {
			rego: `
			fields = {"containers", "initContainers"}
			violation[{"msg": msg}] {
				field := fields[_]
				c := input.review.object.spec[field][_]
				c.stdin
				msg := sprintf("%v %v", [field, c.name])
			}`,
			want: []string{".object.spec.containers[].name~", ".object.spec.containers[].stdin", ".object.spec.initContainers[].name~", ".object.spec.initContainers[].stdin"},
		},
		"fields that the program names in a set": {
			rego: `violation[{"msg": "m"}] { {"a", "b"}[field]; input.review.object[field].x }`,
			want: []string{".object.a.x", ".object.b.x"},
		},
		"fields that a function is given": {
			rego: `
			has(o, f) { o[f].x }
			violation[{"msg": "m"}] { has(input.review.object, "a") }
			violation[{"msg": "m"}] { f := ["b"][_]; has(input.review.object, f) }`,
			want: []string{".object.a.x", ".object.b.x"},
		},
		"a field that a pattern gives": {
			rego: `violation[{"msg": "m"}] { [f, _] := split(input.parameters.x, "/"); input.review.object[f].x }`,
			want: []string{".object[].x"},
		},
		"a field that is a parameter": {
			rego: `violation[{"msg": "m"}] { input.review.object[input.parameters.x].x }`,
			want: []string{".object[].x"},
		},
		"a field that the program computes": {
			rego: `violation[{"msg": "m"}] { f := lower("A"); input.review.object[f].x }`,
			want: []string{".object[].x"},
		},
		"a field of either kind": {
			rego: `
			f = "a" { input.parameters.on }
			f = x { not input.parameters.on; x := input.parameters.x }
			violation[{"msg": "m"}] { input.review.object[f].x }`,
			want: []string{".object[].x"},
		},
		"with": {
			rego: `
			f { input.x }
			violation[{"msg": "m"}] { f with input as {"x": true} }`,
			want: []string{"*"},
		},
		"a package": {
			rego: `violation[{"msg": "m"}] { data.lib[x] }`,
			want: []string{"*"},
		},
		"destructured": {
			rego: `violation[{"msg": "m"}] { [a, b] := input.review.object.list; a == b }`,
			want: []string{".object.list*"},
		},
		"else": {
			rego: `
			image(c) = x { x := c.image } else = y { y := c.imageID }
			violation[{"msg": image(input.review.object.spec.container)}] { true }`,
			want: []string{".object.spec.container.imageID~", ".object.spec.container.image~"},
		},
		"a rule that may give two values": {
			rego: `
			spec = input.review.object.a { true }
			spec = input.review.object.b { true }
			violation[{"msg": "m"}] { spec.x }`,
			want: []string{".object.a*", ".object.b*"},
		},
		"rules of which one holds": {
			rego: `
			spec = input.review.object.a { input.review.kind.kind == "Pod" }
			spec = input.review.object.b { input.review.kind.kind == "Deployment" }
			violation[{"msg": "m"}] { spec.x }`,
			want: []string{".kind.kind=", ".object.a.x", ".object.b.x"},
		},
		"rules of which one holds, by lists": {
			rego: `
			spec = input.review.object.a { k := ["Pod", "Job"][_]; input.review.kind.kind == k }
			spec = input.review.object.b { k := ["Deployment", "StatefulSet"][_]; input.review.kind.kind == k }
			violation[{"msg": "m"}] { spec.x }`,
			want: []string{".kind.kind=", ".object.a.x", ".object.b.x"},
		},
		"rules whose lists overlap": {
			rego: `
			spec = input.review.object.a { k := ["Pod", "Job"][_]; input.review.kind.kind == k }
			spec = input.review.object.b { input.review.kind.kind == "Pod" }
			violation[{"msg": "m"}] { spec.x }`,
			want: []string{".kind.kind=", ".object.a*", ".object.b*"},
		},
		"rules of which one is guarded": {
			rego: `
			spec = input.review.object.a { input.review.kind.kind == "Pod" }
			spec = input.review.object.b { not input.review.kind.kind == "Pod" }
			violation[{"msg": "m"}] { spec.x }`,
			want: []string{".kind.kind=", ".object.a*", ".object.b*"},
		},
		"every": {
			rego: `
			import future.keywords
			violation[{"msg": "m"}] { every c in input.review.object.spec.containers { c.name != "x" } }`,
			want: []string{".object.spec.containers[].name="},
		},
		"membership": {
			rego: `
			import future.keywords
			violation[{"msg": "m"}] { "NET_ADMIN" in input.review.object.spec.add }
			violation[{"msg": "m"}] { some c in input.review.object.spec.containers; c.stdin }`,
			want: []string{".object.spec.add*", ".object.spec.containers[].stdin"},
		},
		"the namespace": {
			rego: `violation[{"msg": "m"}] { input.review.namespaceObject.metadata.labels.team }`,
			want: []string{".namespaceObject.metadata.labels.team"},
		},
	}
}

func TestReads(t *testing.T) {
	for name, test := range readsTests() {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(Source{Rego: "package t\n" + test.rego, Libs: test.libs})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, p.Reads.Paths()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// words are the names of fields, and texts, of random documents.
var words = []string{
	"spec", "template", "containers", "initContainers", "container", "name", "image", "imageID", "securityContext", "privileged",
	"hostPID", "hostNetwork", "metadata", "labels", "app", "team", "resources", "limits", "memory", "kind", "x", "y", "a", "b",
	"add", "stdin", "key", "data", "list", "NET_ADMIN", "Pod",
}

func randomDocument(t *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 9).Draw(t, "type")
	switch {
	case depth == 0 || kind < 2:
		return rapid.SampledFrom([]any{nil, true, false, "x", "1", "NET_ADMIN", "Pod", int64(1), int64(2), 0.5}).Draw(t, "scalar")
	case kind < 4:
		out := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			out = append(out, randomDocument(t, depth-1))
		}
		return out
	}
	out := map[string]any{}
	for range rapid.IntRange(0, 6).Draw(t, "size") {
		out[rapid.SampledFrom(words).Draw(t, "field")] = randomDocument(t, depth-1)
	}
	return out
}

// TestProjectionsLookTheSame: a program says of what it reads what it says of all.
func TestProjectionsLookTheSame(t *testing.T) {
	parameters, err := NewValue(map[string]any{"on": true, "x": "x", "label": "app", "labels": []any{"app", "team"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range readsTests() {
		p, err := Compile(Source{Rego: "package t\n" + test.rego, Libs: test.libs})
		if err != nil {
			t.Fatal(err)
		}
		projection := paths.NewProjection(p.Reads)
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			review := map[string]any{"kind": map[string]any{"kind": "Pod"}, "object": randomDocument(t, 6), "namespaceObject": randomDocument(t, 4)}
			say := func(document any) string {
				value, err := NewValue(document)
				if err != nil {
					t.Fatal(err)
				}
				violations, err := p.Eval(t.Context(), value, parameters, nil)
				return fmt.Sprint(violations, err)
			}
			if all, read := say(review), say(projection.Project(review, nil)); all != read {
				t.Fatalf("of all: %s\nof what is read: %s", all, read)
			}
		}))
	}
}

func TestNondeterministic(t *testing.T) {
	for text, want := range map[string]bool{
		`violation[{"msg": "m"}] { time.now_ns() > 1 }`:                                     true,
		`violation[{"msg": "m"}] { rand.intn("x", 2) == 1 }`:                                true,
		`violation[{"msg": "m"}] { crypto.x509.parse_and_verify_certificates(input.x)[0] }`: true,
		`violation[{"msg": "m"}] { uuid.rfc4122("x") == "y" }`:                              true,
		`violation[{"msg": "m"}] { startswith(input.x, "time.now")}`:                        false,
	} {
		p, err := Compile(Source{Rego: "package t\n" + text})
		if err != nil {
			t.Fatal(err)
		}
		if p.Nondeterministic != want {
			t.Errorf("%s: %v", text, p.Nondeterministic)
		}
	}
}

// TestReadsIsBounded by giving up: the same names in several comprehensions, which are
// not told apart, stand for parts of parts of parts.
func TestReadsIsBounded(t *testing.T) {
	p, err := Compile(Source{Rego: `package t
	violation[{"msg": "m"}] {
		count([1 | y = input.review.object; x = y]) > 0
		count([1 | x = input.review.object; y = x.a]) > 0
		count([1 | x = input.review.object; y = x.b]) > 0
		count([1 | x = input.review.object; y = x.c]) > 0
	}`})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Reads.Whole() {
		t.Errorf("reads %d paths", len(p.Reads.Paths()))
	}
}

// TestSetsThatContainThemselves would end the process; sets of other things are fine.
func TestSetsThatContainThemselves(t *testing.T) {
	for text, refused := range map[string]bool{
		`violation[{"msg": "m"}] { p := input.review.object.a; c := [1 | p = {p}]; c }`:        true,
		`violation[{"msg": "m"}] { p := input.review.object.a; c := [1 | ["x", {p}] = p]; c }`: true,
		`violation[{"msg": "m"}] { p := input.review.object.a; p == {p} }`:                     true,
		`violation[{"msg": "m"}] { p := input.review.object.a; q := {p, "x"}; count(q) == 2 }`: false,
		`violation[{"msg": "m"}] { p := input.review.object.a; q := {"x": [p]}; q.x[0] == p }`: false,
	} {
		_, err := Compile(Source{Rego: "package t\n" + text})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "rego:2:") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
