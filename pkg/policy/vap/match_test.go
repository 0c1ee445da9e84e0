package vap

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// withRules is a matchConstraints or matchResources with rules, and other fields.
func withRules(list, others string) string {
	if others != "" {
		others = ", " + others
	}
	return "{resourceRules: [" + list + "]" + others + "}"
}

func TestSelectsKind(t *testing.T) {
	gvr := func(group, version, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
	}
	pods, deployments, nodes, namespaces := gvr("", "v1", "pods"), gvr("apps", "v1", "deployments"), gvr("", "v1", "nodes"), gvr("", "v1", "namespaces")
	const (
		all            = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}`
		forPods        = `{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}`
		deployment2    = `{apiGroups: [apps], apiVersions: [v1beta2], resources: [deployments], operations: [CREATE]}`
		anyDeployment2 = `{apiGroups: [apps], apiVersions: [v1beta2], resources: [deployments], operations: ["*"]}`
		clusterOnly    = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"], scope: Cluster}`
		namespaced     = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"], scope: Namespaced}`
		update         = `{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [UPDATE, DELETE]}`
		remove         = `{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [DELETE, CONNECT]}`
		create         = `{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}`
		both           = `{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE, UPDATE]}`
		named          = `{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: ["*"], resourceNames: [web]}`
	)
	for name, tc := range map[string]struct {
		policy, binding string
		gvr             schema.GroupVersionResource
		cluster         bool
		want            bool
	}{
		"everything":             {withRules(all, ""), "", pods, false, true},
		"resource":               {withRules(forPods, ""), "", pods, false, true},
		"other resource":         {withRules(forPods, ""), "", nodes, true, false},
		"other group":            {withRules(forPods, ""), "", gvr("example.io", "v1", "pods"), false, false},
		"second rule":            {withRules(forPods+", "+deployment2, ""), "", deployments, false, true},
		"equivalent":             {withRules(deployment2, ""), "", deployments, false, true},
		"equivalent, as written": {withRules(deployment2, "matchPolicy: Equivalent"), "", deployments, false, true},
		"exact":                  {withRules(deployment2, "matchPolicy: Exact"), "", deployments, false, false},
		"exact version":          {withRules(deployment2, "matchPolicy: Exact"), "", gvr("apps", "v1beta2", "deployments"), false, true},
		"any version, exact":     {withRules(all, "matchPolicy: Exact"), "", deployments, false, true},
		"any resource":           {withRules(`{apiGroups: [""], apiVersions: [v1], resources: ["*/*"], operations: ["*"]}`, ""), "", pods, false, true},
		"subresource":            {withRules(`{apiGroups: [""], apiVersions: [v1], resources: [pods/status, "*/scale"], operations: ["*"]}`, ""), "", pods, false, false},
		"update":                 {withRules(update, ""), "", pods, false, true},
		"delete and connect":     {withRules(remove, ""), "", pods, false, false},
		"named":                  {withRules(named, ""), "", pods, false, true},

		"cluster of cluster":       {withRules(clusterOnly, ""), "", nodes, true, true},
		"cluster of namespaced":    {withRules(clusterOnly, ""), "", pods, false, false},
		"cluster of namespaces":    {withRules(clusterOnly, ""), "", namespaces, true, true},
		"namespaced of cluster":    {withRules(namespaced, ""), "", nodes, true, false},
		"namespaced of namespaced": {withRules(namespaced, ""), "", pods, false, true},
		"namespaced of namespaces": {withRules(namespaced, ""), "", namespaces, true, false},

		"excluded":                     {withRules(all, "excludeResourceRules: ["+both+"]"), "", pods, false, false},
		"other excluded":               {withRules(all, "excludeResourceRules: ["+both+"]"), "", nodes, true, true},
		"create excluded":              {withRules(all, "excludeResourceRules: ["+create+"]"), "", pods, false, true},
		"the one operation excluded":   {withRules(forPods, "excludeResourceRules: ["+create+"]"), "", pods, false, false},
		"delete excluded":              {withRules(forPods, "excludeResourceRules: ["+remove+"]"), "", pods, false, true},
		"name excluded":                {withRules(all, "excludeResourceRules: ["+named+"]"), "", pods, false, true},
		"equivalent excluded":          {withRules(all, "excludeResourceRules: ["+anyDeployment2+"]"), "", deployments, false, false},
		"exact version is no excluded": {withRules(all, "matchPolicy: Exact, excludeResourceRules: ["+anyDeployment2+"]"), "", deployments, false, true},

		"binding without rules":     {withRules(all, ""), "{}", pods, false, true},
		"binding too":               {withRules(all, ""), withRules(forPods, ""), pods, false, true},
		"binding not":               {withRules(all, ""), withRules(forPods, ""), nodes, true, false},
		"binding only":              {withRules(forPods, ""), withRules(all, ""), nodes, true, false},
		"binding excludes":          {withRules(all, ""), "{excludeResourceRules: [" + both + "]}", pods, false, false},
		"binding of other version":  {withRules(all, ""), withRules(deployment2, "matchPolicy: Exact"), deployments, false, false},
		"binding of other requests": {withRules(create, ""), withRules(update, ""), pods, false, false},

		"policies":   {withRules(all, ""), "", gvr("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), true, false},
		"bindings":   {withRules(all, ""), "", gvr("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"), true, false},
		"mutating":   {withRules(all, ""), "", gvr("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings"), true, false},
		"webhooks":   {withRules(all, ""), "", gvr("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), true, true},
		"of a group": {withRules(all, ""), "", gvr("example.io", "v1", "validatingadmissionpolicies"), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			policy, binding := "matchConstraints: "+tc.policy+"\n"+never, matchResources(tc.binding)
			if got := bind(t, policy, binding).SelectsKind(tc.gvr, !tc.cluster); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if !isExempt(tc.gvr) && peerSelects(t, newPeer(t, policy, binding, nil), tc.gvr, !tc.cluster) != tc.want {
				t.Errorf("want %v, but not so the kube-apiserver", tc.want)
			}
		})
	}
}

// peerSelects tells whether an object of some name matches.
func peerSelects(t testing.TB, p *peer, gvr schema.GroupVersionResource, namespaced bool) bool {
	for _, name := range []string{"web", "other"} {
		obj := parse(t, podManifest)
		obj.SetName(name)
		s := Subject{Object: obj, Resource: gvr, Namespaced: namespaced}
		for _, operation := range operations() {
			if p.matches(admission.NewAttributesRecord(obj, nil, schema.GroupVersionKind{}, s.namespace(), name, gvr, "", operation, nil, false, nil)) {
				return true
			}
		}
	}
	return false
}

func matchResources(m string) string {
	if m == "" {
		return ""
	}
	return "matchResources: " + m
}

func TestMatches(t *testing.T) {
	const (
		all     = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}`
		web     = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"], resourceNames: [web, shop]}`
		other   = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"], resourceNames: [other]}`
		create  = `{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: [CREATE]}`
		byLabel = "objectSelector: {matchLabels: {app: web}}"
		noLabel = "objectSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}"
		prod    = "namespaceSelector: {matchLabels: {env: prod}}"
		test    = "namespaceSelector: {matchLabels: {env: test}}"
		missing = "the Namespace shop is not known, and the namespaceSelector needs it"
	)
	matched, not := []string{"fail", "denied"}, []string{"not matched"}
	for name, tc := range map[string]struct {
		policy, binding string
		subject         func(testing.TB) Subject
		want            []string
	}{
		"everything":               {withRules(all, ""), "", pod, matched},
		"name":                     {withRules(web, ""), "", pod, matched},
		"other name":               {withRules(other, ""), "", pod, not},
		"name in another rule":     {withRules(other+", "+web, ""), "", pod, matched},
		"name excluded":            {withRules(all, "excludeResourceRules: ["+web+"]"), "", pod, not},
		"other name excluded":      {withRules(all, "excludeResourceRules: ["+other+"]"), "", pod, matched},
		"create excluded":          {withRules(all, "excludeResourceRules: ["+create+"]"), "", pod, matched},
		"other kind":               {withRules(`{apiGroups: [""], apiVersions: [v1], resources: [nodes], operations: [CREATE]}`, ""), "", pod, not},
		"labels":                   {withRules(all, byLabel), "", pod, matched},
		"no labels":                {withRules(all, noLabel), "", pod, not},
		"no labels, there are":     {withRules(all, noLabel), "", namespaceSubject, matched},
		"namespace":                {withRules(all, prod), "", pod, matched},
		"other namespace":          {withRules(all, test), "", pod, not},
		"empty selectors":          {withRules(all, "namespaceSelector: {}, objectSelector: {}"), "", podWithoutNamespace, matched},
		"unknown namespace":        {withRules(all, prod), "", podWithoutNamespace, []string{"error", "policy p: spec.matchConstraints: " + missing}},
		"unknown, other labels":    {withRules(all, prod+", "+noLabel), "", podWithoutNamespace, not},
		"unknown, other name":      {withRules(other, prod), "", podWithoutNamespace, not},
		"unknown, binding not":     {withRules(all, prod), "{" + noLabel + "}", podWithoutNamespace, not},
		"unknown, for the binding": {withRules(all, ""), "{" + prod + "}", podWithoutNamespace, []string{"error", "spec.matchResources: " + missing}},
		"its own labels":           {withRules(all, prod), "", namespaceSubject, matched},
		"its own other labels":     {withRules(all, test), "", namespaceSubject, not},
		"cluster-scoped":           {withRules(all, test), "", node, matched},
		"binding's labels":         {withRules(all, ""), "{" + byLabel + "}", pod, matched},
		"binding's other labels":   {withRules(all, ""), "{" + noLabel + "}", pod, not},
		"binding's namespace":      {withRules(all, prod), "{" + test + "}", pod, not},
		"binding's name":           {withRules(all, ""), withRules(web, ""), pod, matched},
		"binding's other name":     {withRules(all, ""), withRules(other, ""), pod, not},
		"binding excludes":         {withRules(all, ""), "{excludeResourceRules: [" + web + "]}", pod, not},
		"different operations":     {withRules(create, ""), withRules(`{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: [UPDATE]}`, ""), pod, not},
	} {
		t.Run(name, func(t *testing.T) {
			policy, binding := "matchConstraints: "+tc.policy+"\n"+never, matchResources(tc.binding)
			b, s := bind(t, policy, binding), tc.subject(t)
			verdict := b.Judge(context.Background(), s, nil)
			if diff := cmp.Diff(tc.want, summary(verdict)); diff != "" {
				t.Error(diff)
			}
			checkPeer(t, policy, binding, s, verdict)
			if tc.want[0] != "not matched" && !b.SelectsKind(s.Resource, s.Namespaced) {
				t.Error("it matches an object of a kind that it does not select")
			}
		})
	}
}

func TestExempt(t *testing.T) {
	b := bind(t, forAll+never, "")
	s := Subject{Object: parse(t, policyOf(forAll+never)), Resource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}}
	if diff := cmp.Diff([]string{"not matched"}, summary(b.Judge(context.Background(), s, nil))); diff != "" {
		t.Error(diff)
	}
}

func TestNeedsNamespace(t *testing.T) {
	for name, tc := range map[string]struct {
		policy, binding string
		want            bool
	}{
		"nothing":           {forAll + never, "", false},
		"empty selectors":   {"matchConstraints: " + withRules(`{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}`, "namespaceSelector: {}") + "\n" + never, "matchResources: {namespaceSelector: {}}", false},
		"policy's selector": {"matchConstraints: " + withRules(`{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}`, "namespaceSelector: {matchLabels: {a: b}}") + "\n" + never, "", true},
		"binding's":         {forAll + never, "matchResources: {namespaceSelector: {matchLabels: {a: b}}}", true},
		"expression":        {forAll + "validations: [{expression: 'namespaceObject == null'}]", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := bind(t, tc.policy, tc.binding).NeedsNamespace(); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
