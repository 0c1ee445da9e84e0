package differential

import "strings"

// Section 2.1: templates, the schema of parameters, and constraints.

const (
	paramSchema = "validation: {openAPIV3Schema: {type: object, properties: {label: {type: string, default: owner}, count: {type: integer}, items: {type: array, items: {type: object, properties: {key: {type: string}}}}}}}"
	// untyped is no structural schema.
	untyped = "openAPIV3Schema: {properties: {label: {type: string}, items: {type: array, items: {properties: {key: {type: string}}}}, map: {type: object, additionalProperties: {type: object, properties: {a: {type: string}}}}}}"
)

// tellParameters says which parameters a program gets.
var tellParameters = says(`msg := json.marshal(input.parameters)`)

func templateCases() []testCase {
	good := templateWith("v1", paramSchema, v0Target(always))
	crd, _, _ := strings.Cut(good, "  targets:")
	with := func(name, old, new string) testCase {
		return program(name, strings.Replace(good, old, new, 1))
	}
	engines := func(name, target string) testCase { return program(name, template(target)) }
	return []testCase{
		program("template", good),
		with("name is not the kind's", "{name: test}", "{name: tests}"),
		with("no kind", "{kind: Test}", "{}"),
		with("short names", "{kind: Test}", "{kind: Test, shortNames: [tt]}"),
		with("list kind cannot be chosen", "{kind: Test}", "{kind: Test, plural: testses}"),
		with("another target", "admission.k8s.gatekeeper.sh", "other.example.com"),
		with("no target name", "target: admission.k8s.gatekeeper.sh", `target: ""`),
		with("two targets", "  targets:\n", "  targets:\n  - {target: admission.k8s.gatekeeper.sh, rego: \"package a\\nviolation[{\\\"msg\\\": \\\"x\\\"}] { true }\"}\n"),
		{name: "no targets", templates: []string{crd + "  targets: []\n"}, constraints: []string{"{}"}},
		{name: "no template", constraints: []string{"{}"}},
		with("unknown version", "templates.gatekeeper.sh/v1\n", "templates.gatekeeper.sh/v2\n"),
		with("legacySchema of no schema", paramSchema, "validation: {legacySchema: true}"),
		engines("operations do not matter in audits", "operations: [CREATE, UPDATE]\n"+v0Target(always)),
		engines("no program", "libs: []"),
		engines("rego wins over code", v0Target(says(`msg := "legacy"`))+codeTarget("v1", says(`msg := "code"`))),
		engines("rego wins over code and is v0", v0Target(says(`msg := "legacy"; input.review.kind.kind == "Pod"`))+codeTarget("v1", "package a\nviolation contains {\"msg\": \"code\"} if true")),
		engines("two programs of Rego", "code:\n- {engine: Rego, source: {rego: \"package a\\nviolation[{\\\"msg\\\": \\\"first\\\"}] { true }\"}}\n- {engine: Rego, source: {rego: \"package a\\nviolation[{\\\"msg\\\": \\\"second\\\"}] { true }\"}}"),
		engines("unknown engine", "code:\n- {engine: Other, source: {}}"),
		engines("unknown engine beside Rego", codeTarget("v0", always)+"\n- {engine: Other, source: {}}"),
		engines("version v0", codeTarget("v0", always)),
		engines("version v2 is v0", codeTarget("v2", always)),
		engines("version V1 is v0", codeTarget("V1", always)),
		engines("no version is v0", codeTarget(`""`, always)),
		engines("version is v1", codeTarget("v1", "package a\nviolation contains {\"msg\": \"x\"} if true")),
		engines("v0 program as v1", codeTarget("v1", always)),
		engines("v1 program as v0", codeTarget("v0", "package a\nviolation contains {\"msg\": \"x\"} if true")),
		engines("source is missing", "code:\n- {engine: Rego}"),
		engines("source without rego", "code:\n- {engine: Rego, source: {version: v1}}"),
		engines("unknown field of source", "code:\n- engine: Rego\n  source: {rego: \"package a\\nviolation[{\\\"msg\\\": \\\"x\\\"}] { true }\", other: 1}"),
	}
}

