package differential

// Section 2.3: what a program sees of the object.

func reviewCases() []testCase {
	all := func(name string, lines ...string) testCase {
		return testCase{name: name, templates: []string{v0(says(lines...))}, constraints: []string{"parameters: {a: b}"}, objects: everything}
	}
	return []testCase{
		all("fields of input", `msg := sprintf("%v", [sort([k | input[k]])])`),
		all("fields of input as keys", `msg := sprintf("%v", [object.keys(input)])`),
		all("fields of review", `msg := sprintf("%v", [object.keys(input.review)])`),
		all("review without object", `msg := json.marshal(object.remove(input.review, ["object", "namespaceObject"]))`),
		all("kind", `msg := json.marshal(input.review.kind)`),
		all("name", `msg := input.review.name`),
		all("namespace", `msg := input.review.namespace`),
		all("no name", `not input.review.name; msg := "none"`),
		all("no namespace", `not input.review.namespace; msg := "none"`),
		all("operation", `input.review.operation == ""; msg := "empty"`, `input.review.operation == "CREATE"; msg := "create"`, `not input.review.operation == "UPDATE"; msg := "no update"`),
		all("user", `input.review.userInfo == {}; msg := "empty"`, `not input.review.userInfo.username; msg := "nobody"`),
		all("old object", `input.review.oldObject == null; msg := "null"`, `not input.review.oldObject.spec; msg := "none"`),
		all("options", `input.review.options == null; msg := "null"`),
		all("absent fields", `f := ["dryRun", "subResource", "requestKind", "requestResource", "requestSubResource", "_unstable"][_]; input.review[f]; msg := f`),
		all("resource", `msg := json.marshal(input.review.resource)`),
		all("labels of the Namespace", `msg := json.marshal(input.review.namespaceObject.metadata.labels)`),
		all("name of the Namespace", `msg := input.review.namespaceObject.metadata.name`),
		all("no Namespace", `input.review.namespaceObject == null; msg := "null"`, `not input.review.namespaceObject; msg := "false"`),
		all("field of no Namespace", `msg := sprintf("%v", [object.get(input.review.namespaceObject, "metadata", "none")])`),
		all("type of the Namespace", `msg := input.review.namespaceObject.kind`, `msg := input.review.namespaceObject.apiVersion`),
		all("status of the Namespace", `msg := json.marshal([input.review.namespaceObject.spec, input.review.namespaceObject.status])`),
		all("metadata of the Namespace", `msg := sprintf("%v", [object.keys(input.review.namespaceObject.metadata)])`),
		all("constraint", `input.constraint; msg := "seen"`, `input.parameters.a == "b"; msg := "parameters"`),
		all("object", `msg := json.marshal(input.review.object.metadata)`),
		all("types of the object", `msg := sprintf("%v %v", [input.review.object.apiVersion, input.review.object.kind])`),
	}
}
