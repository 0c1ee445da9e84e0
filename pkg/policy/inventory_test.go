package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const uniqueHost = `
package uniquehost

identical(obj, review) {
  obj.metadata.namespace == review.object.metadata.namespace
  obj.metadata.name == review.object.metadata.name
}

violation[{"msg": msg}] {
  host := input.review.object.spec.rules[_].host
  other := data.inventory.namespace[_][version]["Ingress"][name]
  re_match("^networking.k8s.io/.+$", version)
  other.spec.rules[_].host == host
  not identical(other, input.review)
  msg := sprintf("host %v is taken by %v", [host, name])
}`

func kindOf(group, version, kind string, namespaced bool) Kind {
	return Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Namespaced: namespaced}
}

var (
	ingressKind   = kindOf("networking.k8s.io", "v1", "Ingress", true)
	otherIngress  = kindOf("config.openshift.io", "v1", "Ingress", false)
	serviceKind   = kindOf("", "v1", "Service", true)
	podKind       = kindOf("", "v1", "Pod", true)
	nodeKind      = kindOf("", "v1", "Node", false)
	hpaKind       = kindOf("autoscaling", "v2", "HorizontalPodAutoscaler", true)
	oldHPAKind    = kindOf("autoscaling", "v1", "HorizontalPodAutoscaler", true)
	testKinds     = []Kind{ingressKind, otherIngress, serviceKind, podKind, nodeKind, hpaKind}
	testOldKinds  = []Kind{oldHPAKind}
	syncAllInputs = []string{`
apiVersion: syncset.gatekeeper.sh/v1alpha1
kind: SyncSet
metadata: {name: s}
spec: {gvks: [{version: v1, kind: Pod}, {group: gone.example.com, version: v1, kind: Gone}]}`, `
apiVersion: config.gatekeeper.sh/v1alpha1
kind: Config
metadata: {name: config, namespace: gatekeeper-system}
spec: {sync: {syncOnly: [{version: v1, kind: Node}, {group: autoscaling, version: v1, kind: HorizontalPodAutoscaler}]}}`}
)

func ingress(namespace, name, host string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s, namespace: %s, resourceVersion: '1', labels: {a: b}}, spec: {rules: [{host: %s, http: {}}]}}", name, namespace, host)
}

// inputsOf sorts manifests into Inputs.
func inputsOf(t testing.TB, manifests ...string) Inputs {
	t.Helper()
	var in Inputs
	for _, m := range manifests {
		switch obj := parse(t, m); obj.GetKind() {
		case "ConstraintTemplate":
			in.Templates = append(in.Templates, obj)
		case syncSetKind:
			in.SyncSets = append(in.SyncSets, obj)
		case configKind:
			in.Configs = append(in.Configs, obj)
		default:
			in.Constraints = append(in.Constraints, obj)
		}
	}
	return in
}

// load returns the inventory that a set asks for, from objects.
func load(t testing.TB, set *Set, failed map[string]error, objects ...*unstructured.Unstructured) *Inventory {
	t.Helper()
	var all []InventoryObjects
	for _, view := range set.InventoryViews(testKinds, testOldKinds) {
		kind := InventoryObjects{View: view}
		for _, obj := range objects {
			if obj.GroupVersionKind() != view.Kind.GroupVersionKind {
				continue
			}
			item, err := view.Item(obj)
			if err != nil {
				t.Fatal(err)
			}
			if item != nil {
				kind.Items = append(kind.Items, item)
			}
		}
		all = append(all, kind)
	}
	return NewInventory(all, failed)
}

// withAnnotation gives a template the annotation that names kinds.
func withAnnotation(template, text string) string {
	return strings.Replace(template, "metadata: {name: test}", fmt.Sprintf("metadata: {name: test, annotations: {%s: %q}}", syncAnnotation, text), 1)
}

