package differential

import "fmt"

// Sections 2.4 and 2.5: which objects a constraint is applied to, and what it says
// should be done.

// matchSpecs are match blocks that are tried on all stock objects.
var matchSpecs = []string{
	"{}",
	"kinds: []",
	"kinds: [{}]",
	"kinds: [{kinds: [Pod]}]",
	"kinds: [{apiGroups: [apps]}]",
	`kinds: [{apiGroups: [""], kinds: [Pod]}]`,
	`kinds: [{apiGroups: [""], kinds: ["*"]}]`,
	`kinds: [{apiGroups: ["*"], kinds: [Namespace]}]`,
	`kinds: [{apiGroups: ["*"], kinds: ["*"]}]`,
	`kinds: [{apiGroups: [apps], kinds: [Pod]}]`,
	`kinds: [{apiGroups: [apps], kinds: [Pod]}, {apiGroups: [""], kinds: [Pod]}]`,
	`kinds: [{apiGroups: [], kinds: []}]`,
	`kinds: [{apiGroups: [""], kinds: [pod]}]`,
	`kinds: [{apiGroups: ["apps/v1"], kinds: [Deployment]}]`,
	`kinds: [{apiGroups: [""], kinds: [Pod/status]}]`,
	`kinds: [{apiGroups: ["", "*"], kinds: [ClusterRole]}]`,
	`kinds: [{apiGroups: ["app*"], kinds: ["Deploy*"]}]`,
	"scope: Cluster",
	"scope: Namespaced",
	`scope: "*"`,
	`scope: ""`,
	"scope: cluster",
	"scope: Namespace",
	"namespaces: []",
	"namespaces: [shop]",
	"namespaces: [kube-system]",
	"namespaces: [shop, kube-system]",
	"namespaces: [other]",
	"namespaces: ['sh*']",
	"namespaces: ['*op']",
	"namespaces: ['*ho*']",
	"namespaces: ['*']",
	"namespaces: ['**']",
	`namespaces: [""]`,
	"namespaces: [gone]",
	"excludedNamespaces: []",
	"excludedNamespaces: [shop]",
	"excludedNamespaces: ['kube-*']",
	"excludedNamespaces: ['*-system', gone]",
	"excludedNamespaces: ['*']",
	`excludedNamespaces: [""]`,
	"namespaces: [shop]\nexcludedNamespaces: ['s*']",
	"labelSelector: {}",
	"labelSelector: {matchLabels: {app: web}}",
	`labelSelector: {matchLabels: {app: ""}}`,
	"labelSelector: {matchLabels: {app: web, tier: front}}",
	"labelSelector: {matchExpressions: [{key: app, operator: Exists}]}",
	"labelSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}",
	"labelSelector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}",
	"labelSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
	"labelSelector: {matchExpressions: [{key: app, operator: Exists}, {key: tier, operator: DoesNotExist}]}",
	"labelSelector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: NotIn, values: [front]}]}",
	"namespaceSelector: {}",
	"namespaceSelector: {matchLabels: {stage: production}}",
	"namespaceSelector: {matchExpressions: [{key: stage, operator: DoesNotExist}]}",
	"namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [shop]}]}",
	"namespaces: [shop]\nnamespaceSelector: {matchLabels: {stage: production}}",
	"excludedNamespaces: [gone]\nnamespaceSelector: {matchLabels: {stage: production}}",
	"name: web-1\nnamespaceSelector: {matchLabels: {stage: production}}",
	"source: Generated\nnamespaceSelector: {matchLabels: {stage: production}}",
	`name: ""`,
	"name: web-1",
	"name: 'web*'",
	"name: '*web'",
	"name: '*-*'",
	"name: '*'",
	"name: job-",
	"name: 'job-*'",
	"name: 'jo*'",
	"name: '*job-'",
	"name: '*ob*'",
	"name: shop",
	"source: All",
	"source: Original",
	"source: Generated",
	"kinds: [{apiGroups: [\"\"], kinds: [Namespace]}]\nscope: Namespaced",
	"scope: Cluster\nnamespaces: [shop]",
	"scope: Namespaced\nexcludedNamespaces: [shop]",
}

func matchCases() []testCase {
	cases := make([]testCase, 0, len(matchSpecs))
	for _, spec := range matchSpecs {
		cases = append(cases, testCase{
			name:        "match " + spec,
			templates:   []string{v0(always)},
			constraints: []string{"match:\n" + indent(spec, 2)},
			objects:     everything,
		})
	}
	return append(cases,
		testCase{name: "no match block", templates: []string{v0(always)}, constraints: []string{"{}"}, objects: everything},
		testCase{
			name: "error of the match block beside others", templates: []string{v0(always)},
			constraints: []string{"{}", "match: {namespaceSelector: {matchLabels: {stage: production}}}", "match: {namespaceSelector: {matchLabels: {stage: production}}, kinds: [{kinds: [Job]}]}"},
			objects:     everything,
		},
	)
}

func enforcementCases() []testCase {
	var cases []testCase
	for _, action := range []string{"deny", "warn", "dryrun", "unknown", "Deny", `""`} {
		cases = append(cases, testCase{name: "action " + action, templates: []string{v0(always)}, constraints: []string{"enforcementAction: " + action}})
	}
	for i, entries := range []string{
		"[{action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}]",
		"[{action: deny, enforcementPoints: [{name: '*'}]}]",
		"[{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}]",
		"[{action: deny, enforcementPoints: [{name: gator.gatekeeper.sh}, {name: vap.k8s.io}]}]",
		"[{action: warn, enforcementPoints: [{name: validation.gatekeeper.sh}, {name: audit.gatekeeper.sh}]}]",
		"[{action: warn, enforcementPoints: [{name: '*'}]}, {action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}]",
		"[{action: warn, enforcementPoints: [{name: audit.gatekeeper.sh}]}, {action: warn, enforcementPoints: [{name: '*'}]}]",
		"[{action: unknown, enforcementPoints: [{name: audit.gatekeeper.sh}]}]",
		"[{action: deny, enforcementPoints: [{name: Audit.gatekeeper.sh}]}]",
		"[{action: deny, enforcementPoints: []}]",
		"[{action: deny}]",
		"[{enforcementPoints: [{name: '*'}]}]",
		"[{action: '', enforcementPoints: [{name: '*'}]}]",
		"[]",
	} {
		cases = append(cases,
			testCase{name: fmt.Sprintf("scoped %d", i), templates: []string{v0(always)}, constraints: []string{"enforcementAction: scoped\nscopedEnforcementActions: " + entries}},
			testCase{name: fmt.Sprintf("not scoped %d", i), templates: []string{v0(always)}, constraints: []string{"enforcementAction: dryrun\nscopedEnforcementActions: " + entries}},
			testCase{name: fmt.Sprintf("scoped in capitals %d", i), templates: []string{v0(always)}, constraints: []string{"enforcementAction: Scoped\nscopedEnforcementActions: " + entries}},
		)
	}
	return append(cases,
		testCase{name: "scoped without actions", templates: []string{v0(always)}, constraints: []string{"enforcementAction: scoped"}},
		testCase{name: "scoped in capitals without actions", templates: []string{v0(always)}, constraints: []string{"enforcementAction: SCOPED"}},
		testCase{name: "scoped beside others", templates: []string{v0(always)}, constraints: []string{
			"enforcementAction: scoped\nscopedEnforcementActions: [{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}]", "enforcementAction: warn", "{}",
		}},
	)
}
