package differential

import (
	"fmt"
	"strings"
)

// Section 2.6: templates of the engine K8sNativeValidation.

func celCases() []testCase {
	source := func(name, text string) testCase {
		return testCase{name: "CEL: " + name, templates: []string{cel(text)}, constraints: []string{"parameters: {max: 2, names: [main, helper]}"}}
	}
	expression := func(name, text string) testCase {
		return testCase{
			name: "CEL: " + name, templates: []string{cel("validations:\n- expression: " + literal2(text) + "\n  message: wrong")},
			constraints: []string{"parameters: {max: 2, names: [main, helper]}"}, objects: everything,
		}
	}
	// tell says what an expression gives.
	tell := func(name, text string) testCase {
		return testCase{
			name: "CEL: " + name, templates: []string{cel("validations:\n- expression: 'false'\n  messageExpression: " + literal2(text))},
			constraints: []string{"parameters: {max: 2, names: [main, helper]}", "{}"}, objects: everything,
		}
	}
	const no = "\nvalidations:\n- {expression: 'false', message: wrong}"
	return []testCase{
		expression("true", "true"),
		expression("false", "false"),
		expression("not a boolean", "1 + 1"),
		expression("syntax error", "object."),
		expression("unknown variable", "nothing == 1"),
		expression("object", `object.metadata.name.startsWith("web")`),
		expression("missing field", `object.spec.hostNetwork == true`),
		expression("has", `!has(object.spec.hostNetwork)`),
		expression("optional fields", `object.?spec.?replicas.orValue(0) < 3`),
		expression("all", `has(object.spec.containers) && object.spec.containers.all(c, c.image.contains("/"))`),
		expression("anyObject", `variables.anyObject.metadata.name == "web"`),
		expression("parameters", `has(object.spec.replicas) ? object.spec.replicas <= variables.params.max : true`),
		expression("a parameter that is not there", `variables.params.other == 1`),
		expression("raw params", `params.spec.parameters.max == 2`),
		expression("authorizer", `authorizer.group("").resource("pods").check("get").allowed()`),
		expression("oldObject", `oldObject == null`),
		expression("operation", `request.operation == ""`),
		expression("user", `!has(request.userInfo.username) || request.userInfo.username == ""`),
		expression("kind of the request", `request.kind.kind == object.kind && request.kind.group == (object.apiVersion.contains("/") ? object.apiVersion.split("/")[0] : "")`),
		expression("resource of the request", `request.resource.resource == ""`),
		expression("name of the request", `!has(request.name) || request.name == object.?metadata.?name.orValue("")`),
		expression("namespace of the request", `!has(request.namespace) || request.namespace == object.?metadata.?namespace.orValue("")`),
		expression("namespaceObject", `namespaceObject == null || namespaceObject.metadata.name == object.metadata.namespace`),
		expression("labels of the Namespace", `namespaceObject.metadata.labels["stage"] == "production"`),
		expression("no Namespace", `namespaceObject == null`),
		expression("regular expression", `object.metadata.?labels.?app.orValue("").matches("^w.b$")`),
		expression("quantities", `!has(object.spec.containers) || object.spec.containers.all(c, !has(c.resources) || quantity(c.resources.limits.memory).isLessThan(quantity("2Gi")))`),
		expression("addresses", `cidr("10.0.0.0/8").containsIP(ip("10.1.2.3")) && object.kind == "Pod"`),
		expression("URLs", `url("https://example.com/a?b=c").getHost() == "example.com"`),
		expression("sets", `sets.contains(["main", "helper"], ["main"])`),
		expression("two variables", `object.metadata.labels.all(k, v, k != v)`),
		expression("semantic versions", `semver("1.2.3").isLessThan(semver("1.10.0"))`),
		expression("formats", `!format.dns1123Label().validate(object.metadata.?name.orValue("x")).hasValue()`),
		expression("division by zero", `1 / (object.kind == "Pod" ? 0 : 1) == 1`),
		expression("index", `object.spec.containers[1].name == "helper"`),
		expression("over budget", `[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a + b + c + d + e + f > 0))))))`),
		tell("type of numbers", `type(object.?spec.?size.orValue(1)) == int ? "int" : "other"`),
		tell("parameters as text", `variables.params == null ? "null" : string(variables.params.max) + variables.params.names.join(",")`),
		tell("names of things", `object.kind + " " + request.?name.orValue("-") + " " + request.?namespace.orValue("-")`),
		tell("fields of the request", `(has(request.dryRun) ? "dryRun " : "") + (has(request.options) ? "options " : "") + (has(request.subResource) ? "sub" : "")`),

		source("no validations", "validations: []"),
		source("nothing", "{}"),
		source("several validations", "validations:\n- {expression: 'false', message: a}\n- {expression: 'true', message: b}\n- {expression: 'false', message: c}"),
		source("the same message twice", "validations:\n- {expression: 'false', message: a}\n- {expression: '1 == 2', message: a}"),
		source("variables", "variables:\n- {name: count, expression: size(object.spec.containers)}\n- {name: twice, expression: variables.count * 2}\nvalidations:\n- {expression: variables.twice < 4, messageExpression: '\"twice \" + string(variables.twice)'}"),
		source("variable used before it is there", "variables:\n- {name: twice, expression: variables.count * 2}\n- {name: count, expression: '2'}\nvalidations:\n- {expression: variables.twice == 4, message: wrong}"),
		source("variable with an error that is not used", "variables:\n- {name: bad, expression: object.nothing.a}\nvalidations:\n- {expression: 'false', message: wrong}"),
		source("variable with an error that is used", "variables:\n- {name: bad, expression: object.nothing.a}\nvalidations:\n- {expression: variables.bad == 1, message: wrong}\n- {expression: 'false', message: other}"),
		source("variable that does not compile", "variables:\n- {name: bad, expression: '1 +'}\nvalidations:\n- {expression: 'false', message: wrong}"),
		source("variable twice", "variables:\n- {name: count, expression: '1'}\n- {name: count, expression: '2'}\nvalidations:\n- {expression: variables.count == 1, message: wrong}"),
		source("variable params", "variables:\n- {name: params, expression: '1'}"+no),
		source("variable anyObject", "variables:\n- {name: anyObject, expression: '1'}"+no),
		source("variable with the reserved prefix", "variables:\n- {name: gatekeeper_internal_x, expression: '1'}"+no),
		source("variable with a bad name", "variables:\n- {name: a-b, expression: '1'}"+no),
		source("condition true", "matchCondition:\n- {name: a, expression: 'true'}"+no),
		source("condition false", "matchCondition:\n- {name: a, expression: 'false'}"+no),
		source("one of two conditions", "matchCondition:\n- {name: a, expression: 'true'}\n- {name: b, expression: object.kind != \"Pod\"}"+no),
		source("condition with variables", "matchCondition:\n- {name: a, expression: variables.params.max == 3}"+no),
		source("condition fails", "matchCondition:\n- {name: a, expression: object.nothing == 1}"+no),
		source("condition fails, Ignore", "failurePolicy: Ignore\nmatchCondition:\n- {name: a, expression: object.nothing == 1}"+no),
		source("one condition fails, another is false", "matchCondition:\n- {name: a, expression: object.nothing == 1}\n- {name: b, expression: 'false'}"+no),
		source("condition does not compile", "matchCondition:\n- {name: a, expression: object.}"+no),
		source("conditions of one name", "matchCondition:\n- {name: a, expression: 'true'}\n- {name: a, expression: 'true'}"+no),
		source("conditions without names", "matchCondition:\n- {expression: 'true'}\n- {expression: 'true'}"+no),
		source("condition params", "matchCondition:\n- {name: params, expression: 'true'}"+no),
		source("condition with the reserved prefix", "matchCondition:\n- {name: gatekeeper_internal_a, expression: 'true'}"+no),
		source("conditions in plural", "matchConditions:\n- {name: a, expression: 'false'}"+no),
		source("failurePolicy Fail", "failurePolicy: Fail\nvalidations:\n- {expression: object.nothing == 1, message: wrong}"),
		source("failurePolicy Ignore", "failurePolicy: Ignore\nvalidations:\n- {expression: object.nothing == 1, message: wrong}\n- {expression: 'false', message: other}"),
		source("failurePolicy Ignore and a compile error", "failurePolicy: Ignore\nvalidations:\n- {expression: object., message: wrong}"),
		source("failurePolicy unknown", "failurePolicy: Maybe"+no),
		source("failurePolicy empty", "failurePolicy: ''"+no),
		source("failurePolicy null", "failurePolicy: null"+no),
		source("generateVAP", "generateVAP: true"+no),
		source("unknown field", "other: 1"+no),
		source("unknown fields of validations", "validations:\n- {expression: 'false', message: wrong, reason: Invalid, code: 1}"),
		source("misspelt expression", "validations:\n- {expresion: 'false', message: wrong}"),
		source("variables without names", "variables:\n- {expression: '1'}\n- {expression: '2'}"+no),
		source("validations of the wrong type", "validations: {}"),
		{name: "CEL: beside Rego", templates: []string{template(celTarget("validations: [{expression: 'false', message: cel}]") + "\n- engine: Rego\n  source:\n    rego: \"package a\\nviolation[{\\\"msg\\\": \\\"rego\\\"}] { true }\"")}, constraints: []string{"{}"}},
		{name: "CEL: after Rego", templates: []string{template(codeTarget("v0", says(`msg := "rego"`)) + "\n- engine: K8sNativeValidation\n  source: {validations: [{expression: 'false', message: cel}]}")}, constraints: []string{"{}"}},
		{name: "CEL: beside legacy Rego", templates: []string{template(v0Target(says(`msg := "rego"`)) + celTarget("validations: [{expression: 'false', message: cel}]"))}, constraints: []string{"{}"}},
		{name: "CEL: match block", templates: []string{cel("validations: [{expression: 'false', message: wrong}]")}, constraints: []string{"match: {namespaceSelector: {matchLabels: {stage: production}}}"}, objects: everything},
		{name: "CEL: actions", templates: []string{cel("validations: [{expression: 'false', message: wrong}]")}, constraints: []string{"enforcementAction: warn", "enforcementAction: scoped\nscopedEnforcementActions: [{action: deny, enforcementPoints: [{name: '*'}]}]"}},
	}
}

