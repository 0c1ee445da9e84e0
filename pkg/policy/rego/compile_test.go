package rego

import (
	"fmt"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

// outcome compiles and evaluates a program, and tells its violations or its error.
func outcome(t *testing.T, src Source) string {
	t.Helper()
	p, err := Compile(src)
	if err != nil {
		return err.Error()
	}
	review, err := NewValue(map[string]any{"object": map[string]any{"metadata": map[string]any{"labels": map[string]any{"msg": "label"}}}})
	if err != nil {
		t.Fatal(err)
	}
	violations, err := p.Eval(t.Context(), review, ast.ObjectTerm(), nil)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, v := range violations {
		out = append(out, v.Message+string(v.Details))
	}
	return strings.Join(out, " ")
}

// TestKindsOfViolation has rules violation of all kinds: what has elements with a msg
// is evaluated, what cannot have any is refused.
func TestKindsOfViolation(t *testing.T) {
	const refused = "rego:2:1: the rule violation has no element with a msg, so it would report nothing; write violation"
	for _, test := range []struct {
		rego string
		v1   bool
		want string
	}{
		{`violation[{"msg": "x"}] { true }`, false, "x"},
		{`violation contains {"msg": "x", "details": {"a": 1}} if true`, true, `x{"a":1}`},
		{`violation = {{"msg": "x"}, {"text": "y"}} { true }`, false, "x"},
		{`violation := {{"msg": "x"}}`, true, "x"},
		{`violation[{"msg": "x"}] = 3 { true }`, false, "x"},
		{`violation = {{"msg": "x"}: 1} { true }`, false, "x"},
		{`violation[x] { x := input.review.object.metadata.labels }`, false, "label"},
		{"violation[{\"text\": \"x\"}] { true }\nviolation[{\"msg\": \"y\"}] { true }", false, "y"},
		{`violation[{"msg": m}] { m := input.review.object.nothing }`, false, ""},
		{`violation[{"msg": "x", "details": null}] { true }`, false, "xnull"},
		{`violation[{"msg": 7}] { true }`, false, "msg of a violation is a number, want a string: 7"},

		{`violation["x"] { true }`, false, refused},
		{`violation[{"text": "x"}] { true }`, false, refused},
		{`violation[["msg"]] { true }`, false, refused},
		{`violation[null] { true }`, false, refused},
		{`violation = [{"msg": "x"}] { true }`, false, refused},
		{`violation = {"a": {"msg": "x"}} { true }`, false, refused},
		{`violation { true }`, false, refused},
		{`default violation = false`, false, refused},
		{`violation(x) { x }`, false, refused},
		{`violation.a contains {"msg": "x"} if true`, true, "rego:1:1: the template has no rule violation; write violation"},
		{`deny[{"msg": "x"}] { true }`, false, "rego:1:1: the template has no rule violation; write violation"},
	} {
		got := outcome(t, Source{Rego: "package test\n" + test.rego, V1: test.v1})
		if got != test.want && (!strings.HasSuffix(test.want, "write violation") || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s: %s; want %s", test.rego, got, test.want)
		}
	}
}

// TestReadsAll checks that all of the input is read where it is not known which parts
// are: by those who see elements of violation, by replacements of the input, and by
// names of rules that are computed.
func TestReadsAll(t *testing.T) {
	const lib = "package lib.parts\npart = input.review.object\neach[x] { x := input.review.object.list[_] }"
	for rego, want := range map[string]bool{
		`violation[x] { x := input.review.object.metadata.labels }`:                                                 true,
		`violation = {x | x := input.review.object.metadata.labels } { true }`:                                      true,
		"f { input.a }\nviolation[{\"msg\": \"x\"}] { input.review.kind; f with input as input.review.object }":     true,
		"f { input.review.kind }\nviolation[{\"msg\": \"x\"}] { f; not f with input.parameters as 1 }":              true,
		"violation[{\"msg\": \"x\"}] { input.review.kind; data.lib[n].part.metadata }":                              true,
		"violation[{\"msg\": \"x\"}] { input.review.kind; count(data.lib) > 0 }":                                    true,
		"violation[{\"msg\": \"x\"}] { input.review.kind; data.lib.parts.part.metadata; data.lib.parts.each[_].a }": false,
		`violation[{"msg": "x"}] { input.review.object.metadata.labels }`:                                           false,
		`violation[{"msg": x.a, "details": x}] { x := input.review.object.metadata }`:                               false,
	} {
		p, err := Compile(Source{Rego: "package test\n" + rego, Libs: []string{lib}})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Reads.Whole(); got != want {
			t.Errorf("%s: all is read: %v, want %v", rego, got, want)
		}
	}
}

// TestErrorsNameTheAuthorsPackage has errors that name rules.
func TestErrorsNameTheAuthorsPackage(t *testing.T) {
	for rego, want := range map[string]string{
		"package conflicts\nf(x) = 1 { x }\nf(x) = 2 { x }\nviolation[{\"msg\": \"x\"}] { f(true) > 0 }": "rego:3:1: eval_conflict_error: function data.conflicts.f produced",
		"package k8s.circle\na { b }\nb { a }\nviolation[{\"msg\": \"x\"}] { a }":                        "rule data.k8s.circle.a is recursive: data.k8s.circle.a -> data.k8s.circle.b -> data.k8s.circle.a",
		"package odd[\"a-b\"]\na = 1\na[x] { x := 1 }\nviolation[{\"msg\": \"x\"}] { a == 1 }":           `rego:2:1: rego_type_error: conflicting rules data.odd["a-b"].a found`,
		"package plain\nviolation[{\"msg\": \"x\"}] { startswith(1, \"a\") }":                            "rego:2:27: rego_type_error: startswith: invalid argument(s)",
		"package test\nimport data.lib\nviolation[{\"msg\": \"x\"}] { lib.nothing.a }\n":                 "",
		"package test\nimport data.libs\nviolation[{\"msg\": \"x\"}] { libs.nothing.a }\n":               "rego:2:1: bad import data.libs: only data.lib and future can be imported",
		"package test\nviolation[{\"msg\": \"x\"}] { data.policy_template.violation }\n":                 "rego:2:27: bad reference data.policy_template.violation",
	} {
		if got := outcome(t, Source{Rego: rego}); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s:\ngot  %s\nwant %s", rego, got, want)
		}
	}
}

// TestForbiddenBuiltins checks that each is refused, with the reason.
func TestForbiddenBuiltins(t *testing.T) {
	for name, reason := range forbiddenBuiltins {
		arity := 1
		if builtin := ast.BuiltinMap[name]; builtin != nil {
			arity = builtin.Decl.Arity()
		} else if name != externalData {
			t.Errorf("%s: there is no such built-in function", name)
			continue
		}
		args := strings.TrimSuffix(strings.Repeat("input.a, ", arity), ", ")
		want := fmt.Sprintf("rego:2:27: rego_type_error: undefined function %s: policies may not use this built-in function here, because %s", name, reason)
		if got := outcome(t, Source{Rego: fmt.Sprintf("package test\nviolation[{\"msg\": \"x\"}] { %s(%s) }", name, args)}); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
