package policy

import (
	"fmt"
	"strings"
	"testing"
)

// schemaTemplate tells the parameters that it gets. It has a version and a piece of
// spec.crd.spec.
func schemaTemplate(version, crd string) string {
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
    rego: |
      package test
      violation[{"msg": json.marshal(input.parameters)}] { true }
`, version, crd)
}

// TestParameterSchemas has what parameters a schema lets pass, and what becomes of
// them.
func TestParameterSchemas(t *testing.T) {
	typed := func(schema string) string {
		return "validation: {openAPIV3Schema: {type: object, properties: {v: " + schema + "}}}"
	}
	const (
		numbers = "{type: array, items: {type: integer}, x-kubernetes-list-type: set}"
		keyed   = "{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}}}"
		rule    = "{type: integer, x-kubernetes-validations: [{rule: self > 2, message: too small}]}"
		unknown = "unknown fields: spec.parameters"
	)
	for _, test := range []struct{ version, crd, spec, want string }{
		{"v1", "", "{}", "{}"},
		{"v1", "", "parameters: {a: 1}", unknown},
		{"v1", "validation: {}", "parameters: {a: 1}", unknown},
		{"v1", "validation: {legacySchema: true}", "parameters: {a: 1}", `{"a":1}`},
		{"v1", "validation: {legacySchema: true}", "parameters: [a]", `["a"]`},
		{"v1beta1", "", "parameters: {a: {b: [1]}}", `{"a":{"b":[1]}}`},
		{"v1beta1", "validation: {}", "parameters: text", `"text"`},
		{"v1beta1", "validation: {legacySchema: false}", "parameters: {a: 1}", unknown},
		{"v1beta1", "validation: {openAPIV3Schema: {properties: {a: {type: array}}}}", "parameters: {a: [1, {b: c}], d: e}", `{"a":[1,{"b":"c"}],"d":"e"}`},
		{"v1", "validation: {openAPIV3Schema: {type: array, items: {type: string}}}", "parameters: [a]", `["a"]`},
		{"v1", typed("{type: string}"), "parameters: null", "{}"},
		{"v1", typed("{type: string}"), "parameters: {v: null}", "{}"},
		{"v1", typed("{type: string, default: d}"), "parameters: {v: null}", `{"v":"d"}`},
		{"v1", typed("{type: string, nullable: true}"), "parameters: {v: null}", `{"v":null}`},
		{"v1", typed("{type: string}"), "match: null", "{}"},
		{"v1", typed(numbers), "parameters: {v: [1, 2]}", `{"v":[1,2]}`},
		{"v1", typed(numbers), "parameters: {v: [1, 1]}", "spec.parameters.v[1]: Duplicate value"},
		{"v1", typed(keyed), "parameters: {v: [{k: a}, {k: a}]}", "spec.parameters.v[1]: Duplicate value"},
		{"v1", typed(rule), "parameters: {v: 3}", `{"v":3}`},
		{"v1", typed(rule), "parameters: {v: 1}", "spec.parameters.v: Invalid value: 1: too small"},
	} {
		set := compile(t, schemaTemplate(test.version, test.crd), testConstraint("c", test.spec))
		if r := set.Rejections(); len(r) > 0 {
			if len(r) != 1 || !strings.HasPrefix(r[0].Message, "constraint Test/c: ") || !strings.Contains(r[0].Message, test.want) {
				t.Errorf("%s %s with %s: rejections %+v, want one with %q", test.version, test.crd, test.spec, r, test.want)
			}
			continue
		}
		if got := review(t, set)["c"]; got != "fail "+test.want {
			t.Errorf("%s %s with %s: %s, want %s", test.version, test.crd, test.spec, got, test.want)
		}
	}
}

// TestImpossibleSchemas has schemas whose CRD a kube-apiserver refuses, with the
// place that the message names.
func TestImpossibleSchemas(t *testing.T) {
	for _, test := range []struct{ schema, want string }{
		{"{type: string, default: 3}", ".properties[v].default"},
		{"{type: text}", ".properties[v].type"},
		{"{type: string, pattern: '('}", ".properties[v].pattern"},
		{"{type: array, uniqueItems: true, items: {type: string}}", ".properties[v].uniqueItems"},
		{"{type: array}", ".properties[v].items"},
		{"{type: integer, x-kubernetes-validations: [{rule: self ++ 2}]}", ".properties[v].x-kubernetes-validations[0].rule"},
		{"{type: integer, x-kubernetes-validations: [{rule: self.a == 2}]}", ".properties[v].x-kubernetes-validations[0].rule"},
		{"{type: array, items: {type: string}, x-kubernetes-list-type: map}", ".properties[v].items"},
		{"{type: array, x-kubernetes-list-type: set, items: {type: object}}", ".properties[v].items.x-kubernetes-map-type"},
		{"{type: string, x-kubernetes-list-type: set}", ".properties[v]"},
		{"{type: string, $ref: '#/definitions/a'}", ".properties[v].$ref"},
		{"{type: object, properties: {a: {type: string}}, additionalProperties: {type: b}}", ".properties[v].additionalProperties"},
	} {
		schema, want := test.schema, test.want
		template := schemaTemplate("v1", "validation: {openAPIV3Schema: {type: object, properties: {v: "+schema+"}}}")
		r := compile(t, template).Rejections()
		if len(r) != 1 || !strings.Contains(r[0].Message, schemaPlace+want) {
			t.Errorf("%s: rejections %+v, want one with %s", schema, r, schemaPlace+want)
		}
		if _, err := ConstraintCRD(parse(t, template)); err == nil || !strings.Contains(err.Error(), schemaPlace+want) {
			t.Errorf("%s: CRD: %v", schema, err)
		}
	}
	shortNames := strings.Replace(schemaTemplate("v1", ""), "{kind: Test}", "{kind: Test, shortNames: [Bad_Name]}", 1)
	if r := compile(t, shortNames).Rejections(); len(r) != 1 || !strings.Contains(r[0].Message, "spec.crd.spec.names.shortNames[0]") {
		t.Errorf("short names: rejections %+v", r)
	}
}