// literal2 is a text within an element of a list.
func literal2(text string) string { return "|-\n" + indent(text, 4) }

func celMessageCases() []testCase {
	message := func(name, fields string) testCase {
		return program("CEL: message: "+name, cel("validations:\n- "+fields))
	}
	long := func(n int) string {
		return fmt.Sprintf("expression: 'false'\n  message: static\n  messageExpression: '\"%s\"'", strings.Repeat("x", n))
	}
	return []testCase{
		message("none", "expression: 'false'"),
		message("none, of an expression with spaces", "expression: '  1   ==  2 '"),
		message("none, of an expression of two lines", "expression: |\n    1 == 2\n    && true"),
		message("static", "expression: 'false'\n  message: static"),
		message("static with spaces", "expression: 'false'\n  message: '  static  '"),
		message("static is empty", "expression: 'false'\n  message: ''"),
		message("expression", "expression: 'false'\n  message: static\n  messageExpression: '\"of \" + object.metadata.name'"),
		message("expression alone", "expression: 'false'\n  messageExpression: '\"of \" + object.metadata.name'"),
		message("expression with spaces", "expression: 'false'\n  messageExpression: '\"  trimmed  \"'"),
		message("expression is empty", "expression: 'false'\n  message: static\n  messageExpression: '\"   \"'"),
		message("expression of two lines", "expression: 'false'\n  message: static\n  messageExpression: '\"a\\nb\"'"),
		message("expression with an error", "expression: 'false'\n  message: static\n  messageExpression: string(object.nothing)"),
		message("expression with an error, alone", "expression: 'false'\n  messageExpression: string(object.nothing)"),
		message("expression that is no text", "expression: 'false'\n  message: static\n  messageExpression: '1'"),
		message("expression of unknown type", "expression: 'false'\n  message: static\n  messageExpression: object.metadata.labels"),
		message("expression of unknown type, alone", "expression: 'false'\n  messageExpression: object.metadata.name"),
		message("expression that does not compile", "expression: 'false'\n  message: static\n  messageExpression: object."),
		message("expression of 5 KiB", long(5*1024)),
		message("expression of more than 5 KiB", long(5*1024+1)),
		message("expression with variables", "expression: 'false'\n  messageExpression: 'variables.params == null ? \"none\" : \"some\"'"),
	}
}
