package vap

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func parse(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(data); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	return obj
}

func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// policyOf is the manifest of a policy with a spec.
func policyOf(spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: p}\nspec:\n  %s\n", apiVersion, policyKind, indent(spec))
}

// bindingOf is the manifest of a binding of that policy, with what is added to its
// spec.
func bindingOf(spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: b}\nspec:\n  policyName: p\n  validationActions: [Deny]\n  %s\n", apiVersion, bindingKind, indent(spec))
}

func bind(t testing.TB, policySpec, bindingSpec string) *Binding {
	t.Helper()
	p, err := CompilePolicy(parse(t, policyOf(policySpec)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBinding(p, parse(t, bindingOf(bindingSpec)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	podManifest       = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {priority: 5}}"
	namespaceManifest = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {env: prod}}}"
	nodeManifest      = "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {app: web}}}"

	forPods = `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}` + "\n"
	forAll  = `matchConstraints: {resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"], operations: ["*"]}]}` + "\n"
	never   = "validations: [{expression: 'false', message: denied}]"
)

func pod(t testing.TB) Subject {
	return Subject{
		Object: parse(t, podManifest), Namespace: parse(t, namespaceManifest),
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespaced: true,
	}
}

func podWithoutNamespace(t testing.TB) Subject {
	s := pod(t)
	s.Namespace = nil
	return s
}

func namespaceSubject(t testing.TB) Subject {
	return Subject{Object: parse(t, namespaceManifest), Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}
}

func node(t testing.TB) Subject {
	return Subject{Object: parse(t, nodeManifest), Resource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}}
}

// summary of a verdict.
func summary(v Verdict) []string {
	out := []string{[...]string{"not matched", "pass", "fail", "error", "deferred"}[v.Outcome]}
	for _, violation := range v.Violations {
		out = append(out, strings.TrimSpace(violation.Message+" "+string(violation.Details)))
	}
	if v.Message != "" {
		out = append(out, v.Message)
	}
	return out
}

// fakeParams knows kinds by whether they are in namespaces, and objects.
type fakeParams struct {
	kinds   map[schema.GroupVersionKind]bool
	objects []*unstructured.Unstructured
}

func (f *fakeParams) Namespaced(gvk schema.GroupVersionKind) (bool, bool) {
	namespaced, known := f.kinds[gvk]
	return namespaced, known
}

func (f *fakeParams) Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, bool) {
	for _, o := range f.List(gvk, namespace, labels.Everything()) {
		if o.GetName() == name {
			return o, true
		}
	}
	return nil, false
}

func (f *fakeParams) List(gvk schema.GroupVersionKind, namespace string, selector labels.Selector) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, o := range f.objects {
		if o.GroupVersionKind() == gvk && o.GetNamespace() == namespace && selector.Matches(labels.Set(o.GetLabels())) {
			out = append(out, o)
		}
	}
	return out
}

// inVersions is a policy for Pods in some versions that denies everything.
func inVersions(versions, more string) string {
	return fmt.Sprintf(`matchConstraints: {%sresourceRules: [{apiGroups: [""], apiVersions: [%s], resources: [pods], operations: ["*"]}]}`, more, versions) + "\n" + never
}

