package differential

import "strings"

// Section 2.2: what programs may say, and what becomes of it.

func regoCases() []testCase {
	rule := func(name, text string) testCase { return program(name, v0("package test\n"+text)) }
	rulev1 := func(name, text string) testCase { return program(name, v1("package test\n"+text)) }
	two := func(name, text string, more ...string) testCase {
		return testCase{name: name, templates: []string{v0("package test\n" + text)}, constraints: append([]string{"parameters: {nr: 1}", "parameters: {nr: 2}"}, more...)}
	}
	return []testCase{
		rule("violation", `violation[{"msg": "x"}] { true }`),
		rule("no violation", `violation[{"msg": "x"}] { false }`),
		rule("a set", `violation[{"msg": "b"}] { true }
violation[{"msg": "a"}] { true }
violation[{"msg": m}] { m := "b" }
violation[{"msg": "b", "details": {"n": n}}] { n := [1, 2, 2][_] }`),
		program("package of two parts", v0("package k8s.test\nviolation[{\"msg\": \"x\"}] { true }")),
		program("package lib", v0("package lib.test\nviolation[{\"msg\": \"x\"}] { true }")),
		program("package hooks", v0("package hooks\nviolation[{\"msg\": \"x\"}] { true }")),
		program("no package", v0("violation[{\"msg\": \"x\"}] { true }")),
		program("empty", v0("\n# nothing\n")),
		program("syntax error", v0("package test\nviolation[{\"msg\": \"x\"}] { := }")),

		rule("without msg", `violation[{"text": "x"}] { true }`),
		rule("without msg beside with", `violation[{"text": "x"}] { true }
violation[{"msg": "y"}] { true }`),
		rule("element is text", `violation["x"] { true }`),
		rule("element is an array", `violation[["msg", "x"]] { true }`),
		rule("element is a set", `violation[{"msg"}] { true }`),
		rule("element is null", `violation[null] { true }`),
		rule("msg undefined", `violation[{"msg": m}] { m := input.review.object.nothing }`),
		rule("empty msg", `violation[{"msg": ""}] { true }`),
		rule("long msg", `violation[{"msg": m}] { m := concat("", [s | numbers.range(1, 3000)[_]; s := "abcdefgh"]) }
violation[{"msg": m}] { m := concat("-", [format_int(n, 10) | n := numbers.range(1, 3000)[_]]) }`),
		rule("msg in other letters", `violation[{"msg": "Größe \u00e9 😀 <&>\n\t\"'"}] { true }`),
		rule("msg is a number", `violation[{"msg": 7}] { true }`),
		rule("msg is null", `violation[{"msg": null}] { true }`),
		rule("msg is an object", `violation[{"msg": {"a": "b"}}] { true }`),
		rule("msg is false", `violation[{"msg": false}] { true }`),
		rule("details", `violation[{"msg": "x", "details": {"a": [1, "b", null, true, {"c": {}}]}}] { true }`),
		rule("details are text", `violation[{"msg": "x", "details": "d"}] { true }`),
		rule("details are an array", `violation[{"msg": "x", "details": []}] { true }`),
		rule("details are a set", `violation[{"msg": "x", "details": {3, 1, 2}}] { true }`),
		rule("details are an empty set", `violation[{"msg": "x", "details": set()}] { true }`),
		rule("details are a number", `violation[{"msg": "x", "details": 0}] { true }`),
		rule("details are false", `violation[{"msg": "x", "details": false}] { true }`),
		rule("details are null", `violation[{"msg": "x", "details": null}] { true }`),
		rule("details are empty", `violation[{"msg": "x", "details": {}}] { true }`),
		rule("details with keys that are not text", `violation[{"msg": "x", "details": {1: "a", true: "b"}}] { true }`),
		rule("details undefined", `violation[{"msg": "x", "details": d}] { d := input.review.nothing }`),
		rule("more fields", `violation[{"msg": "x", "details": {"a": 1}, "other": 2}] { true }
violation[{"msg": "x", "details": {"a": 1}, "other": 3}] { true }`),

		rule("no rule violation", `deny[{"msg": "x"}] { true }`),
		rule("violation is an object", `violation = {"a": {"msg": "x"}} { true }`),
		rule("violation is an array", `violation = [{"msg": "x"}] { true }`),
		rule("violation is a set", `violation = {{"msg": "x"}} { true }`),
		rule("violation is true", `violation { true }`),
		rule("violation is a function", `violation(x) { x }`),
		rule("violation maps objects", `violation[{"msg": "x"}] = 3 { true }`),
		rule("violation maps text", `violation["msg"] = "x" { true }`),
		rule("violation by default", `default violation = false`),
		rulev1("violation has a longer name", `violation.a contains {"msg": "x"} if true`),
		rulev1("violation is a set in v1", `violation := {{"msg": "x"}}`),
		rule("violation has two bodies", `violation[{"msg": m}] { m := "a" } { m := "b" }`),

		rule("bad reference to data", `violation[{"msg": "x"}] { data.other.a }`),
		rule("reference to constraints", `violation[{"msg": "x"}] { data.constraints[_] }`),
		rule("reference to all data", `violation[{"msg": "x"}] { data[_] }`),
		rule("reference to data itself", `violation[{"msg": "x"}] { d := data; d.inventory }`),
		rule("reference to data by brackets", `violation[{"msg": "x"}] { data["other"] }`),
		rule("reference to its own package", `a = 1
violation[{"msg": "x"}] { data.test.a == 1 }`),
		rule("reference to the engine's package", `violation[{"msg": "x"}] { data.template.violation }`),
		rule("reference to data in a head", `violation[{"msg": data.other.x}] { true }`),
		rule("reference to data with", `violation[{"msg": "x"}] { true with data.other as 1 }`),
		rule("reference to data in a comprehension", `violation[{"msg": "x"}] { count([1 | data.other]) == 0 }`),
		program("import of the inventory", v0("package test\nimport data.inventory\nviolation[{\"msg\": \"x\"}] { inventory }")),
		program("import of input", v0("package test\nimport input.review\nviolation[{\"msg\": \"x\"}] { review }")),
		program("import of data.lib", v0("package test\nimport data.lib\nviolation[{\"msg\": \"x\"}] { true }")),
		program("import of rego.v1", v0("package test\nimport rego.v1\nviolation contains {\"msg\": \"x\"} if true")),
		program("import of rego.v1 in v1", v1("package test\nimport rego.v1\nviolation contains {\"msg\": \"x\"} if true")),
		program("import of future.keywords", v0("package test\nimport future.keywords\nviolation contains {\"msg\": \"x\"} if { some x in [1]; x == 1 }")),
		program("import of future.keywords.in", v0("package test\nimport future.keywords.in\nviolation[{\"msg\": \"x\"}] { 1 in [1] }")),
		program("import of future.keywords in v1", v1("package test\nimport future.keywords.if\nviolation contains {\"msg\": \"x\"} if true")),

		rule("http.send", `violation[{"msg": "x"}] { http.send({"method": "get", "url": "http://127.0.0.1:1"}) }`),
		rule("net.lookup_ip_addr", `violation[{"msg": "x"}] { count(net.lookup_ip_addr("localhost")) >= 0 }`),
		rule("opa.runtime", `violation[{"msg": "x"}] { is_object(opa.runtime()) }`),
		rule("rego.parse_module", `violation[{"msg": "x"}] { is_object(rego.parse_module("a", "package a")) }`),
		rule("time", `violation[{"msg": "x"}] { time.now_ns() > 0 }`),
		rule("random numbers", `violation[{"msg": "x"}] { rand.intn("a", 3) < 3; count(uuid.rfc4122("a")) > 0 }`),
		rule("unknown function", `violation[{"msg": "x"}] { nothing(1) }`),
		rule("print", `violation[{"msg": "x"}] { print("here", input.review.name) }`),
		rulev1("print in v1", `violation contains {"msg": "x"} if print("here", input.nothing)`),
		rule("trace", `violation[{"msg": "x"}] { trace("here") }`),
		rule("deprecated functions", `violation[{"msg": "x"}] { re_match("^a", "abc"); any([false, true]); all([true]); cast_array({1}) == [1]; set_diff({1, 2}, {2}) == {1} }`),
		rulev1("deprecated functions in v1", `violation contains {"msg": "x"} if re_match("^a", "abc")`),
		rule("unsafe variable", `violation[{"msg": m}] { true }`),
		rule("recursion", `a { b }
b { a }
violation[{"msg": "x"}] { a }`),
		rule("wrong type", `violation[{"msg": "x"}] { startswith(1, "a") }`),
		rule("unused variable", `violation[{"msg": "x"}] { y := 1 }`),
		rulev1("shadowed input in v1", `violation contains {"msg": "x"} if { input := 1; input == 1 }`),
		rule("shadowed input", `violation[{"msg": "x"}] { input := 1; input == 1 }`),
		rulev1("imports twice in v1", "import data.lib.a\nimport data.lib.a\nviolation contains {\"msg\": \"x\"} if true"),

		two("error of one of two constraints", `f(x) = 1 { x }
f(x) = 2 { x }
violation[{"msg": "fine"}] { input.parameters.nr == 1 }
violation[{"msg": "x"}] { input.parameters.nr == 2; f(true) == 1 }`, "parameters: {nr: 3}"),
		rule("complete rule in conflict", `a = 1 { true }
a = 2 { true }
violation[{"msg": "x"}] { a == 1 }`),
		rule("object rule in conflict", `a["k"] = v { v := [1, 2][_] }
violation[{"msg": "x"}] { a.k == 1 }`),
		rule("comprehension in conflict", `violation[{"msg": "x"}] { count({"k": v | v := [1, 2][_]}) == 1 }`),
		two("msg of one of two constraints is no text", `violation[{"msg": 7}] { input.parameters.nr == 1 }
violation[{"msg": "fine"}] { input.parameters.nr == 2 }`, "parameters: {nr: 3}"),
		{
			name: "msg of another template is no text",
			templates: []string{
				v0("package test\nviolation[{\"msg\": 7}] { true }"),
				strings.NewReplacer("{name: test}", "{name: other}", "{kind: Test}", "{kind: Other}").Replace(v0(always)),
			},
			constraints: []string{"{}", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Other\nmetadata: {name: fine}\nspec: {}\n"},
		},

		rule("failing conversion", `violation[{"msg": "x"}] { to_number("abc") > 1 }
violation[{"msg": "y"}] { not to_number("abc") }`),
		rule("failing JSON", `violation[{"msg": "x"}] { not json.unmarshal("{") }`),
		rule("division by zero", `violation[{"msg": "x"}] { not 1 / 0 }`),
		rule("bad regular expression", `violation[{"msg": "x"}] { not regex.match("(", "a") }`),
		rule("bad types at run time", `violation[{"msg": "x"}] { not startswith(input.review.object.spec, "a") }`),
		rule("bad unit", `violation[{"msg": "x"}] { not units.parse("many") }`),

		rule("with input", `f { input.a == 1 }
violation[{"msg": "x"}] { f with input as {"a": 1} }
violation[{"msg": "y"}] { f with input.a as 1 }`),
		rule("with a function", `f(x) = 7
violation[{"msg": "x"}] { count([]) == 7 with count as f }`),
		rule("else and default", `default a = "none"
a = "pod" { input.review.kind.kind == "Job" } else = "other" { input.review.kind.kind == "Pod" }
violation[{"msg": a}] { true }`),
		rulev1("every and some", `violation contains {"msg": msg} if {
  every c in input.review.object.spec.containers { c.image != "" }
  some i, c in input.review.object.spec.containers
  msg := sprintf("%d %s", [i, c.name])
}`),
		rulev1("rules with long names", `a.b.c := 3
a.b.d contains x if x := 4
violation contains {"msg": sprintf("%v", [a])} if true`),
		rulev1("template strings", `violation contains {"msg": $"pod {input.review.name}"} if true`),
		rule("walk", `violation[{"msg": sprintf("%v", [path])}] { walk(input.review.object.spec, [path, value]); value == "nginx" }`),
		rule("negation", `violation[{"msg": "x"}] { not input.review.object.spec.hostNetwork }`),
		rule("metadata", `# METADATA
# title: Test
# scope: rule
violation[{"msg": "x"}] { rego.metadata.rule().title == "Test" }`),
		rule("bad metadata", `# METADATA
# title: [
violation[{"msg": "x"}] { true }`),
	}
}

func libraryCases() []testCase {
	uses := func(name, rego string, libs ...string) testCase {
		return program(name, v0("package test\n"+rego, libs...))
	}
	const helper = "package lib.helper\nname = input.review.name\nis(x) { x == 1 }\n"
	return []testCase{
		uses("library", "import data.lib.helper\nviolation[{\"msg\": helper.name}] { helper.is(1) }", helper),
		uses("library by another name", "import data.lib.helper as h\nviolation[{\"msg\": h.name}] { h.is(1) }", helper),
		uses("library without import", "violation[{\"msg\": data.lib.helper.name}] { data.lib.helper.is(1) }", helper),
		uses("rule of a library", "import data.lib.helper.name\nviolation[{\"msg\": name}] { true }", helper),
		uses("library that is not there", "import data.lib.nothing\nviolation[{\"msg\": \"x\"}] { nothing.a }", helper),
		uses("function that is not there", "import data.lib.helper\nviolation[{\"msg\": \"x\"}] { helper.other(1) }", helper),
		uses("all of a library", "violation[{\"msg\": sprintf(\"%v\", [data.lib.values])}] { true }", "package lib.values\na = 1\nb = [2]"),
		uses("all libraries", "violation[{\"msg\": sprintf(\"%v\", [names])}] { names := {n | data.lib[n]} }", helper, "package lib.values\na = 1"),
		uses("libraries itself", "violation[{\"msg\": \"x\"}] { count(data.lib) > 0 }", helper),
		uses("library by brackets", "violation[{\"msg\": \"x\"}] { data.lib[\"helper\"].is(1) }", helper),
		uses("library by a variable", "violation[{\"msg\": \"x\"}] { l := \"helper\"; data.lib[l].name }", helper),
		uses("library of a library", "import data.lib.upper\nviolation[{\"msg\": upper.text}] { true }", helper, "package lib.upper\nimport data.lib.helper\ntext = upper(helper.name)"),
		uses("libraries in a circle", "import data.lib.a\nviolation[{\"msg\": \"x\"}] { a.x }", "package lib.a\nimport data.lib.b\nx { b.x }", "package lib.b\nimport data.lib.a\nx { a.x }"),
		uses("nested library", "import data.lib.a.b\nviolation[{\"msg\": b.x}] { true }", "package lib.a.b\nx = \"nested\""),
		uses("two libraries of one package", "import data.lib.a\nviolation[{\"msg\": sprintf(\"%v %v\", [a.x, a.y])}] { true }", "package lib.a\nx = 1", "package lib.a\ny = 2"),
		uses("two rules of one name", "import data.lib.a\nviolation[{\"msg\": \"x\"}] { a.x == 1 }", "package lib.a\nx = 1", "package lib.a\nx = 2"),
		uses("package lib itself", "violation[{\"msg\": \"x\"}] { data.lib.x }", "package lib\nx = 1"),
		uses("package elsewhere", "violation[{\"msg\": \"x\"}] { true }", "package helper\nx = 1"),
		uses("package library", "violation[{\"msg\": \"x\"}] { true }", "package library.helper\nx = 1"),
		uses("library with a syntax error", "violation[{\"msg\": \"x\"}] { true }", "package lib.a\nx = "),
		uses("empty library", "violation[{\"msg\": \"x\"}] { true }", ""),
		uses("library of nothing", "violation[{\"msg\": \"x\"}] { true }", "package lib.a"),
		uses("library with a bad reference", "violation[{\"msg\": \"x\"}] { true }", "package lib.a\nx { data.other }"),
		uses("library with a bad import", "violation[{\"msg\": \"x\"}] { true }", "package lib.a\nimport data.inventory\nx { inventory }"),
		uses("library in conflict", "import data.lib.a\nviolation[{\"msg\": \"x\"}] { a.x == 1 }", "package lib.a\nx = 1 { true }\nx = 2 { true }"),
		uses("library with a rule violation", "import data.lib.a\nviolation[{\"msg\": \"x\"}] { count(a.violation) == 1 }", "package lib.a\nviolation[{\"msg\": \"y\"}] { true }"),
		uses("with a library replaced", "import data.lib.helper\nviolation[{\"msg\": \"x\"}] { helper.name == \"y\" with data.lib.helper.name as \"y\" }", helper),
		program("library in v1", v1("package test\nimport data.lib.a\nviolation contains {\"msg\": a.x} if true", "package lib.a\nx := \"v1\" if true")),
		program("library of v0 in v1", v1("package test\nimport data.lib.a\nviolation contains {\"msg\": a.x} if true", "package lib.a\nx = \"v0\" { true }")),
		program("library in code", code("v0", "package test\nimport data.lib.helper\nviolation[{\"msg\": helper.name}] { true }", helper)),
	}
}

// valueCases are about values that come out differently from how they went in.
func valueCases() []testCase {
	on := func(name, object, expression string) testCase {
		return testCase{name: name, templates: []string{v0(says(expression))}, constraints: []string{"{}"}, objects: []string{object}}
	}
	given := func(name, parameters, expression string) testCase {
		return testCase{name: name, templates: []string{v0(says(expression))}, constraints: []string{"parameters: " + parameters}}
	}
	return []testCase{
		on("small numbers of the object", "pod", `msg := sprintf("%v %d %v", [input.review.object.spec.terminationGracePeriodSeconds, input.review.object.spec.containers[0].ports[0].containerPort, 1 + 1])`),
		on("million of the object", "custom", `msg := sprintf("%v", [input.review.object.spec.size])`),
		on("million of the object as JSON", "custom", `msg := json.marshal(input.review.object.spec.size)`),
		on("million of the object with %d", "custom", `msg := sprintf("%d", [input.review.object.spec.size])`),
		on("million of the object as a term", "custom", `msg := format_int(input.review.object.spec.size, 10)`),
		on("million of the object compared", "custom", `input.review.object.spec.size == 1000000; msg := "equal"`),
		on("fraction of the object", "custom", `msg := sprintf("%v", [input.review.object.spec.ratio])`),
		on("whole fraction of the object", "custom", `msg := sprintf("%v", [input.review.object.spec.whole])`),
		on("large number of the object", "custom", `msg := sprintf("%v", [input.review.object.spec.large])`),
		on("large number of the object compared", "custom", `input.review.object.spec.large == 9007199254740993; msg := "equal"`),
		on("large number of the object plus one", "custom", `msg := sprintf("%v", [input.review.object.spec.large + 1])`),
		on("number with an exponent", "custom", `msg := sprintf("%v", [input.review.object.spec.exponent])`),
		on("values of the object", "custom", `s := input.review.object.spec; msg := sprintf("%v %v %v %v", [s.disabled, s.nothing, s.empty, s.text])`),
		on("false of the object", "custom", `not input.review.object.spec.disabled; msg := "off"`),
		on("null of the object", "custom", `input.review.object.spec.nothing == null; msg := "null"`),
		on("object as JSON", "pod", `msg := json.marshal(input.review.object)`),
		on("object as YAML", "deployment", `msg := yaml.marshal(input.review.object.spec)`),
		on("hash of the object", "cluster role", `msg := crypto.sha256(json.marshal(input.review.object))`),
		on("numbers of the program", "pod", `msg := sprintf("%v %v %v %v %v", [1000000, 0.5, 2.0, 9007199254740993, 1e30])`),
		on("arithmetic", "pod", `msg := sprintf("%v %v %v %v", [7 / 2, 6 / 2, 7 % 2, 0.1 + 0.2])`),
		on("formats", "pod", `msg := sprintf("%v %v %v %s %q %05d %x %.2f %t", [[1, "a"], {"b": {2}}, {"c"}, "d", "e", 7, 255, 1.5, true])`),
		on("wrong formats", "pod", `msg := sprintf("%d %s %v", ["a", 1])`),
		on("sets and objects are sorted", "pod", `msg := sprintf("%v %v", [{"c", "a", 3, null, true}, {"z": 1, "a": 2, 5: 3}])`),
		given("million of the parameters", "{nr: 1000000}", `msg := sprintf("%v", [input.parameters.nr])`),
		given("large number of the parameters", "{nr: 9007199254740993}", `msg := sprintf("%v", [input.parameters.nr])`),
		given("fractions of the parameters", "{nr: [0.5, 2.0, 1.5e+30, 1e3]}", `msg := sprintf("%v", [input.parameters.nr])`),
		given("values of the parameters", "{a: [true, null, {}, [], ü]}", `msg := json.marshal(input.parameters)`),
		given("parameters compared with the object", "{nr: 30}", `input.parameters.nr == input.review.object.spec.terminationGracePeriodSeconds; msg := "equal"`),
		given("details with numbers", "{nr: 1000000}", `msg := "x"`),
		{name: "numbers of details", templates: []string{v0(`package test
violation[{"msg": "x", "details": {"a": 1000000, "b": input.review.object.spec.size, "c": 0.5, "d": 9007199254740993, "e": 2.0, "f": 1e30}}] { true }`)}, constraints: []string{"{}"}, objects: []string{"custom"}},
	}
}
