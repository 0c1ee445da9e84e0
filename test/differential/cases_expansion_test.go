package differential

import (
	"fmt"
	"strings"
)

// What ExpansionTemplates make of objects: results are the parent's, marked.

// expansionTemplate is an ExpansionTemplate with a spec.
func expansionTemplate(name, spec string) string {
	return fmt.Sprintf("apiVersion: expansion.gatekeeper.sh/v1beta1\nkind: ExpansionTemplate\nmetadata: {name: %s}\nspec:\n%s", name, indent(spec, 2))
}

// expands is an ExpansionTemplate from one kind to another, both of version v1.
func expands(name, group, kind, source, toGroup, toKind, more string) string {
	return expansionTemplate(name, fmt.Sprintf("applyTo: [{groups: [%q], versions: [v1], kinds: [%q]}]\ntemplateSource: %s\ngeneratedGVK: {group: %q, version: v1, kind: %s}\n%s", group, kind, source, toGroup, toKind, more))
}

var (
	expandsDeployments = expands("deployments", "apps", "Deployment", "spec.template", "", "Pod", "")
	expandsCronJobs    = expands("cronjobs", "batch", "CronJob", "spec.jobTemplate", "batch", "Job", "")
	expandsJobs        = expands("jobs", "batch", "Job", "spec.template", "", "Pod", "")
	expandsWidgets     = expands("widgets", "example.com", "Widget", "spec.template", "", "Pod", "")
)

// sees says all that a program is given of an object.
var sees = says(`r := input.review
  msg := json.marshal([r.kind, r.name, object.get(r, "namespace", "none"), r.operation, r.object, object.get(r.namespaceObject, ["metadata", "labels"], "none")])`)

const (
	templatedDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: Web, namespace: shop, uid: d-1, labels: {app: web}}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web, tier: front}, annotations: {a: b}, creationTimestamp: null, generateName: web-}
    spec: {containers: [{name: main, image: nginx}]}`
	cronJob = `
apiVersion: batch/v1
kind: CronJob
metadata: {name: sweep, namespace: kube-system, labels: {app: sweep}}
spec: {jobTemplate: {metadata: {labels: {level: job}}, spec: {template: {metadata: {labels: {level: pod}}, spec: {restartPolicy: Never}}}}}`
	deploymentWithoutNamespace = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: lost, namespace: gone}
spec: {template: {metadata: {labels: {app: web}}, spec: {}}}`
	clusterWidget = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
spec: {template: {metadata: {namespace: shop, name: mine}, spec: {}}}`
	ownedWidget = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: shop}
spec: {template: {apiVersion: other/v1, kind: Other, metadata: {namespace: other, ownerReferences: [{apiVersion: example.com/v1, kind: Widget, name: w, uid: u}, {apiVersion: v1, kind: X, name: x, uid: u, controller: true}]}}}`
	emptyWidget = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: shop}
spec: {template: {}}`
	untemplatedWidget = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: shop}
spec: {other: {}}`
	nullWidget = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: shop}
