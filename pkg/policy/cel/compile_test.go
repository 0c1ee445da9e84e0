package cel

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestCompileErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		src  Source
		want []string
	}{
		"syntax":                 {valid("true", "object ==\n  )"), []string{"validations[1].expression:2:3: Syntax error: mismatched input ')'"}},
		"undeclared":             {valid("true &&\n  nothing"), []string{"validations[0].expression:2:3: undeclared reference to 'nothing'"}},
		"two of one expression":  {valid("x || y"), []string{"validations[0].expression:1:1: undeclared reference to 'x'", "validations[0].expression:1:6: undeclared reference to 'y'"}},
		"validation not bool":    {valid(`"text"`), []string{"validations[0].expression: must evaluate to bool but got string"}},
		"validation dynamic":     {valid(`object.spec`), []string{"validations[0].expression: must evaluate to bool but got dyn; its type is not known here, compare it, as in ... == true"}},
		"empty":                  {valid(""), []string{"validations[0].expression:1:1: Syntax error: mismatched input '<EOF>'"}},
		"message dynamic":        {saying(Validation{Expression: "true", MessageExpression: "object.metadata.name"}), []string{"validations[0].messageExpression: must evaluate to string but got dyn; its type is not known here, wrap it in string(...)"}},
		"message not string":     {saying(Validation{Expression: "true", MessageExpression: "1"}), []string{"validations[0].messageExpression: must evaluate to string but got int"}},
		"condition not bool":     {valid("true").where("true", "1"), []string{"matchCondition[1].expression: must evaluate to bool but got int"}},
		"condition, native":      {valid("true").where("1").native(), []string{"matchConditions[0].expression: must evaluate to bool but got int"}},
		"annotation":             {valid("true").note("k", "1"), []string{"auditAnnotations[0].valueExpression: must evaluate to one of [string null_type] but got int"}},
		"variable":               {valid("variables.v").with("v", "nothing"), []string{"variables[0].expression:1:1: undeclared reference to 'nothing'"}},
		"beside a variable":      {valid("variables.v || x", "1").with("v", "nothing"), []string{"variables[0].expression:1:1: undeclared reference to 'nothing'", "validations[0].expression:1:16: undeclared reference to 'x'", "validations[1].expression: must evaluate to bool but got int"}},
		"variable of later":      {valid("true").with("v", "variables.w").with("w", "1"), []string{"variables[0].expression:1:10: undefined field 'w'"}},
		"no such variable":       {valid("variables.v"), []string{"validations[0].expression:1:10: undefined field 'v'"}},
		"all of them":            {valid("x", "1").where("y"), []string{"matchCondition[0].expression:1:1: undeclared reference to 'y'", "validations[0].expression:1:1: undeclared reference to 'x'", "validations[1].expression: must evaluate to bool but got int"}},
		"regular expression":     {valid(`"a".matches("(")`), []string{"validations[0].expression:1:13: invalid matches argument"}},
		"field of the request":   {valid(`request.uid == ""`), []string{"validations[0].expression:1:8: undefined field 'uid'"}},
		"params of templates":    {valid(`params == null`), []string{"validations[0].expression:1:1: undeclared reference to 'params'"}},
		"authorizer, templates":  {valid(`authorizer.group("").resource("pods").check("get").allowed()`), []string{"validations[0].expression:1:1: undeclared reference to 'authorizer'"}},
		"params without a kind":  {valid(`params == null`).native(), []string{"validations[0].expression:1:1: undeclared reference to 'params'"}},
		"authorizer in messages": {saying(Validation{Expression: "true", MessageExpression: `string(authorizer.requestResource.check("get").allowed())`}).native(), []string{"validations[0].messageExpression:1:8: undeclared reference to 'authorizer'"}},

		"reserved params":     {valid("true").with("params", "1"), []string{`variables[0].name: "params" is reserved`}},
		"reserved object":     {valid("true").with("anyObject", "1"), []string{`variables[0].name: "anyObject" is reserved`}},
		"reserved prefix":     {valid("true").with("gatekeeper_internal_x", "1"), []string{`variables[0].name: "gatekeeper_internal_x" is reserved`}},
		"reserved condition":  {Source{MatchConditions: []NamedExpression{{Name: "gatekeeper_internal_x", Expression: "true"}}}, []string{`matchCondition[0].name: "gatekeeper_internal_x" is reserved`}},
		"repeated variable":   {valid("true").with("v", "1").with("v", "2"), []string{`variables[1].name: "v" is the name of variables[0] already`}},
		"repeated conditions": {Source{Native: true, MatchConditions: []NamedExpression{{"a", "true"}, {"a", "true"}}}, []string{`matchConditions[1].name: "a" is the name of matchConditions[0] already`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(tc.src)
			if err == nil {
				t.Fatal("it compiles")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tc.want) {
				t.Fatalf("got %q, want %q", lines, tc.want)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("got %q, want %q", lines[i], want)
				}
			}
		})
	}
}

