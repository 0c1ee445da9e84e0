package rego

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
)

func TestShow(t *testing.T) {
	p, err := Compile(Source{Rego: "package t\nviolation[{\"msg\": \"m\"}] { true }"})
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{"zero", "}", "", p.Placeholder(0), "%v", "5", "6", "7", "8", "9", "ten"}
	for message, want := range map[string]string{
		"":                                  "",
		"nothing {0}":                       "nothing {0}",
		p.Placeholder(0):                    "zero",
		"a " + p.Placeholder(0) + " b":      "a zero b",
		p.Placeholder(1) + p.Placeholder(0): "}zero",
		p.Placeholder(2) + "{" + p.Placeholder(10): "{ten",
		"once " + p.Placeholder(3):                 "once " + p.Placeholder(0),
		"%s " + p.Placeholder(4):                   "%s %v",
	} {
		if got := p.Show(message, texts); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
	other, err := Compile(Source{Rego: "package t\nviolation[{\"msg\": \"m\"}] { true }"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Placeholder(0) == other.Placeholder(0) {
		t.Errorf("two programs have the placeholder %s", p.Placeholder(0))
	}
}

func TestVerbsThatShow(t *testing.T) {
	for _, test := range []struct {
		call  string
		shows []bool
		ok    bool
	}{
		{`sprintf("%v%s", [a, b])`, []bool{true, true}, true},
		{`sprintf("100%% %v é %s", [a, b])`, []bool{true, true}, true},
		{`sprintf("%d %q %v %x %T %t", [a, b, c, d, e, f])`, []bool{false, false, true, false, false, false}, true},
		{`sprintf("%5v %-5s %+v %#v %.1s %05v % v %v", [a, b, c, d, e, f, g, h])`, []bool{false, false, false, false, false, false, false, true}, true},
		{`sprintf("%V %S", [a, b])`, []bool{false, false}, true},
		{`sprintf("none", [])`, nil, true},
		{`sprintf("%v", [])`, nil, false},
		{`sprintf("%v", [a, b])`, nil, false},
		{`sprintf("%", [a])`, nil, false},
		{`sprintf("%v %", [a])`, nil, false},
		{`sprintf("%[2]v", [a, b])`, nil, false},
		{`sprintf("%*d", [a, b])`, nil, false},
		{`sprintf("%5%", [a])`, nil, false},
		{`sprintf("%é", [a])`, nil, false},
		{`sprintf("%!v", [a])`, nil, false},
		{`sprintf(x, [a])`, nil, false},
		{`sprintf("%v", a)`, nil, false},
	} {
		call := ast.MustParseExpr(test.call)
		shows, ok := verbsThatShow(call.Operands())
		if ok != test.ok || ok && !cmp.Equal(shows, test.shows) {
			t.Errorf("%s: %v %v", test.call, shows, ok)
		}
	}
}

// TestReadsOfTexts tells texts that are only shown from others.
func TestReadsOfTexts(t *testing.T) {
	helpers := map[string]string{
		"pod(":      `pod(x) = m { m := sprintf("pod %v", [x]) }`,
		"either(":   "either(x) = input.parameters.text { input.parameters.text }\neither(x) = x { not input.parameters.text }",
		"both(":     "both(x) = x { true }\nboth(x) = input.review.object.x { true }",
		"constant(": `constant("a") = "x" { true } else = "y" { true }`,
		"names[":    "names[n] { n := input.review.name }\nnames[n] { n := input.review.namespace }",
	}
	const name, labels = "input.review.name", "input.review.object.metadata.labels"
	for body, want := range map[string][]string{
		`msg := sprintf("%v", [` + name + `])`:                                        {".name~"},
		`msg := ` + name:                                                              {".name~"},
		`msg := concat("", ["a", ` + name + `])`:                                      {".name~"},
		`x := ` + name + `; y := x; msg := concat("", [y, sprintf("%s", [x])])`:       {".name~"},
		`msg := pod(` + name + `)`:                                                    {".name~"},
		`msg := either(` + name + `)`:                                                 {".name~"},
		`msg := both(` + name + `)`:                                                   {".name*", ".object.x*"},
		`msg := constant(` + name + `)`:                                               {".name="},
		`msg := names[_]`:                                                             {".name*", ".namespace*"},
		`names["a"]; msg := "m"`:                                                      {".name*", ".namespace*"},
		`is_string(` + name + `); msg := "m"`:                                         {".name"},
		`not ` + name + `; msg := "m"`:                                                {".name"},
		`msg := sprintf("%v", [object.get(` + labels + `, "a", ` + name + `)])`:       {".name~", ".object.metadata.labels.a~"},
		`k := ["a", "b"][_]; msg := object.get(` + labels + `, [k], "")`:              {".object.metadata.labels.a~", ".object.metadata.labels.b~"},
		`k := ["a", "b"][_]; msg := object.get(` + labels + `, k, "")`:                {".object.metadata.labels.a~", ".object.metadata.labels.b~"},
		`msg := ` + labels + `[k]; k == "a"`:                                          {".object.metadata.labels[]~"},
		`msg := ` + labels + `[` + name + `]`:                                         {".name*", ".object.metadata.labels[]~"},
		`msg := sprintf("%v", [` + labels + `])`:                                      {".object.metadata.labels~"},
		`msg := sprintf("%v", [` + labels + `.a]); ` + labels + `.a`:                  {".object.metadata.labels.a~"},
		`msg := sprintf("%v", [` + name + `]); ` + name + ` == "a"`:                   {".name*"},
		`msg := sprintf("%v", [` + name + `]); msg != "a"`:                            {".name*"},
		`msg := sprintf("%v", [` + name + `]); startswith(msg, "a")`:                  {".name*"},
		`msg := sprintf("%v", [upper(` + name + `)])`:                                 {".name*"},
		`msg := sprintf("%5v", [` + name + `])`:                                       {".name*"},
		`msg := sprintf("%q", [` + name + `])`:                                        {".name*"},
		`msg := sprintf(input.parameters.format, [` + name + `])`:                     {".name*"},
		`msg := concat(", ", [x | x := ` + labels + `[_]])`:                           {".object.metadata.labels[]*"},
		`x := [` + name + `]; msg := sprintf("%v", [x[0]])`:                           {".name*"},
		`msg := sprintf("%v", [count(` + name + `)])`:                                 {".name[]"},
		`msg := trim(sprintf("%v", [` + name + `]), " ")`:                             {".name*"},
		`msg := sprintf("%v", [{"a", ` + name + `}])`:                                 {".name*"},
		`msg := concat("", ["a"]); input.parameters.x[sprintf("%s", [` + name + `])]`: {".name*"},
	} {
		module := "package t\nviolation[{\"msg\": msg}] { " + body + " }\n"
		for rule, text := range helpers {
			if strings.Contains(body, rule) {
				module += text + "\n"
			}
		}
		p, err := Compile(Source{Rego: module})
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if diff := cmp.Diff(want, p.Reads.Paths()); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}
