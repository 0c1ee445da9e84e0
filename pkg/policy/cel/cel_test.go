package cel

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return obj
}

func compile(t testing.TB, src Source) *Program {
	t.Helper()
	p, err := Compile(src)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// evaluate returns what a result says, in lines.
func evaluate(t testing.TB, src Source, in Input) []string {
	t.Helper()
	result, err := compile(t, src).Eval(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	if !result.Matched {
		out = append(out, "not matched")
	}
	for _, v := range result.Violations {
		out = append(out, "violation: "+v.Message)
	}
	for _, err := range result.Errors {
		out = append(out, "error: "+err.Error())
	}
	for key, value := range result.AuditAnnotations {
		out = append(out, "annotation: "+key+"="+value)
	}
	return out
}

// valid is a source with these validations, which say "0", "1" and so on.
func valid(expressions ...string) Source {
	var src Source
	for i, e := range expressions {
		src.Validations = append(src.Validations, Validation{Expression: e, Message: strconv.Itoa(i)})
	}
	return src
}

func saying(v ...Validation) Source { return Source{Validations: v} }

func (s Source) native() Source { s.Native = true; return s }
func (s Source) ignore() Source { s.FailurePolicyIgnore = true; return s }
func (s Source) params() Source { s.HasParams = true; return s.native() }

// where adds match conditions.
func (s Source) where(expressions ...string) Source {
	for i, e := range expressions {
		s.MatchConditions = append(s.MatchConditions, NamedExpression{Name: string(rune('a' + i)), Expression: e})
	}
	return s
}

// with adds a variable.
func (s Source) with(name, expression string) Source {
	s.Variables = append(s.Variables, NamedExpression{Name: name, Expression: expression})
	return s
}

// note adds an audit annotation.
func (s Source) note(key, expression string) Source {
	s.AuditAnnotations = append(s.AuditAnnotations, AuditAnnotation{Key: key, ValueExpression: expression})
	return s
}

const (
	pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns","labels":{"app":"x"}},
		"spec":{"priority":5,"ratio":0.5,"hostNetwork":true,"containers":[{"name":"a"},{"name":"b"}]}}`
	namespace = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns","labels":{"env":"prod"},
		"creationTimestamp":"2024-01-02T03:04:05Z"},"status":{"phase":"Active"}}`

	missing = "object.spec.absent == 1"
	noKey   = "no such key: absent"
)

func TestOutcomes(t *testing.T) {
	for name, tc := range map[string]struct {
		src  Source
		want []string
	}{
		"pass":      {valid(`object.metadata.name == "p"`), nil},
		"numbers":   {valid(`object.spec.priority + 1 == 6`, `object.spec.ratio == 0.5`, `object.spec.hostNetwork == true`), nil},
		"violation": {valid(`true`, `object.metadata.name == "q"`), []string{"violation: 1"}},
		"sorted, without repeats": {
			saying(Validation{Expression: "false", Message: "b"}, Validation{Expression: "false", Message: "a"}, Validation{Expression: "false", Message: "b"}),
			[]string{"violation: a", "violation: b"},
		},

		"error":                      {valid(missing), []string{"error: validations[0].expression: " + noKey}},
		"error beside violations":    {valid("false", missing, "false"), []string{"violation: 0", "violation: 2", "error: validations[1].expression: " + noKey}},
		"each error":                 {valid(missing, missing), []string{"error: validations[0].expression: " + noKey, "error: validations[1].expression: " + noKey}},
		"ignored error":              {valid(missing).ignore(), nil},
		"violation beside ignored":   {valid("false", missing).ignore(), []string{"violation: 0"}},
		"error of a variable":        {valid("variables.v").with("v", missing), []string{`error: validations[0].expression: composited variable "v" fails to evaluate: ` + noKey}},
		"error of an unused one":     {valid("true").with("v", missing), nil},
		"variables of variables":     {valid("variables.w == 7").with("v", "object.spec.priority + 1").with("w", "variables.v + 1"), nil},
		"condition true":             {valid("false").where("true"), []string{"violation: 0"}},
		"condition false":            {valid("false").where("true", "false"), []string{"not matched"}},
		"condition fails":            {valid("false").where("true", missing), []string{"error: matchCondition[1].expression: " + noKey}},
		"condition fails, native":    {valid("false").where(missing).native(), []string{"error: matchConditions[0].expression: " + noKey}},
		"failing condition ignored":  {valid("false").where(missing).ignore(), []string{"not matched"}},
		"false beats failing":        {valid("false").where(missing, "false"), []string{"not matched"}},
		"condition with a variable":  {valid("false").where("variables.v").with("v", `object.metadata.name != "p"`), []string{"not matched"}},
		"annotation":                 {valid("false").note("k", `" of " + object.metadata.name + " "`), []string{"violation: 0", "annotation: k=of p"}},
		"annotation without value":   {valid("false").note("k", `" "`).note("l", "null"), []string{"violation: 0"}},
		"annotation of a pass":       {valid("true").note("k", `"v"`), []string{"annotation: k=v"}},
		"failing annotation":         {valid("false").note("k", "string(object.spec.absent)"), []string{"violation: 0", "error: auditAnnotations[0].valueExpression: " + noKey}},
		"failing annotation ignored": {valid("false").note("k", "string(object.spec.absent)").ignore(), []string{"violation: 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := evaluate(t, tc.src, Input{Object: parse(t, pod)})
			if diff := cmp.Diff(append([]string{}, tc.want...), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	const limit = 5 << 10
	quoted := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	for name, tc := range map[string]struct {
		message, expression string
		want                string
	}{
		"message":                 {" why ", "", "why"},
		"expression":              {"why", `" is " + object.metadata.name + " "`, "is p"},
		"expression fails":        {"why", "string(object.spec.absent)", "why"},
		"expression is blank":     {"why", `"  "`, "why"},
		"expression of two lines": {"why", `"a\nb"`, "why"},
		"a last line break":       {"why", `"a\n"`, "a"},
		"the longest":             {"why", quoted(limit), strings.Repeat("x", limit)},
		"too long":                {"why", quoted(limit + 1), "why"},
		"nothing":                 {"", "", "failed expression: 1 > 2"},
		"nothing of use":          {" ", `""`, "failed expression: 1 > 2"},
	} {
		t.Run(name, func(t *testing.T) {
			src := saying(Validation{Expression: "true", MessageExpression: `"of another"`}, Validation{Expression: " 1 > 2 ", Message: tc.message, MessageExpression: tc.expression})
			got := evaluate(t, src, Input{Object: parse(t, pod)})
			if diff := cmp.Diff([]string{"violation: " + tc.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