func constraintCases() []testCase {
	good := templateWith("v1", paramSchema, v0Target(tellParameters))
	spec := func(name string, specs ...string) testCase {
		return testCase{name: name, templates: []string{good}, constraints: specs}
	}
	schema := func(name, version, crd string, specs ...string) testCase {
		return testCase{name: name, templates: []string{templateWith(version, crd, v0Target(tellParameters))}, constraints: specs}
	}
	manifest := func(name, text string) testCase {
		return testCase{name: name, templates: []string{good}, constraints: []string{text}}
	}
	typed := func(schema string) string {
		return "validation: {openAPIV3Schema: {type: object, properties: {value: " + schema + "}}}"
	}
	return []testCase{
		spec("parameters", "parameters: {label: team, count: 3, items: [{key: a}, {key: b}]}"),
		spec("parameters are not given", "{}", "enforcementAction: warn", "parameters: {}"),
		spec("parameters of the wrong type", "parameters: {count: many}", "parameters: {label: 3}", "parameters: []", "parameters: text"),
		spec("unknown parameters", "parameters: {colour: red}", "parameters: {items: [{key: a, colour: red}]}"),
		spec("null", "parameters: null", "match: null", "parameters: {label: null}", "enforcementAction: null"),
		spec("unknown fields", "colour: red", "match: {kind: [Pod]}", "match: {kinds: [{apiGroup: [apps]}]}", "match: {labelSelector: {labels: {a: b}}}"),
		spec("types of the match block", "match: {kinds: Pod}", "match: {namespaces: shop}", "match: {labelSelector: []}", "match: {scope: 3}", "match: []"),
		spec("patterns", "match: {namespaces: [sh_op]}", "match: {namespaces: ['a*b']}", "match: {excludedNamespaces: ['*a*', '**', 'Shop']}", "match: {name: Shop}", "match: {name: 'a:b-*'}", "match: {name: a.b}"),
		spec("source is of three", "match: {source: Original}", "match: {source: original}", `match: {source: ""}`),
		spec("operators", "match: {labelSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}", "match: {labelSelector: {matchExpressions: [{key: a, operator: In}]}}",
			"match: {labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}", "match: {labelSelector: {matchExpressions: [{key: a}]}}",
			"match: {namespaceSelector: {matchExpressions: [{key: a, operator: NotIn, values: []}]}}"),
		spec("keys and values of selectors", `match: {labelSelector: {matchLabels: {"a b": c}}}`, `match: {labelSelector: {matchLabels: {a: "c d"}}}`, `match: {namespaceSelector: {matchLabels: {a: "-"}}}`,
			"match: {labelSelector: {matchExpressions: [{key: a, operator: In, values: ['b c']}]}}", "match: {labelSelector: {matchLabels: {a: 1}}}"),
		spec("enforcementAction is text", "enforcementAction: 3", "enforcementAction: [deny]"),
		spec("scoped actions of the wrong type", "enforcementAction: scoped\nscopedEnforcementActions: {}", "enforcementAction: scoped\nscopedEnforcementActions: [deny]", "scopedEnforcementActions: [{action: 3}]"),
		manifest("no spec", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: c0}\n"),
		manifest("spec is null", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: c0}\nspec: null\n"),
		manifest("v1alpha1", "apiVersion: constraints.gatekeeper.sh/v1alpha1\nkind: Test\nmetadata: {name: c0}\nspec: {}\n"),
		manifest("v1", "apiVersion: constraints.gatekeeper.sh/v1\nkind: Test\nmetadata: {name: c0}\nspec: {}\n"),
		manifest("long name", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: "+strings.Repeat("a", 64)+"}\nspec: {}\n"),
		manifest("name that is no DNS name", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: A_b}\nspec: {}\n"),
		manifest("kind in other case", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: TEST\nmetadata: {name: c0}\nspec: {}\n"),
		manifest("status and metadata", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: c0, uid: a, generation: 3, labels: {a: b}, annotations: {c: d}, finalizers: [x]}\nspec: {}\nstatus: {totalViolations: 3, byPod: [{id: a}]}\n"),
		manifest("unknown field beside spec", "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Test\nmetadata: {name: c0}\nspec: {}\nother: {}\n"),

		schema("no validation", "v1", "", "{}", "parameters: {}", "parameters: {a: 1}"),
		schema("empty validation", "v1", "validation: {}", "{}", "parameters: {a: 1}"),
		schema("schema of type object", "v1", "validation: {openAPIV3Schema: {type: object}}", "parameters: {}", "parameters: {a: 1}"),
		schema("no validation, v1beta1", "v1beta1", "", "parameters: {a: 1}"),
		schema("empty validation, v1beta1", "v1beta1", "validation: {}", "parameters: {a: 1, b: {c: [d]}}", "parameters: [a]", "parameters: text"),
		schema("empty validation, legacy", "v1", "validation: {legacySchema: true}", "parameters: {a: 1, b: {c: [d]}}", "parameters: [a]"),
		schema("empty validation, v1beta1, not legacy", "v1beta1", "validation: {legacySchema: false}", "parameters: {a: 1}"),
		schema("untyped schema", "v1", "validation: {"+untyped+"}", "parameters: {label: x}"),
		schema("untyped schema, legacy", "v1", "validation: {legacySchema: true, "+untyped+"}", "parameters: {label: x, other: y, items: [{key: a, other: b}], map: {x: {a: b, c: d}}}", "parameters: {label: 3}"),
		schema("untyped schema, v1beta1", "v1beta1", "validation: {"+untyped+"}", "parameters: {label: x, other: y, items: [{key: a, other: b}], map: {x: {a: b, c: d}}}", "parameters: {label: 3}"),
		schema("untyped schema, v1alpha1", "v1alpha1", "validation: {"+untyped+"}", "parameters: {label: x, other: y}"),
		schema("untyped schema, v1beta1, not legacy", "v1beta1", "validation: {legacySchema: false, "+untyped+"}", "parameters: {label: x}"),
		schema("typed schema, v1beta1", "v1beta1", paramSchema, "parameters: {label: x, other: y}", "{}"),

		schema("required", "v1", "validation: {openAPIV3Schema: {type: object, required: [value], properties: {value: {type: string}}}}", "parameters: {value: a}", "parameters: {}", "{}"),
		schema("enum", "v1", typed("{type: string, enum: [a, b]}"), "parameters: {value: a}", "parameters: {value: c}"),
		schema("pattern", "v1", typed("{type: string, pattern: '^a+$'}"), "parameters: {value: aa}", "parameters: {value: ab}"),
		schema("bounds", "v1", typed("{type: integer, minimum: 1, maximum: 3}"), "parameters: {value: 3}", "parameters: {value: 4}", "parameters: {value: 2.5}"),
		schema("number", "v1", typed("{type: number}"), "parameters: {value: 2.5}", "parameters: {value: 2}", "parameters: {value: 1e3}", "parameters: {value: 2.0}"),
		schema("format", "v1", typed("{type: string, format: ipv4}"), "parameters: {value: 10.0.0.1}", "parameters: {value: here}"),
		schema("int or string", "v1", typed("{x-kubernetes-int-or-string: true}"), "parameters: {value: 3}", "parameters: {value: a}", "parameters: {value: [a]}"),
		schema("nullable", "v1", typed("{type: string, nullable: true}"), "parameters: {value: null}"),
		schema("map", "v1", typed("{type: object, additionalProperties: {type: string}}"), "parameters: {value: {a: b}}", "parameters: {value: {a: 3}}"),
		schema("any of", "v1", typed("{type: object, properties: {a: {type: string}, b: {type: string}}, anyOf: [{required: [a]}, {required: [b]}]}"), "parameters: {value: {a: x}}", "parameters: {value: {}}"),
		schema("one of", "v1", typed("{type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}"), "parameters: {value: {a: x}}", "parameters: {value: {a: x, b: y}}"),
		schema("default in an object", "v1", typed("{type: object, properties: {a: {type: string, default: x}}}"), "parameters: {value: {}}", "parameters: {}"),
		schema("default of an object", "v1", typed("{type: object, default: {}, properties: {a: {type: string, default: x}}}"), "parameters: {}", "{}"),
		schema("default in an array", "v1", typed("{type: array, items: {type: object, properties: {a: {type: string, default: x}}}}"), "parameters: {value: [{}, {a: y}]}"),
		schema("default of the wrong type", "v1", typed("{type: string, default: 3}"), "parameters: {}"),
		schema("default of what is required", "v1", "validation: {openAPIV3Schema: {type: object, required: [value], properties: {value: {type: string, default: a}}}}", "parameters: {}"),
		schema("default of parameters", "v1", "validation: {openAPIV3Schema: {type: object, default: {value: a}, properties: {value: {type: string}}}}", "{}"),
		schema("preserve unknown fields", "v1", typed("{type: object, x-kubernetes-preserve-unknown-fields: true}"), "parameters: {value: {a: [1, {b: c}]}}", "parameters: {value: {}, b: c}"),
		schema("embedded resource", "v1", typed("{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}"), "parameters: {value: {apiVersion: v1, kind: Pod, metadata: {name: a}}}", "parameters: {value: {kind: Pod}}"),
		schema("rules of the schema", "v1", typed("{type: integer, x-kubernetes-validations: [{rule: self > 2}]}"), "parameters: {value: 1}", "parameters: {value: 3}"),
		schema("schema of another type", "v1", "validation: {openAPIV3Schema: {type: array, items: {type: string}}}", "parameters: [a]", "parameters: {}"),
		schema("unknown type", "v1", typed("{type: text}"), "parameters: {}"),
		schema("reference", "v1", typed(`{$ref: "#/definitions/a"}`), "parameters: {}"),
		schema("bad pattern", "v1", typed("{type: string, pattern: '('}"), "parameters: {value: a}"),
		schema("unique items", "v1", typed("{type: array, uniqueItems: true, items: {type: string}}"), "parameters: {value: [a]}"),
		schema("array without items", "v1", typed("{type: array}"), "parameters: {value: [a]}"),
	}
}