spec: {template: {metadata: null}}`
)

func expansionCases() []testCase {
	all := []string{expandsDeployments, expandsCronJobs, expandsJobs, expandsWidgets}
	generators := []string{templatedDeployment, cronJob, "pod", "cluster role", deploymentWithoutNamespace, clusterWidget, ownedWidget, emptyWidget, "namespace"}
	cases := []testCase{
		{name: "resultants", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: all, objects: generators},
		{name: "resultants of version v1alpha1", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: []string{strings.Replace(expandsDeployments, "v1beta1", "v1alpha1", 1)}, objects: generators},
		{name: "a chain that begins in the middle", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: []string{expandsJobs}, objects: generators},
		{name: "two templates for a kind", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: []string{
			expandsDeployments, expands("other", "apps", "Deployment", "metadata", "", "Secret", "enforcementAction: warn"),
		}, objects: generators},
		{name: "templates that apply to another version", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: []string{strings.Replace(expandsDeployments, "versions: [v1]", "versions: [v1beta1]", 1)}, objects: generators},
		{name: "templates that make no version", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: []string{strings.Replace(expandsDeployments, "version: v1,", "", 1)}, objects: generators},
		{name: "resultants without metadata", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: all, objects: []string{nullWidget}},
		{name: "details of resultants", templates: []string{v0("package test\nviolation[{\"msg\": \"m\", \"details\": {\"of\": input.review.name}}] { true }")}, constraints: []string{"{}"}, expansions: all, objects: generators},
		{name: "constraints of several templates", templates: []string{v0(always), strings.NewReplacer("{name: test}", "{name: other}", "kind: Test", "kind: Other").Replace(v0(sees))}, constraints: []string{
			"match: {kinds: [{kinds: [Pod]}]}", "match: {kinds: [{kinds: [Job]}]}",
			"apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Other\nmetadata: {name: pods}\nspec: {match: {kinds: [{kinds: [Pod]}]}}",
		}, expansions: all, objects: generators},
	}
	for _, spec := range []string{
		"{}",
		"kinds: [{kinds: [Pod]}]",
		"kinds: [{kinds: [Deployment]}]",
		"kinds: [{kinds: [Job]}]",
		"kinds: [{kinds: [Deployment, Pod]}]",
		`kinds: [{apiGroups: [""], kinds: ["*"]}]`,
		"source: Original",
		"source: Generated",
		"source: All",
		"{source: Original, kinds: [{kinds: [Pod]}]}",
		"{source: Generated, kinds: [{kinds: [Pod]}]}",
		"{source: Generated, kinds: [{kinds: [Deployment]}]}",
		"scope: Cluster",
		"scope: Namespaced",
		"namespaces: [shop]",
		"excludedNamespaces: [shop]",
		"excludedNamespaces: ['kube-*']",
		"labelSelector: {matchLabels: {tier: front}}",
		"labelSelector: {matchLabels: {level: pod}}",
		"labelSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}",
		"namespaceSelector: {matchLabels: {stage: production}}",
		"{namespaceSelector: {matchLabels: {stage: production}}, kinds: [{kinds: [Pod]}]}",
		"{namespaceSelector: {matchExpressions: [{key: stage, operator: DoesNotExist}]}, source: Generated}",
		"name: web-pod",
		"name: 'sweep-job*'",
		"name: '*-pod'",
		"name: 'web-*'",
	} {
		cases = append(cases, testCase{name: "match of resultants " + spec, templates: []string{v0(always)}, constraints: []string{"match:\n" + indent(spec, 2)}, expansions: all, objects: generators})
	}
	for _, action := range []string{"deny", "warn", "dryrun", "unknown", `""`} {
		override := strings.TrimSpace(expandsDeployments) + "\n  enforcementAction: " + action
		cases = append(cases, testCase{
			name: "action of an ExpansionTemplate " + action, templates: []string{v0(always)}, expansions: []string{override, expandsCronJobs, strings.TrimSpace(expandsJobs) + "\n  enforcementAction: dryrun"},
			constraints: []string{
				"match: {kinds: [{kinds: [Pod]}]}",
				"{enforcementAction: dryrun, match: {kinds: [{kinds: [Pod]}]}}",
				"{enforcementAction: scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: '*'}]}], match: {kinds: [{kinds: [Pod]}]}}",
				"{enforcementAction: scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: vap.k8s.io}]}], match: {kinds: [{kinds: [Pod]}]}}",
			},
			objects: []string{templatedDeployment, cronJob, "pod"},
		})
	}
	return append(cases,
		testCase{name: "actions of an object and of its resultants", templates: []string{v0(always)}, constraints: []string{"enforcementAction: deny", "enforcementAction: dryrun"}, expansions: []string{strings.TrimSpace(expandsDeployments) + "\n  enforcementAction: warn"}, objects: []string{templatedDeployment}},
		testCase{
			name: "errors of resultants", templates: []string{v0("package test\nviolation[{\"msg\": msg}] { input.review.kind.kind == \"Pod\"; f(true) > 0; msg := \"m\" }\nf(x) = 1 { x }\nf(x) = 2 { x }\nviolation[{\"msg\": \"own\"}] { input.review.kind.kind == input.parameters.kind }")},
			constraints: []string{"parameters: {kind: Deployment}", "parameters: {kind: none}"}, expansions: all, objects: []string{templatedDeployment},
		},
		testCase{
			name: "msg of a resultant that is no text", templates: []string{v0("package test\nviolation[{\"msg\": 7}] { input.review.kind.kind == \"Pod\" }\nviolation[{\"msg\": \"own\"}] { input.review.kind.kind == input.parameters.kind }")},
			constraints: []string{"parameters: {kind: Deployment}", "parameters: {kind: none}"}, expansions: all, objects: []string{templatedDeployment},
		},
		testCase{
			name: "resultants that cannot be made", templates: []string{v0(always)}, expansions: append(all, expands("more", "example.com", "Widget", "spec", "", "Secret", "")),
			constraints: []string{"match: {kinds: [{kinds: [Widget]}]}", "match: {kinds: [{kinds: [Pod]}]}", "match: {kinds: [{kinds: [Secret]}]}", "match: {kinds: [{kinds: [Job]}]}", "{match: {kinds: [{kinds: [Pod]}], excludedNamespaces: [shop]}}"},
			objects:     []string{untemplatedWidget},
		},
	)
}

// celExpansionCases need Gatekeeper's CEL driver.
func celExpansionCases() []testCase {
	return []testCase{
		{
			name: "CEL: resultants", templates: []string{cel(`validations: [{expression: "false", messageExpression: "object.kind + ' ' + object.metadata.name + ' ' + object.metadata.namespace"}]`)},
			constraints: []string{"match: {kinds: [{kinds: [Pod, Job]}]}"}, expansions: []string{expandsDeployments, expandsCronJobs, expandsJobs}, objects: []string{templatedDeployment, cronJob},
		},
	}
}

// expansionTemplateCases are ExpansionTemplates of which something is wrong. Each is
// beside a good one.
func expansionTemplateCases() []testCase {
	var cases []testCase
	add := func(name string, expansions ...string) {
		cases = append(cases, testCase{name: "ExpansionTemplate: " + name, templates: []string{v0(always)}, constraints: []string{"match: {kinds: [{kinds: [Pod, Job]}]}"}, expansions: append(expansions, expandsDeployments), objects: []string{templatedDeployment, cronJob, ownedWidget}})
	}
	change := func(old, new string) string { return strings.Replace(expandsWidgets, old, new, 1) }
	add("no spec", "apiVersion: expansion.gatekeeper.sh/v1beta1\nkind: ExpansionTemplate\nmetadata: {name: widgets}")
	add("no applyTo", change(`applyTo: [{groups: ["example.com"], versions: [v1], kinds: ["Widget"]}]`, ""))
	add("no source", change("templateSource: spec.template", ""))
	add("no kind of resultants", change("generatedGVK:", "#"))
	add("half a kind of resultants", change("kind: Pod", ""))
	add("what it makes", change(`generatedGVK: {group: "", version: v1, kind: Pod}`, "generatedGVK: {group: example.com, version: v1, kind: Widget}"))
	add("a long name", change("{name: widgets}", "{name: "+strings.Repeat("w", 64)+"}"))
	add("a name of 63 characters", change("{name: widgets}", "{name: "+strings.Repeat("w", 63)+"}"))
	add("a field of another type", change(`versions: [v1]`, "versions: v1"))
	add("an unknown field", change("templateSource:", "templateSources: x\n  templateSource:"))
	add("an unknown field with a name that matters", change("templateSource:", "enforcmentAction: warn\n  templateSource:"))
	add("a source that is no path", change("spec.template", "spec..template"))
	add("a source in a list", change("spec.template", "'spec.templates[0]'"))
	add("all kinds", change(`["Widget"]`, `["*"]`))
	add("kinds with an asterisk", change(`["Widget"]`, `[Widget, "Wid*"]`))
	add("no versions", change("versions: [v1], ", ""))
	add("groups in versions", change("versions: [v1]", "versions: [example.com/v1, v1]"))
	add("the same kind twice", change(`["Widget"]`, `[Widget, Widget]`))
	add("a circle of two", expandsJobs, expands("back", "", "Pod", "spec", "batch", "Job", ""), expandsCronJobs)
	add("a circle of three", expandsJobs, expands("b", "", "Pod", "spec", "example.com", "Widget", ""), expands("c", "example.com", "Widget", "spec", "batch", "Job", ""))
	chain := []string{expands("k00", "example.com", "Widget", "metadata", "example.com", "K1", "")}
	for i := 1; i < 29; i++ {
		chain = append(chain, expands(fmt.Sprintf("k%02d", i), "example.com", fmt.Sprintf("K%d", i), "metadata", "example.com", fmt.Sprintf("K%d", i+1), ""))
	}
	cases = append(cases, testCase{name: "ExpansionTemplate: a chain of 29", templates: []string{v0(sees)}, constraints: []string{"{}"}, expansions: chain, objects: []string{emptyWidget}},
		testCase{name: "ExpansionTemplate: a chain of 30", templates: []string{v0(always)}, constraints: []string{"match: {kinds: [{kinds: [Widget]}]}", "match: {kinds: [{kinds: [K30]}]}"}, expansions: append(chain, expands("k29", "example.com", "K29", "metadata", "example.com", "K30", "")), objects: []string{emptyWidget}})
	return cases
}