// TestInventoryViews checks which kinds are loaded, and what of their objects.
func TestInventoryViews(t *testing.T) {
	program := func(body string) string {
		return testTemplate("package a\nviolation[{\"msg\": \"x\"}] {\n  " + body + "\n}")
	}
	for _, tc := range []struct {
		name, template string
		more           []string
		want           []string
	}{
		{name: "kind in the text", template: testTemplate(uniqueHost), want: []string{
			"networking.k8s.io/v1 Ingress [.metadata.name* .metadata.namespace* .spec.rules[].host*]",
		}},
		{name: "kinds in the text", template: program(`data.inventory.namespace[_].v1[["Pod", "Service"][_]][_].spec.x == 1`), want: []string{
			"v1 Service [.spec.x=]", "v1 Pod [.spec.x=]",
		}},
		{name: "version and kind in the text", template: program(`data.inventory.namespace.a["v1"].Service[_].spec.selector.app == "x"`), want: []string{
			"v1 Service [.spec.selector.app=]",
		}},
		{name: "a version that is not the preferred one", template: program(`data.inventory.namespace[_]["autoscaling/v1"].HorizontalPodAutoscaler[_].spec.x`), want: []string{
			"autoscaling/v1 HorizontalPodAutoscaler [.spec.x]",
		}},
		{name: "all of a kind", template: program(`x := data.inventory.cluster[_].Node; json.marshal(x) == ""`), want: []string{
			"v1 Node [*]",
		}},
		{name: "how many there are", template: program(`x := data.inventory.cluster[_].Node; count(x) > 1`), want: []string{
			"v1 Node []",
		}},
		{name: "that there is one", template: program(`data.inventory.cluster["v1"]["Node"].a`), want: []string{
			"v1 Node []",
		}},
		{name: "that there are some", template: program(`data.inventory.cluster["v1"]["Node"]`), want: []string{
			"v1 Node []",
		}},
		{name: "scope", template: program(`data.inventory.namespace[_]["v1"].Node[_].spec`), want: []string{}},
		{name: "two programs' worth", template: program(`data.inventory.cluster.v1.Node[_].spec.a; data.inventory.cluster[_].Node[_].status.b`), want: []string{
			"v1 Node [.spec.a .status.b]",
		}},
		{name: "nothing but that it is there", template: program(`data.inventory`), want: []string{}},
		{name: "no kind is named", template: program(`data.inventory.namespace[_][_][_][_].spec.x`), want: []string{}},
		{name: "SyncSet and Config", template: program(`data.inventory.namespace[_][_][_][_].spec.x`), more: syncAllInputs, want: []string{
			"v1 Pod [.spec.x]", "autoscaling/v1 HorizontalPodAutoscaler [.spec.x]",
		}},
		{name: "all of it", template: program(`x := data.inventory; json.marshal(x) == ""`), more: syncAllInputs, want: []string{
			"v1 Pod [*]", "v1 Node [*]", "autoscaling/v1 HorizontalPodAutoscaler [*]",
		}},
		{name: "annotation", template: withAnnotation(program(`data.inventory.namespace[_][_][_][_].spec.x`),
			`"[[{"groups": ["", "apps"], "versions": ["v1"], "kinds": ["Service", "Node"]}], [{"groups": ["autoscaling"], "versions": ["v1", "v2"], "kinds": ["HorizontalPodAutoscaler"]}]]"`), want: []string{
			"v1 Service [.spec.x]", "autoscaling/v2 HorizontalPodAutoscaler [.spec.x]", "autoscaling/v1 HorizontalPodAutoscaler [.spec.x]",
		}},
		{name: "a library that reads on", template: strings.Replace(testTemplate("package a\nimport data.lib.x\nviolation[{\"msg\": \"x\"}] { x.app(data.inventory.namespace[_].v1.Pod[_]) }"),
			"    rego:", "    libs: [\"package lib.x\\napp(o) { o.metadata.labels.app }\"]\n    rego:", 1), want: []string{
			"v1 Pod [.metadata.labels.app]",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := Compile(context.Background(), inputsOf(t, append(tc.more, tc.template, testConstraint("c", "match: {}"))...), nil)
			if len(set.Rejections()) > 0 {
				t.Fatalf("rejected: %+v", set.Rejections())
			}
			got := []string{}
			for _, view := range set.InventoryViews(testKinds, testOldKinds) {
				got = append(got, fmt.Sprintf("%s %s %s", view.Kind.GroupVersion(), view.Kind.Kind, view.reads.Paths()))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestInventory judges Ingresses by the others that there are.
func TestInventory(t *testing.T) {
	manifests := []string{testTemplate(uniqueHost), testConstraint("c", "match: {kinds: [{kinds: [Ingress]}]}")}
	a, b := parse(t, ingress("ns", "a", "x.example.com")), parse(t, ingress("other", "b", "x.example.com"))
	in := inputsOf(t, manifests...)
	first := Compile(context.Background(), in, nil)
	judge := func(set *Set, obj *unstructured.Unstructured) string {
		t.Helper()
		v := Review(context.Background(), NewObject(ingressKind, obj, nil), set.Constraints())[0]
		text := fmt.Sprint(v.Outcome, " ", v.Message)
		for _, violation := range v.Violations {
			text += violation.Message
		}
		return text
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	expect(judge(first, a), "4 the objects of data.inventory are not loaded yet")

	in.Inventory = load(t, first, nil, a, b)
	loaded := Compile(context.Background(), in, first)
	expect(judge(loaded, a), "2 host x.example.com is taken by b")
	expect(judge(loaded, b), "2 host x.example.com is taken by a")
	expect(judge(loaded, a), "2 host x.example.com is taken by b") // from the memo
	if first.Constraints()[0].Digest == loaded.Constraints()[0].Digest {
		t.Error("the constraint is the same with objects and without")
	}

	// What the policy does not read is no news; what it reads is.
	b.SetLabels(map[string]string{"c": "d"})
	b.SetResourceVersion("2")
	in.Inventory = load(t, first, nil, b, a)
	if again := Compile(context.Background(), in, loaded); again.Digest() != loaded.Digest() {
		t.Error("a change that the policy does not see makes a new constraint")
	}
	b = parse(t, ingress("other", "b", "y.example.com"))
	in.Inventory = load(t, first, nil, a, b)
	changed := Compile(context.Background(), in, loaded)
	expect(judge(changed, a), "1 ")
	expect(judge(loaded, a), "2 host x.example.com is taken by b") // a Set does not change
	if changed.Constraints()[0].Digest == loaded.Constraints()[0].Digest {
		t.Error("the constraint is the same although what it reads has changed")
	}

	// Objects that are not known, and API groups.
	views := first.InventoryViews(testKinds, nil)
	in.Inventory = NewInventory([]InventoryObjects{{View: views[0], Err: errors.New("forbidden")}}, nil)
	expect(judge(Compile(context.Background(), in, loaded), a),
		"4 the policy reads data.inventory, and networking.k8s.io/v1 Ingress objects are not known: forbidden")
	named := inputsOf(t, testTemplate(strings.Replace(uniqueHost, "[version]", `["networking.k8s.io/v1"]`, 1)+"\nversion = \"networking.k8s.io/v1\" { true }"), manifests[1])
	named.Inventory = NewInventory(nil, map[string]error{"networking.k8s.io": errors.New("no answer")})
	expect(judge(Compile(context.Background(), named, nil), a),
		`4 the policy reads data.inventory, and the kinds of the API group "networking.k8s.io" are not known: no answer`)
	unnamed := inputsOf(t, testTemplate("package a\nviolation[{\"msg\": \"x\"}] { data.inventory.namespace[_][_][_][_].spec.x }"), manifests[1])
	unnamed.Inventory = NewInventory(nil, nil)
	expect(judge(Compile(context.Background(), unnamed, nil), a),
		"4 the policy reads data.inventory, and it does not say of which kinds; name them in the template's annotation metadata.gatekeeper.sh/requires-sync-data, or in a SyncSet")
}

// TestInventoryDocument checks where objects are in data.inventory.
func TestInventoryDocument(t *testing.T) {
	manifests := append(slices.Clone(syncAllInputs), testTemplate(`
package a
violation[{"msg": msg}] { msg := json.marshal(data.inventory) }`), testConstraint("c", "match: {}"))
	in := inputsOf(t, manifests...)
	set := Compile(context.Background(), in, nil)
	for _, tc := range []struct {
		objects []string
		want    string
	}{
		{nil, `{}`},
		{
			[]string{"{apiVersion: v1, kind: Node, metadata: {name: node}, status: {a: 1.5, b: 9007199254740993}}"},
			`{"cluster": {"v1": {"Node": {"node": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": {"a": 1.5, "b": 9007199254740993}}}}}}`,
		},
		{
			[]string{
				"{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: a}}", "{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: h, namespace: a}}",
				"{apiVersion: v1, kind: Service, metadata: {name: not-synced, namespace: a}}",
			},
			`{"namespace": {"a": {"autoscaling/v1": {"HorizontalPodAutoscaler": {"h": {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h", "namespace": "a"}}}}, ` +
				`"v1": {"Pod": {"p": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}}}}}}}`,
		},
	} {
		var objects []*unstructured.Unstructured
		for _, m := range tc.objects {
			objects = append(objects, parse(t, m))
		}
		in.Inventory = load(t, set, nil, objects...)
		got := review(t, Compile(context.Background(), in, set))["c"]
		want := "fail " + strings.ReplaceAll(strings.ReplaceAll(tc.want, ": ", ":"), ", ", ",")
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestExclusions checks what Gatekeeper's Config excludes.
func TestExclusions(t *testing.T) {
	config := func(match string) string {
		return "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: " + match + "}}"
	}
	all := []string{testTemplate("package a\nviolation[{\"msg\": \"x\"}] { true }"), testConstraint("c", "match: {}")}
	plain := Compile(context.Background(), inputsOf(t, all...), nil)
	objects := map[string]string{
		"pod":       "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: team-a}}",
		"namespace": "{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}",
		"node":      "{apiVersion: v1, kind: Node, metadata: {name: team-a}}",
		"other":     "{apiVersion: v1, kind: Pod, metadata: {name: team-a, namespace: other}}",
	}
	for _, tc := range []struct{ match, excluded string }{
		{"[{processes: [audit], excludedNamespaces: [team-a]}]", "namespace pod"},
		{"[{processes: ['*'], excludedNamespaces: ['team-*']}]", "namespace pod"},
		{"[{processes: [webhook, audit], excludedNamespaces: ['*-a', x]}]", "namespace pod"},
		{"[{processes: [audit], excludedNamespaces: ['*']}]", "namespace node other pod"},
		{"[{processes: [webhook, sync, mutation-webhook], excludedNamespaces: ['*']}]", ""},
		{"[{processes: [], excludedNamespaces: ['*']}]", ""},
		{"[{processes: [audit]}]", ""},
	} {
		set := Compile(context.Background(), inputsOf(t, append(all, config(tc.match))...), nil)
		if len(set.Rejections()) > 0 {
			t.Fatalf("rejected: %+v", set.Rejections())
		}
		var excluded []string
		for name, manifest := range objects {
			if v := Review(context.Background(), subject(parse(t, manifest), nil), set.Constraints()); v[0].Outcome == NotMatched {
				excluded = append(excluded, name)
			}
		}
		slices.Sort(excluded)
		if got := strings.Join(excluded, " "); got != tc.excluded {
			t.Errorf("%s excludes %q, want %q", tc.match, got, tc.excluded)
		}
		if same := set.Constraints()[0].Digest == plain.Constraints()[0].Digest; same != (tc.excluded == "") {
			t.Errorf("%s: the digest is that without Config: %v", tc.match, same)
		}
	}
	sync := Compile(context.Background(), inputsOf(t, testTemplate(uniqueHost), all[1], config("[{processes: [sync], excludedNamespaces: [hidden]}]")), nil)
	view := sync.InventoryViews(testKinds, nil)[0]
	for namespace, want := range map[string]bool{"hidden": false, "seen": true} {
		if item, err := view.Item(parse(t, ingress(namespace, "a", "x"))); err != nil || (item != nil) != want {
			t.Errorf("an Ingress in %s is in data.inventory: %v, %v; want %v", namespace, item != nil, err, want)
		}
	}
}

// TestConfigMistakes checks what is said of Configs, SyncSets and annotations that are
// wrong.
func TestConfigMistakes(t *testing.T) {
	all := []string{testTemplate("package a\nviolation[{\"msg\": \"x\"}] { true }"), testConstraint("c", "match: {}")}
	config := func(spec string) string {
		return "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: a}, spec: " + spec + "}"
	}
	for _, tc := range []struct{ manifest, want string }{
		{
			config("{match: [{processes: [Audit], excludedNamespaces: [a]}]}"),
			`Config config: spec.match[0].processes: "Audit" is no process; it is one of audit, sync, webhook, mutation-webhook and *`,
		},
		{config("{match: 7}"), "Config config: spec: "},
		{config("{match: [{processes: [audit], excludeNamespaces: [a]}]}"), `Config config: spec: unknown field "match[0].excludeNamespaces"; it has match, whose entries have processes and excludedNamespaces`},
		{strings.Replace(config("{}"), "name: config", "name: cfg", 1), "Config cfg: it has no effect, as in Gatekeeper; the Config that has one is named config"},
		{
			"{apiVersion: syncset.gatekeeper.sh/v1alpha1, kind: SyncSet, metadata: {name: s}, spec: {gvk: [{version: v1, kind: Pod}]}}",
			`SyncSet s: spec: unknown field "gvk"; it has gvks, whose entries have group, version and kind`,
		},
		{
			config("{sync: {syncOnly: [{kind: Pod}]}}"),
			"Config config: spec.sync.syncOnly[0] has no version or no kind; give it both, and the group unless it is the core group",
		},
		{
			"{apiVersion: syncset.gatekeeper.sh/v1alpha1, kind: SyncSet, metadata: {name: s}, spec: {gvks: [{version: v1, kind: Pod}, {group: apps, version: v1}]}}",
			"SyncSet s: spec.gvks[1] has no version or no kind; give it both, and the group unless it is the core group",
		},
		{"{apiVersion: syncset.gatekeeper.sh/v1alpha1, kind: SyncSet, metadata: {name: s}, spec: 7}", "SyncSet s: spec: "},
	} {
		set := Compile(context.Background(), inputsOf(t, append(all, tc.manifest)...), nil)
		if len(set.Rejections()) != 1 || !strings.HasPrefix(set.Rejections()[0].Message, tc.want) {
			t.Errorf("%s:\ngot  %+v\nwant %s", tc.manifest, set.Rejections(), tc.want)
		}
		if len(set.Constraints()) != 1 {
			t.Errorf("%s costs the constraint", tc.manifest)
		}
	}
	for annotation, want := range map[string]string{
		"[{}]": "unexpected object after 2 bytes",
		`[[{"groups": ["apps"], "kinds": ["Deployment"]}]]`:                            "[0][0] lacks groups, versions or kinds, so that it names nothing",
		`[[{"groups": [""], "versions": ["v1"], "kinds": ["Pod"]}]], []`:               "there is more behind the list, after ",
		`[[{"group": [""], "versions": ["v1"], "kinds": ["Pod"]}]]`:                    `json: unknown field "group"`,
		`[[{"groups": [""], "versions": ["v1"], "kinds": ["Pod"]}, {"kinds": ["a"]}]]`: "[0][1] lacks groups",
		`[[`: "unexpected EOF",
		"":   "EOF",
	} {
		set := compile(t, withAnnotation(all[0], annotation), all[1])
		want = "template test: metadata.annotations[metadata.gatekeeper.sh/requires-sync-data]: " + want
		if len(set.Rejections()) != 2 || !strings.HasPrefix(set.Rejections()[0].Message, want) {
			t.Errorf("%s: got %+v, want %s", annotation, set.Rejections(), want)
		}
	}
	fine := Compile(context.Background(), inputsOf(t, config(`{validation: {traces: [{user: a, kind: {version: v1, kind: Pod}}]}, readiness: {statsEnabled: true}, match: [{processes: [audit], excludedNamespaces: [a]}], sync: {syncOnly: [{version: v1, kind: Pod}]}}`)), nil)
	if len(fine.Rejections()) != 0 {
		t.Errorf("a Config with all fields that there are is rejected: %+v", fine.Rejections())
	}
	half := Compile(context.Background(), inputsOf(t, config("{match: [{processes: [audit], excludedNamespaces: [a], more: 1}]}")), nil)
	if patterns := half.exclusions.patterns(processAudit); len(patterns) != 1 {
		t.Errorf("an unknown field costs the rest of a Config, which excludes %v", patterns)
	}
}

// TestPickConfig checks which of several Configs counts.
func TestPickConfig(t *testing.T) {
	config := func(namespace, name string) *unstructured.Unstructured {
		obj := &unstructured.Unstructured{}
		obj.SetNamespace(namespace)
		obj.SetName(name)
		return obj
	}
	for _, tc := range []struct {
		configs []*unstructured.Unstructured
		want    string
	}{
		{nil, ""},
		{[]*unstructured.Unstructured{config("gatekeeper-system", "other")}, ""},
		{[]*unstructured.Unstructured{config("b", "config"), config("a", "config")}, "a"},
		{[]*unstructured.Unstructured{config("a", "config"), config("gatekeeper-system", "config")}, "gatekeeper-system"},
	} {
		got := ""
		if picked := pickConfig(tc.configs); picked != nil {
			got = picked.GetNamespace()
		}
		if got != tc.want {
			t.Errorf("got the Config of %q, want %q", got, tc.want)
		}
	}
}

// TestInventoryIsNotKept changes what one program reads and another does not: the other
// keeps what it remembers, and none of the objects of before.
func TestInventoryIsNotKept(t *testing.T) {
	services := strings.NewReplacer("{name: test}", "{name: services}", "kind: Test", "kind: Services").Replace(
		testTemplate("package a\nviolation[{\"msg\": name}] { data.inventory.namespace[_].v1.Service[name].spec.x == 1 }"))
	constraint := strings.Replace(testConstraint("d", "{}"), "kind: Test", "kind: Services", 1)
	in := inputsOf(t, testTemplate(uniqueHost), testConstraint("c", "{}"), services, constraint)
	first := Compile(t.Context(), in, nil)
	if len(first.Rejections()) > 0 {
		t.Fatalf("rejected: %+v", first.Rejections())
	}
	taken := parse(t, ingress("a", "taken", "x"))
	service := parse(t, "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: a}, spec: {x: 1}}")
	in.Inventory = load(t, first, nil, taken)
	before := Compile(t.Context(), in, first)
	in.Inventory = load(t, before, nil, taken, service)
	after := Compile(t.Context(), in, before)
	evaluators := func(set *Set) map[string]*regoEvaluator {
		out := map[string]*regoEvaluator{}
		for _, c := range set.Constraints() {
			out[c.ID.Kind] = c.rule.(*gatekeeperRule).evaluator.(*regoEvaluator)
		}
		return out
	}
	old, fresh := evaluators(before), evaluators(after)
	if old["Test"].number != fresh["Test"].number || old["Services"].number == fresh["Services"].number {
		t.Error("what is remembered of the program whose data has not changed is gone, or that of the other is not")
	}
	for kind, e := range fresh {
		if e.inventory.Inventory != in.Inventory {
			t.Errorf("%s keeps an older inventory", kind)
		}
	}
	pod := NewObject(Kind{GroupVersionKind: ingressKind.GroupVersionKind, Namespaced: true}, parse(t, ingress("b", "mine", "x")), nil)
	var got []string
	for _, v := range Review(t.Context(), pod, after.Constraints()) {
		got = append(got, verdictText(&v))
	}
	if diff := cmp.Diff([]string{"fail s", "fail host x is taken by taken"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestInventoryOfConstraintsThatAreNotAudited is loaded for reviews and the webhook.
func TestInventoryOfConstraintsThatAreNotAudited(t *testing.T) {
	in := inputsOf(t, testTemplate(uniqueHost), testConstraint("c", "{enforcementAction: scoped, scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}]}"))
	first := Compile(t.Context(), in, nil)
	if len(first.Constraints()) != 0 || len(first.At(PointWebhook)) != 1 {
		t.Fatalf("%d constraints are audited, %d enforced; rejected: %+v", len(first.Constraints()), len(first.At(PointWebhook)), first.Rejections())
	}
	in.Inventory = load(t, first, nil, parse(t, ingress("a", "taken", "x")))
	set := Compile(t.Context(), in, first)
	obj := NewObject(Kind{GroupVersionKind: ingressKind.GroupVersionKind, Namespaced: true}, parse(t, ingress("b", "mine", "x")), nil)
	v := Review(t.Context(), obj, set.At(PointWebhook))[0]
	if got := verdictText(&v); got != "fail host x is taken by taken" {
		t.Errorf("got %q", got)
	}
}
