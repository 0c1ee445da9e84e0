package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// celTemplate is a template of kind Test whose code is given as YAML.
func celTemplate(source string) string {
	crd, _, _ := strings.Cut(testTemplate("package x"), "    rego:")
	return crd + "    code:\n    - engine: K8sNativeValidation\n      source:\n        " + indent(source, 8) + "\n"
}

func TestCELTemplates(t *testing.T) {
	for name, test := range map[string]struct{ source, constraint, want string }{
		"a violation": {
			`validations: [{expression: "variables.params.label in object.metadata.labels", messageExpression: "'label ' + variables.params.label + ' is missing'"}]`,
			"parameters: {label: team}", "fail label team is missing",
		},
		"no violation": {
			`validations: [{expression: "variables.params.label in object.metadata.labels"}]`,
			"parameters: {label: app}", "pass",
		},
		"no parameters": {
			`validations: [{expression: "variables.params == null", message: "there are some"}]`,
			"{}", "pass",
		},
		"an expression for a message": {
			`validations: [{expression: "false"}]`, "{}", "fail failed expression: false",
		},
		"a match condition": {
			`{matchCondition: [{name: never, expression: "object.kind == 'Secret'"}], validations: [{expression: "false"}]}`, "{}", "pass",
		},
		"variables": {
			`{variables: [{name: labels, expression: "variables.anyObject.metadata.labels"}], validations: [{expression: "size(variables.labels) == 0", message: many}]}`,
			"{}", "fail many",
		},
		"the match block": {
			`validations: [{expression: "false"}]`, `match: {kinds: [{apiGroups: ["apps"], kinds: ["*"]}]}`, "not matched",
		},
		"an error": {
			`validations: [{expression: "object.spec.absent == 1"}]`, "{}", "error: template Test: validations[0].expression: no such key: spec",
		},
		"an error that is ignored": {
			`{failurePolicy: Ignore, validations: [{expression: "object.spec.absent == 1"}]}`, "{}", "pass",
		},
		"an error beside a violation": {
			`validations: [{expression: "object.spec.absent == 1"}, {expression: "false", message: bad}]`,
			"{}", "fail bad: template Test: validations[0].expression: no such key: spec",
		},
		"the request of an audit": {
			`validations: [{expression: "request.operation == '' && request.kind.kind == 'Pod' && request.namespace == 'ns'"}]`, "{}", "pass",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := review(t, compile(t, celTemplate(test.source), testConstraint("c", test.constraint)))
			if diff := cmp.Diff(map[string]string{"c": test.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCELTemplatesThatAreRejected(t *testing.T) {
	for name, test := range map[string]struct{ source, want string }{
		"a type error":     {`validations: [{expression: "object.metadata.name"}]`, "spec.targets[0].code[0].source: validations[0].expression"},
		"a syntax error":   {`validations: [{expression: "object.("}]`, "validations[0].expression:1:8"},
		"an unknown name":  {`validations: [{expression: "params.x"}]`, "undeclared reference to 'params'"},
		"nothing":          {`{}`, "spec.targets[0].code[0].source: validations is empty"},
		"a wrong type":     {`{validations: {}}`, "spec.targets[0].code[0].source: "},
		"an unknown field": {`{validation: [{expression: "true"}]}`, `validations is empty; nothing would ever be found; unknown field "validation" is ignored`},
		"a misspelt field": {`validations: [{expresion: "true"}]`, `unknown field "validations[0].expresion" is ignored`},
		"a failure policy": {`{failurePolicy: Maybe, validations: [{expression: "true"}]}`, `failurePolicy is "Maybe"; it must be Fail or Ignore`},
		"no policy at all": {`{failurePolicy: "", validations: [{expression: "true"}]}`, `failurePolicy is ""; it must be Fail or Ignore`},
		"a reserved name":  {`{variables: [{name: params, expression: "1"}], validations: [{expression: "true"}]}`, "params"},
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, celTemplate(test.source), testConstraint("c", "{}"))
			if len(set.Constraints()) != 0 || len(set.Rejections()) != 2 {
				t.Fatalf("%d constraints, %d rejections", len(set.Constraints()), len(set.Rejections()))
			}
			for _, r := range set.Rejections() {
				if !strings.HasPrefix(r.Message, "template test: ") || !strings.Contains(r.Message, test.want) {
					t.Errorf("rejected with %q", r.Message)
				}
			}
		})
	}
}

// TestUnknownFieldsOfCEL are ignored with a note.
func TestUnknownFieldsOfCEL(t *testing.T) {
	const place = "template test: spec.targets[0].code[0].source: "
	for name, test := range map[string]struct{ source, constraint, want string }{
		"none":       {`{generateVAP: true, failurePolicy: null, validations: [{expression: "false", message: bad}]}`, "{}", ""},
		"one":        {`{validations: [{expression: "false", message: bad}], paramKind: {kind: A}}`, "{}", place + `unknown field "paramKind" is ignored`},
		"conditions": {`{validations: [{expression: "false", message: bad}], matchConditions: [{name: never, expression: "false"}]}`, "{}", place + `unknown field "matchConditions" is ignored; Gatekeeper's field is matchCondition`},
		"several":    {`validations: [{expression: "false", message: bad, reason: Invalid, code: 1}]`, "{}", place + `unknown field "validations[0].code" is ignored; unknown field "validations[0].reason" is ignored`},
		"many":       {`{a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, validations: [{expression: "false", message: bad}]}`, "{}", place + `unknown field "a" is ignored; unknown field "b" is ignored; unknown field "c" is ignored; unknown field "d" is ignored; unknown field "e" is ignored; 2 more are ignored`},
		"and an unknown action": {
			`{x: 1, validations: [{expression: "false", message: bad}]}`, "enforcementAction: block",
			`enforcementAction is "block"; Gatekeeper knows deny, dryrun, warn and scoped; ` + place + `unknown field "x" is ignored`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, celTemplate(test.source), testConstraint("c", test.constraint))
			if got := review(t, set)["c"]; got != "fail bad" {
				t.Errorf("got %q", got)
			}
			if got := set.Constraints()[0].Note; got != test.want {
				t.Errorf("note %q, want %q", got, test.want)
			}
		})
	}
}

