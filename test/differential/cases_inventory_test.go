package differential

// inventoryCases are about what is in data.inventory, and what of it programs see.
func inventoryCases() []testCase {
	synced := []string{stock["pod"], stock["pod in kube-system"], stock["namespace"], stock["custom"], stock["cluster role"], stock["deployment"]}
	reads := func(name, rules string) testCase {
		return testCase{name: "inventory: " + name, templates: []string{v0("package test\n" + rules)}, constraints: []string{"{}"}, inventory: synced, objects: everything}
	}
	return []testCase{
		{
			name: "inventory", templates: []string{v0(`package test
violation[{"msg": msg}] { data.inventory.namespace[ns][version].Pod[name]; msg := sprintf("%v %v %v", [ns, version, name]) }
violation[{"msg": msg}] { data.inventory.cluster[version][kind][name]; msg := sprintf("%v %v %v", [version, kind, name]) }`)},
			constraints: []string{"{}"}, inventory: []string{stock["pod in kube-system"], stock["namespace"], stock["custom"]},
		},
		{
			name: "inventory that is empty", templates: []string{v0("package test\nviolation[{\"msg\": \"x\"}] { not data.inventory.cluster.v1.Pod }")},
			constraints: []string{"{}"},
		},
		{
			name: "inventory in a library", templates: []string{v0("package test\nimport data.lib.a\nviolation[{\"msg\": \"x\"}] { a.pods > 0 }", "package lib.a\npods = count(data.inventory.namespace[\"kube-system\"].v1.Pod)")},
			constraints: []string{"{}"}, inventory: []string{stock["pod in kube-system"]},
		},
		{
			name: "inventory of numbers", templates: []string{v0(says(`w := data.inventory.namespace.shop["example.com/v2beta1"].Widget["shop-widget"]; msg := json.marshal(w.spec)`))},
			constraints: []string{"{}"}, inventory: []string{stock["custom"]},
		},
		reads("all of it", `violation[{"msg": msg}] { msg := json.marshal(data.inventory.cluster) }`),
		reads("whole branches", `violation[{"msg": msg}] { x := data.inventory[scope]; msg := sprintf("%v %v", [scope, count(x)]) }`),
		reads("names of versions", `violation[{"msg": msg}] { versions := {v | data.inventory.namespace[_][v]}; msg := sprintf("%v", [versions]) }`),
		reads("the object itself", `violation[{"msg": "itself"}] { o := input.review.object; data.inventory.namespace[o.metadata.namespace][o.apiVersion][o.kind][o.metadata.name] == o }`),
		reads("others of its kind", `violation[{"msg": name}] { o := input.review.object; data.inventory.namespace[_][o.apiVersion][o.kind][name]; name != o.metadata.name }`),
		reads("names that the object has", `violation[{"msg": msg}] { x := data.inventory.cluster["v1"]["Namespace"][input.review.namespace]; msg := x.metadata.labels.stage }`),
		reads("labels in common", `violation[{"msg": name}] { other := data.inventory.namespace[_][_][_][name]; other.metadata.labels[k] == input.review.object.metadata.labels[k] }`),
		reads("through functions", `
same(a, b) { a.metadata.name == b.metadata.name; a.metadata.namespace == b.metadata.namespace }
others[o] { o := data.inventory.namespace[_][_].Pod[_]; not same(o, input.review.object) }
violation[{"msg": msg}] { others[o]; msg := sprintf("%v: %v", [o.metadata.name, count(o.spec.containers)]) }`),
		reads("in comprehensions", `violation[{"msg": msg}] { images := [i | i := data.inventory.namespace[_]["v1"]["Pod"][_].spec.containers[_].image]; msg := concat(",", images) }`),
		reads("in every", `
bad { data.inventory.namespace[_]["v1"]["Pod"][_].status.phase != "Running" }
violation[{"msg": "all run"}] { not bad }`),
		reads("in a chosen branch", `
branch = data.inventory.cluster { not input.review.namespace }
branch = x { x := data.inventory.namespace[input.review.namespace] }
violation[{"msg": msg}] { x := branch[version][kind]; msg := sprintf("%v %v %v", [version, kind, count(x)]) }`),
		reads("walked", `violation[{"msg": msg}] { walk(data.inventory, [p, "nginx"]); msg := sprintf("%v", [p]) }`),
		reads("replaced", `violation[{"msg": msg}] { msg := data.inventory.cluster.x with data.inventory as {"cluster": {"x": "replaced"}} }`),
		reads("labels that are no text", `violation[{"msg": msg}] { x := data.inventory.namespace.shop[_].Pod[_].metadata.annotations.size; msg := sprintf("%v", [to_number(x)]) }`),
	}
}