func TestJudge(t *testing.T) {
	const missing = "object.spec.absent == 1"
	for name, tc := range map[string]struct {
		policy, binding string
		subject         func(testing.TB) Subject
		want            []string
	}{
		"pass":                 {policy: forPods + `validations: [{expression: 'object.metadata.name == "web"'}]`, want: []string{"pass"}},
		"fail":                 {policy: forPods + `validations: [{expression: 'object.spec.priority > 5'}]`, want: []string{"fail", "failed expression: object.spec.priority > 5"}},
		"sorted":               {policy: forPods + "validations: [{expression: 'false', message: b}, {expression: 'false', message: a}]", want: []string{"fail", "a", "b"}},
		"error":                {policy: forPods + "validations: [{expression: '" + missing + "'}]", want: []string{"error", "policy p: spec.validations[0].expression: no such key: absent"}},
		"error and violation":  {policy: forPods + "validations: [{expression: '" + missing + "'}, {expression: 'false', message: denied}]", want: []string{"fail", "denied", "policy p: spec.validations[0].expression: no such key: absent"}},
		"two errors":           {policy: forPods + "validations: [{expression: '" + missing + "'}, {expression: '" + missing + "'}]", want: []string{"error", "policy p: spec.validations[0].expression: no such key: absent; policy p: spec.validations[1].expression: no such key: absent"}},
		"ignored error":        {policy: forPods + "failurePolicy: Ignore\nvalidations: [{expression: '" + missing + "'}]", want: []string{"pass"}},
		"condition":            {policy: forPods + "matchConditions: [{name: a, expression: 'false'}]\n" + never, want: []string{"not matched"}},
		"failing condition":    {policy: forPods + "matchConditions: [{name: a, expression: '" + missing + "'}]\n" + never, want: []string{"error", "policy p: spec.matchConditions[0].expression: no such key: absent"}},
		"ignored condition":    {policy: forPods + "failurePolicy: Ignore\nmatchConditions: [{name: a, expression: '" + missing + "'}]\n" + never, want: []string{"not matched"}},
		"variables":            {policy: forPods + "variables: [{name: v, expression: 'object.spec.priority'}]\nvalidations: [{expression: 'variables.v == 5'}]", want: []string{"pass"}},
		"annotations":          {policy: forPods + never + "\nauditAnnotations: [{key: b, valueExpression: 'string(object.metadata.name)'}, {key: a, valueExpression: 'null'}]", want: []string{"fail", `denied {"auditAnnotations":{"b":"web"}}`}},
		"annotation of a pass": {policy: forPods + "auditAnnotations: [{key: b, valueExpression: 'string(object.metadata.name)'}]", want: []string{"pass"}},
		"failing annotation":   {policy: forPods + "auditAnnotations: [{key: b, valueExpression: 'string(object.spec.absent)'}]", want: []string{"error", "policy p: spec.auditAnnotations[0].valueExpression: no such key: absent"}},

		"request": {policy: forPods + `validations: [{expression: 'request.operation == "CREATE" && request.resource.resource == "pods" && request.namespace == "shop" && request.kind.kind == "Pod"'}]`, want: []string{"pass"}},
		"update":  {policy: `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [UPDATE]}]}` + "\nvalidations: [{expression: 'request.operation == \"UPDATE\"'}]", want: []string{"pass"}},

		"namespaceObject":                 {policy: forPods + `validations: [{expression: 'namespaceObject.metadata.labels.env == "prod"'}]`, want: []string{"pass"}},
		"namespaceObject is missing":      {policy: forPods + `validations: [{expression: 'namespaceObject.metadata.labels.env == "prod"'}]`, subject: podWithoutNamespace, want: []string{"error", "the Namespace shop is not known, and the policy reads namespaceObject"}},
		"missing, ignored":                {policy: forPods + "failurePolicy: Ignore\n" + `validations: [{expression: 'namespaceObject.metadata.labels.env == "prod"'}]`, subject: podWithoutNamespace, want: []string{"error", "the Namespace shop is not known, and the policy reads namespaceObject"}},
		"missing, but not needed":         {policy: forPods + never, subject: podWithoutNamespace, want: []string{"fail", "denied"}},
		"namespaceObject of a Node":       {policy: forAll + `validations: [{expression: 'namespaceObject == null && !has(request.namespace)'}]`, subject: node, want: []string{"pass"}},
		"namespaceObject of a Namespace":  {policy: forAll + `validations: [{expression: 'namespaceObject == null && request.namespace == "shop"'}]`, subject: namespaceSubject, want: []string{"pass"}},
		"user":                            {policy: forPods + `validations: [{expression: 'request.userInfo.username == "a"'}]`, want: []string{"deferred", "the policy needs what only a request has: request.userInfo (in spec.validations[0].expression)"}},
		"user of others":                  {policy: forPods + `validations: [{expression: 'request.userInfo.username == "a"'}]`, subject: node, want: []string{"not matched"}},
		"another version":                 {policy: inVersions("v1beta1, v1alpha1", ""), want: []string{"deferred", "policy p: spec.matchConstraints.resourceRules name v1alpha1, v1beta1 of pods, to which a kube-apiserver converts objects, and the object is read as v1; name that version"}},
		"another version, exactly":        {policy: inVersions("v1beta1", "matchPolicy: Exact, "), want: []string{"not matched"}},
		"its version among others":        {policy: inVersions("v1beta1, v1", ""), want: []string{"fail", "denied"}},
		"any version":                     {policy: inVersions("'*'", ""), want: []string{"fail", "denied"}},
		"another version, not selected":   {policy: inVersions("v1beta1", "objectSelector: {matchLabels: {no: such}}, "), want: []string{"not matched"}},
		"old object, user and authorizer": {policy: forPods + "matchConditions: [{name: a, expression: 'request.userInfo.username == \"a\"'}]\nvariables: [{name: v, expression: 'oldObject == null'}]\nvalidations: [{expression: 'variables.v'}, {expression: 'authorizer.requestResource.check(\"get\").allowed()'}]", want: []string{"deferred", "the policy needs what only a request has: request.userInfo (in spec.matchConditions[0].expression), oldObject (in spec.variables[0].expression), authorizer (in spec.validations[1].expression)"}},
		"params without a kind":           {policy: forPods + never, binding: "paramRef: {name: c, parameterNotFoundAction: Deny}", want: []string{"fail", "denied"}},
		"params without a reference":      {policy: forPods + "paramKind: {apiVersion: v1, kind: ConfigMap}\nvalidations: [{expression: 'params == null'}]", want: []string{"pass"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.subject == nil {
				tc.subject = pod
			}
			subject := tc.subject(t)
			before := subject.Object.DeepCopy()
			verdict := bind(t, tc.policy, tc.binding).Judge(context.Background(), subject, nil)
			if diff := cmp.Diff(tc.want, summary(verdict)); diff != "" {
				t.Error(diff)
			}
			checkPeer(t, tc.policy, tc.binding, subject, verdict)
			if diff := cmp.Diff(before, subject.Object); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestJudgeIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	got := summary(bind(t, forPods+"failurePolicy: Ignore\n"+never, "").Judge(ctx, pod(t), nil))
	if diff := cmp.Diff([]string{"error", "policy p: evaluation was stopped: context canceled"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParams(t *testing.T) {
	params := &fakeParams{kinds: map[schema.GroupVersionKind]bool{
		{Version: "v1", Kind: "ConfigMap"}:                    true,
		{Group: "example.io", Version: "v1", Kind: "Limit"}:   false,
		{Group: "example.io", Version: "v1", Kind: "Nothing"}: false,
	}}
	for _, manifest := range []string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop, labels: {set: a}}, data: {max: '4'}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, labels: {set: a}}, data: {max: '9'}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: bad, namespace: shop, labels: {set: bad}}, data: {}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: central, labels: {set: a}}, data: {max: '3'}}",
		"{apiVersion: example.io/v1, kind: Limit, metadata: {name: l, labels: {set: a}}, data: {max: '2'}}",
	} {
		params.objects = append(params.objects, parse(t, manifest))
	}
	of := func(apiVersion, kind string) string {
		return fmt.Sprintf("paramKind: {apiVersion: %s, kind: %s}\n", apiVersion, kind) +
			"validations: [{expression: '!has(object.spec) || object.spec.priority <= int(params.data.max)', messageExpression: '\"at most \" + params.data.max'}]\n"
	}
	configMap, limit := of("v1", "ConfigMap"), of("example.io/v1", "Limit")
	const none = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
	for name, tc := range map[string]struct {
		policy, ref string
		subject     func(testing.TB) Subject
		want        []string
	}{
		"of the object's namespace":  {policy: configMap, ref: "name: c", want: []string{"fail", "at most 4"}},
		"of a namespace":             {policy: configMap, ref: "name: c, namespace: central", want: []string{"fail", "at most 3"}},
		"of no namespace":            {policy: limit, ref: "name: l", want: []string{"fail", "at most 2"}},
		"pass":                       {policy: configMap, ref: "name: a", want: []string{"pass"}},
		"selected":                   {policy: configMap, ref: "selector: {matchLabels: {set: a}}", want: []string{"fail", "at most 4"}},
		"all":                        {policy: limit, ref: "selector: {}", want: []string{"fail", "at most 2"}},
		"one of several fails":       {policy: configMap, ref: "selector: {}", want: []string{"fail", "at most 4", "policy p: with params shop/bad: spec.validations[0].expression: no such key: max"}},
		"namespace of a Namespace":   {policy: configMap, ref: "name: c", subject: namespaceSubject, want: []string{"pass"}},
		"no namespace to take from":  {policy: configMap, ref: "name: c", subject: node, want: []string{"error", "spec.paramRef.namespace is not set, and the object is in no namespace to take a ConfigMap from"}},
		"that, ignored":              {policy: "failurePolicy: Ignore\n" + configMap, ref: "name: c", subject: node, want: []string{"pass"}},
		"namespace for a Node":       {policy: configMap, ref: "name: c, namespace: central", subject: node, want: []string{"pass"}},
		"namespace of a cluster's":   {policy: limit, ref: "name: l, namespace: shop", want: []string{"error", "spec.paramRef.namespace is set, but a Limit is in no namespace"}},
		"no such kind":               {policy: of("v2", "ConfigMap"), ref: "name: c", want: []string{"error", "policy p: spec.paramKind: there is no kind ConfigMap in v2"}},
		"no such kind, ignored":      {policy: "failurePolicy: Ignore\n" + of("v2", "ConfigMap"), ref: "name: c", want: []string{"error", "policy p: spec.paramKind: there is no kind ConfigMap in v2"}},
		"not found, denied":          {policy: configMap, ref: "name: x", want: []string{"fail", none}},
		"not found, denied, ignored": {policy: "failurePolicy: Ignore\n" + configMap, ref: "name: x", want: []string{"pass"}},
		"not found, allowed":         {policy: configMap, ref: "name: x, parameterNotFoundAction: Allow", want: []string{"pass"}},
		"none selected, denied":      {policy: configMap, ref: "selector: {matchLabels: {set: x}}", want: []string{"fail", none}},
		"none selected, allowed":     {policy: configMap, ref: "selector: {matchLabels: {set: x}}, parameterNotFoundAction: Allow", want: []string{"pass"}},
		"annotations of each": {
			policy: "paramKind: {apiVersion: v1, kind: ConfigMap}\n" + never + "\nauditAnnotations: [{key: max, valueExpression: 'string(params.data.max)'}]\n",
			ref:    "selector: {matchLabels: {set: a}}",
			want:   []string{"fail", `denied {"auditAnnotations":{"max":"4"}}`, `denied {"auditAnnotations":{"max":"9"}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.subject == nil {
				tc.subject = pod
			}
			if !strings.Contains(tc.ref, "Action") {
				tc.ref += ", parameterNotFoundAction: Deny"
			}
			b := bind(t, forAll+tc.policy, "paramRef: {"+tc.ref+"}")
			if diff := cmp.Diff(tc.want, summary(b.Judge(context.Background(), tc.subject(t), params))); diff != "" {
				t.Error(diff)
			}
		})
	}
}