// TestCELWins where a template has Rego too.
func TestCELWins(t *testing.T) {
	template := strings.Replace(celTemplate(`validations: [{expression: "false", message: cel}]`), "    code:\n",
		"    rego: |\n      package a\n      violation[{\"msg\": \"rego\"}] { true }\n    code:\n", 1)
	if got := review(t, compile(t, template, testConstraint("c", "{}"))); got["c"] != "fail cel" {
		t.Errorf("got %q", got)
	}
}

func TestCELNeedsNamespace(t *testing.T) {
	for expression, want := range map[string]bool{"object.kind == 'Pod'": false, "namespaceObject.metadata.name == 'ns'": true} {
		set := compile(t, celTemplate(fmt.Sprintf(`validations: [{expression: "%s"}]`, expression)), testConstraint("c", "{}"))
		if got := set.Constraints()[0].NeedsNamespace; got != want {
			t.Errorf("%s: %v", expression, got)
		}
	}
}

// TestNotes tell what is evaluated, but maybe not as it is meant.
func TestNotes(t *testing.T) {
	for name, test := range map[string]struct{ template, constraint, want string }{
		"nothing":   {testTemplate(needLabel), "{}", ""},
		"an action": {testTemplate(needLabel), "enforcementAction: block", `enforcementAction is "block"; Gatekeeper knows deny, dryrun, warn and scoped`},
		"a scope":   {testTemplate(needLabel), "match: {scope: namespaced}", `spec.match.scope is "namespaced", which selects everything; it is Cluster, Namespaced or *`},
		"the user in Rego": {
			testTemplate("package x\nviolation[{\"msg\": \"m\"}] { input.review.userInfo.username != \"eve\" }"), "{}",
			"template test: it reads input.review.userInfo, which is empty in an audit",
		},
		"the user in CEL": {
			celTemplate(`{failurePolicy: Ignore, validations: [{expression: "request.userInfo.username == 'bob'"}]}`), "{}",
			"template test: it reads request.userInfo, which is empty in an audit",
		},
		"several": {
			celTemplate(`validations: [{expression: "oldObject == null"}]`), "enforcementAction: block",
			`enforcementAction is "block"; Gatekeeper knows deny, dryrun, warn and scoped; template test: it reads oldObject, which is null in an audit`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, test.template, testConstraint("c", test.constraint))
			if len(set.Constraints()) != 1 || set.Constraints()[0].Note != test.want {
				t.Errorf("%+v", set)
			}
		})
	}
}