func TestReads(t *testing.T) {
	check := `authorizer.requestResource.check("get").allowed()`
	for name, tc := range map[string]struct {
		src  Source
		want map[string][]string
	}{
		"nothing":              {valid(`object.oldObject == object.request`, `request.name == ""`, `request.?name.hasValue()`), nil},
		"namespace":            {valid("true", `has(namespaceObject.metadata)`), map[string][]string{NamespaceObject: {"validations[1].expression"}}},
		"namespace, in macros": {valid(`[1].all(i, namespaceObject == null)`), map[string][]string{NamespaceObject: {"validations[0].expression"}}},
		"namespace, condition": {valid(`true`).where("namespaceObject == null"), nil},
		"old object":           {valid(`.oldObject == null`), map[string][]string{OldObject: {"validations[0].expression"}}},
		"user":                 {valid(`request.userInfo.username == ""`), map[string][]string{UserInfo: {"validations[0].expression"}}},
		"presence of a user":   {valid(`has(request.userInfo)`), map[string][]string{UserInfo: {"validations[0].expression"}}},
		"optional user":        {valid(`request.?userInfo.?username.hasValue()`), map[string][]string{UserInfo: {"validations[0].expression"}}},
		"whole request":        {valid(`[request].size() == 1`), map[string][]string{UserInfo: {"validations[0].expression"}}},
		"user, condition":      {valid("true").where(`request.userInfo.username == ""`), map[string][]string{UserInfo: {"matchConditions[0].expression"}}},
		"authorizer":           {valid(check), map[string][]string{Authorizer: {"validations[0].expression"}}},
		"message":              {saying(Validation{Expression: "true", MessageExpression: "string(oldObject)"}), map[string][]string{OldObject: {"validations[0].messageExpression"}}},
		"annotation":           {valid("true").note("k", "request.userInfo.username"), map[string][]string{UserInfo: {"auditAnnotations[0].valueExpression"}}},
		"unused variable":      {valid("true").with("v", "oldObject"), nil},
		"used variable":        {valid("variables.v == null").with("v", "oldObject"), map[string][]string{OldObject: {"variables[0].expression"}}},
		"optional variable":    {valid("variables.?v.hasValue()").with("v", "oldObject").with("w", check), map[string][]string{OldObject: {"variables[0].expression"}}},
		"variable of variable": {valid("variables.w").with("u", check).with("v", check).with("w", "variables.v"), map[string][]string{Authorizer: {"variables[1].expression"}}},
		"all variables":        {valid("variables == variables").with("u", check).with("v", "oldObject"), map[string][]string{Authorizer: {"variables[0].expression"}, OldObject: {"variables[1].expression"}}},
		"several": {
			valid("oldObject == null", "true").where("oldObject == null").with("v", "oldObject").note("k", "string(variables.v)"),
			map[string][]string{OldObject: {"variables[0].expression", "matchConditions[0].expression", "validations[0].expression"}},
		},
		"variable of a condition": {valid("true").where("variables.v && variables.w").with("v", "namespaceObject == null").with("w", "oldObject == null"), map[string][]string{OldObject: {"variables[1].expression"}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := compile(t, tc.src.native())
			got := map[string][]string{}
			for what, read := range map[string]bool{NamespaceObject: p.ReadsNamespace, OldObject: p.ReadsOldObject, UserInfo: p.ReadsUserInfo, Authorizer: p.UsesAuthorizer} {
				if places := p.Places(what); read {
					got[what] = places
				} else if len(places) > 0 {
					t.Errorf("%s: not read, but at %q", what, places)
				}
			}
			if tc.want == nil {
				tc.want = map[string][]string{}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzCompile(f *testing.F) {
	for _, expression := range []string{
		`object.metadata.name == "p"`, `variables.params.names.exists(n, n == object.metadata.name)`, `has(object.spec.x) && object.spec.x > 1`,
		`object.spec.containers.all(c, c.image.startsWith("a"))`, `object.?spec.?x.orValue(1) == 1`, `namespaceObject.metadata.labels["a"] == "b"`,
		`quantity("1").isLessThan(quantity("2"))`, `"a".matches("b+")`, `[1, 2].map(x, x * 2).sum() == 6`, `{"a": 1}.all(k, v, v > 0)`, `1 / 0 == 1`,
		`request.userInfo.groups.exists(g, g == "x")`, `variables == variables`, `timestamp("2024-01-02T03:04:05Z").getFullYear() == 2024`, `(`, "", "\x00",
	} {
		f.Add(expression, true)
		f.Add(expression, false)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON([]byte(pod)); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, expression string, native bool) {
		src := Source{Native: native, Validations: []Validation{{Expression: expression}, {Expression: "false", MessageExpression: expression}}}
		p, err := Compile(src)
		if err != nil {
			if strings.Contains(err.Error(), "panicked") {
				t.Fatal(err)
			}
			src.Validations = []Validation{{Expression: expression}}
			if p, err = Compile(src); err != nil {
				return
			}
		}
		result, err := p.Eval(context.Background(), Input{Object: obj})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range result.Violations {
			if v.Message == "" {
				t.Error("a violation says nothing")
			}
		}
	})
}
