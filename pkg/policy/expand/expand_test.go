package expand

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// manifest is an ExpansionTemplate from one kind to another, which are given as
// group/version kind.
func manifest(name, from, source, to, more string) string {
	gvk := func(text string) schema.GroupVersionKind {
		apiVersion, kind, _ := strings.Cut(text, " ")
		return schema.FromAPIVersionAndKind(apiVersion, kind)
	}
	f, g := gvk(from), gvk(to)
	return fmt.Sprintf(`
apiVersion: expansion.gatekeeper.sh/v1beta1
kind: ExpansionTemplate
metadata: {name: %q}
spec:
  applyTo: [{groups: [%q], versions: [%q], kinds: [%q]}]
  templateSource: %q
  generatedGVK: {group: %q, version: %q, kind: %q}
  %s
`, name, f.Group, f.Version, f.Kind, source, g.Group, g.Version, g.Kind, more)
}

// deployments and the like are what users have.
var (
	deployments = manifest("deployments", "apps/v1 Deployment", "spec.template", "v1 Pod", "enforcementAction: warn")
	cronJobs    = manifest("cronjobs", "batch/v1 CronJob", "spec.jobTemplate", "batch/v1 Job", "")
	jobs        = manifest("jobs", "batch/v1 Job", "spec.template", "v1 Pod", "")
)

// system compiles manifests, of which none may be wrong.
func system(t testing.TB, manifests ...string) *System {
	t.Helper()
	s, errs := build(t, manifests...)
	for name, err := range errs {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

// build compiles manifests and returns what is wrong with those of a name.
func build(t testing.TB, manifests ...string) (*System, map[string]string) {
	t.Helper()
	errs := map[string]string{}
	var templates []*Template
	for _, m := range manifests {
		obj := parse(t, m)
		template, err := Compile(obj)
		if err != nil {
			errs[obj.GetName()] = err.Error()
			continue
		}
		templates = append(templates, template)
	}
	s, refused := NewSystem(templates)
	for template, err := range refused {
		errs[template.Name] = err.Error()
	}
	return s, errs
}

// expand returns what becomes of an object: resultants by the names of the templates,
// and failures.
func expand(t testing.TB, s *System, obj *unstructured.Unstructured) (resultants []string, failures []string) {
	t.Helper()
	e := s.Expand(obj)
	if e == nil {
		return nil, nil
	}
	for _, r := range e.Resultants {
		data, err := r.Object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		resultants = append(resultants, r.Template.Name+": "+strings.TrimSpace(string(data)))
	}
	for _, f := range e.Failures {
		failures = append(failures, fmt.Sprintf("%s: %v %v", f.Template.Name, f.Err, f.Kinds))
	}
	return resultants, failures
}

func TestExpand(t *testing.T) {
	for _, test := range []struct {
		name      string
		templates []string
		object    string
		want      []string
	}{
		{
			"a Deployment",
			[]string{deployments, cronJobs, jobs},
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: Web, namespace: shop, uid: 7}, spec: {replicas: 2, template: {metadata: {labels: {app: web}, annotations: {a: b}, creationTimestamp: null}, spec: {containers: [{name: c}]}}}}",
			[]string{`deployments: {"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"a":"b"},"creationTimestamp":null,"labels":{"app":"web"},"name":"web-pod","namespace":"shop","ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"Web","uid":""}]},"spec":{"containers":[{"name":"c"}]}}`},
		},
		{
			"a CronJob",
			[]string{deployments, jobs, cronJobs},
			"{apiVersion: batch/v1, kind: CronJob, metadata: {name: sweep, namespace: shop}, spec: {jobTemplate: {spec: {template: {spec: {}}}}}}",
			[]string{
				`cronjobs: {"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"sweep-job","namespace":"shop","ownerReferences":[{"apiVersion":"batch/v1","kind":"CronJob","name":"sweep","uid":""}]},"spec":{"template":{"spec":{}}}}`,
				`jobs: {"apiVersion":"v1","kind":"Pod","metadata":{"name":"sweep-job-pod","namespace":"shop","ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"sweep-job","uid":""}]},"spec":{}}`,
			},
		},
		{"another kind", []string{deployments}, "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {template: {}}}", nil},
		{"another version", []string{deployments}, "{apiVersion: apps/v1beta1, kind: Deployment, metadata: {name: a}, spec: {template: {}}}", nil},
		{"another group", []string{deployments}, "{apiVersion: example.com/v1, kind: Deployment, metadata: {name: a}, spec: {template: {}}}", nil},
		{
			"metadata, kind and namespace of the template",
			[]string{deployments},
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: shop}, spec: {template: {apiVersion: x/v1, kind: X, metadata: {name: own, namespace: other, generateName: g}}}}",
			[]string{`deployments: {"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"g","name":"a-pod","namespace":"shop","ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"a","uid":""}]}}`},
		},
		{
			"an object in no namespace, whose template is in one",
			[]string{manifest("roles", "x/v1 Role", "spec", "v1 Pod", "")},
			"{apiVersion: x/v1, kind: Role, metadata: {name: a}, spec: {metadata: {namespace: other}}}",
			[]string{`roles: {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a-pod","namespace":"other","ownerReferences":[{"apiVersion":"x/v1","kind":"Role","name":"a","uid":""}]}}`},
		},
		{
			"owners",
			[]string{deployments},
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {ownerReferences: [{apiVersion: v1, kind: X, name: z, uid: u, controller: true}]}}}}",
			[]string{`deployments: {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a-pod","ownerReferences":[{"apiVersion":"v1","controller":true,"kind":"X","name":"z","uid":"u"},{"apiVersion":"apps/v1","kind":"Deployment","name":"a","uid":""}]}}`},
		},
		{
			"the owner is there",
			[]string{deployments},
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: a, uid: u}]}}}}",
			[]string{`deployments: {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a-pod","ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"a","uid":"u"}]}}`},
		},
		{
			"no name",
			[]string{deployments},
			"{apiVersion: apps/v1, kind: Deployment, metadata: {generateName: a-}, spec: {template: {metadata: null}}}",
			[]string{`deployments: {"apiVersion":"v1","kind":"Pod","metadata":{"name":"-pod"}}`},
		},
		{
			"two templates for a kind",
			[]string{manifest("b", "x/v1 A", "b", "x/v1 B", ""), manifest("a", "x/v1 A", "a", "x/v1 B", "")},
			"{apiVersion: x/v1, kind: A, metadata: {name: obj}, a: {t: a}, b: {t: b}}",
			[]string{
				`a: {"apiVersion":"x/v1","kind":"B","metadata":{"name":"obj-b","ownerReferences":[{"apiVersion":"x/v1","kind":"A","name":"obj","uid":""}]},"t":"a"}`,
				`b: {"apiVersion":"x/v1","kind":"B","metadata":{"name":"obj-b","ownerReferences":[{"apiVersion":"x/v1","kind":"A","name":"obj","uid":""}]},"t":"b"}`,
			},
		},
		{
			"no version",
			[]string{manifest("a", "x/v1 A", "a", "x/ B", ""), manifest("b", "x/ B", "b", " C", "")},
			"{apiVersion: x/v1, kind: A, metadata: {name: obj}, a: {b: {}}}",
			[]string{
				`a: {"apiVersion":"x/","b":{},"kind":"B","metadata":{"name":"obj-b","ownerReferences":[{"apiVersion":"x/v1","kind":"A","name":"obj","uid":""}]}}`,
				`b: {"apiVersion":"","kind":"C","metadata":{"name":"obj-b-c","ownerReferences":[{"apiVersion":"x/","kind":"B","name":"obj-b","uid":""}]}}`,
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			obj := parse(t, test.object)
			before := obj.DeepCopy()
			got, failures := expand(t, system(t, test.templates...), obj)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("resultants (-want +got):\n%s", diff)
			}
			if len(failures) > 0 {
				t.Errorf("failures: %q", failures)
			}
			if diff := cmp.Diff(before, obj); diff != "" {
				t.Errorf("the object was modified (-before +after):\n%s", diff)
			}
		})
	}
}

// What cannot be made is a failure and costs nothing else.
func TestFailures(t *testing.T) {
	s := system(t, cronJobs, jobs, manifest("other", "batch/v1 CronJob", "spec.other", "v1 Secret", ""))
	for content, want := range map[string][]string{
		"{spec: {other: {}}}":                                {"cronjobs: no Job can be made of CronJob c: spec.jobTemplate is missing, which spec.templateSource needs [/v1, Kind=Pod batch/v1, Kind=Job]"},
		"{spec: {other: {}, jobTemplate: null}}":             {"cronjobs: no Job can be made of CronJob c: spec.jobTemplate is missing, which spec.templateSource needs [/v1, Kind=Pod batch/v1, Kind=Job]"},
		"{spec: {other: {}, jobTemplate: [1]}}":              {"cronjobs: no Job can be made of CronJob c: spec.jobTemplate is no object, which spec.templateSource needs [/v1, Kind=Pod batch/v1, Kind=Job]"},
		"{spec: {other: {}, jobTemplate: {metadata: text}}}": {"cronjobs: no Job can be made of CronJob c: spec.jobTemplate.metadata is no object [/v1, Kind=Pod batch/v1, Kind=Job]"},
		"{spec: {other: {}, jobTemplate: {spec: 3}}}":        {"jobs: no Pod can be made of Job c-job: spec is no object, which spec.templateSource needs [/v1, Kind=Pod]"},
	} {
		obj := parse(t, "{apiVersion: batch/v1, kind: CronJob, metadata: {name: c}, "+strings.TrimPrefix(content, "{"))
		resultants, failures := expand(t, s, obj)
		if diff := cmp.Diff(want, failures); diff != "" {
			t.Errorf("%s: failures (-want +got):\n%s", content, diff)
		}
		if last := resultants[len(resultants)-1]; !strings.HasPrefix(last, "other: ") {
			t.Errorf("%s: the last resultant is %s, want that of the other template", content, last)
		}
	}
}

func TestCompile(t *testing.T) {
	good := parse(t, deployments)
	spec := good.Object["spec"].(map[string]any)
	for want, change := range map[string]func(){
		"spec is missing":                                        func() { good.Object["spec"] = nil },
		"metadata.name is missing":                               func() { good.SetName("") },
		"metadata.name has 64 characters":                        func() { good.SetName(strings.Repeat("a", 64)) },
		`spec: unknown field "enforcmentAction"; it has applyTo`: func() { spec["enforcmentAction"] = "warn" },
		"spec: ":                                 func() { spec["applyTo"] = "Deployment" },
		"spec.templateSource is missing":         func() { delete(spec, "templateSource") },
		`spec.templateSource is "spec..a"`:       func() { spec["templateSource"] = "spec..a" },
		`spec.templateSource is ".spec"`:         func() { spec["templateSource"] = ".spec" },
		`spec.templateSource is "spec.a[0]"`:     func() { spec["templateSource"] = "spec.a[0]" },
		"spec.generatedGVK.kind is missing":      func() { delete(spec, "generatedGVK") },
		`spec.generatedGVK has "apps/v1"; group`: func() { spec["generatedGVK"] = map[string]any{"version": "apps/v1", "kind": "ReplicaSet"} },
		"spec.generatedGVK has an asterisk":      func() { spec["generatedGVK"] = map[string]any{"version": "v1", "kind": "*"} },
		"spec.applyTo is missing":                func() { delete(spec, "applyTo") },
		`spec.applyTo[0].groups is empty, so that the entry applies to nothing; name the groups, "" for that of Pods`: func() {
			spec["applyTo"] = []any{map[string]any{"versions": []any{"v1"}, "kinds": []any{"Pod"}}}
		},
		"spec.applyTo[1].versions is empty, so that the entry applies to nothing; name the versions": func() {
			spec["applyTo"] = append(spec["applyTo"].([]any), map[string]any{"groups": []any{""}, "kinds": []any{"Pod"}})
		},
		"spec.applyTo[0].kinds has an asterisk, which stands for nothing here; name the kinds": func() {
			spec["applyTo"] = []any{map[string]any{"groups": []any{""}, "versions": []any{"v1"}, "kinds": []any{"*"}}}
		},
		`spec.applyTo[0].versions has "apps/v1"; group, version and kind are fields of their own; name the versions`: func() {
			spec["applyTo"] = []any{map[string]any{"groups": []any{"apps"}, "versions": []any{"apps/v1"}, "kinds": []any{"Deployment"}}}
		},
		"spec.applyTo names more than 1000 kinds": func() {
			many := make([]any, 32)
			for i := range many {
				many[i] = fmt.Sprint(i)
			}
			spec["applyTo"] = []any{map[string]any{"groups": many, "versions": many, "kinds": many}}
		},
		"spec.applyTo has apps/v1 Deployment, which is spec.generatedGVK": func() {
			spec["generatedGVK"] = map[string]any{"group": "apps", "version": "v1", "kind": "Deployment"}
		},
	} {
		good = parse(t, deployments)
		spec = good.Object["spec"].(map[string]any)
		change()
		if _, err := Compile(good); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		got, err := Compile(parse(t, strings.Replace(deployments, "v1beta1", version, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != "deployments" || got.EnforcementAction != "warn" || got.Generates != (schema.GroupVersionKind{Version: "v1", Kind: "Pod"}) || !got.AppliesTo(schema.GroupKind{Group: "apps", Kind: "Deployment"}) || !got.AppliesToGroup("apps") || got.AppliesToGroup("") {
			t.Errorf("%s: %+v", version, got)
		}
	}
}

// The digest changes with everything that an expansion depends on, and with nothing
// else.
func TestDigest(t *testing.T) {
	digest := func(manifest string) string {
		template, err := Compile(parse(t, manifest))
		if err != nil {
			t.Fatal(err)
		}
		return template.Digest
	}
	base := digest(jobs)
	if digest(strings.Replace(jobs, "metadata: {", "status: {a: b}\nmetadata: {labels: {a: b}, generation: 2, ", 1)) != base {
		t.Error("metadata and status change the digest")
	}
	seen := map[string]string{base: jobs}
	for _, other := range []string{
		strings.Replace(jobs, `"jobs"`, "jobs-2", 1), strings.Replace(jobs, `"Job"`, "Jobs", 1), strings.Replace(jobs, "spec.template", "spec.other", 1),
		strings.Replace(jobs, `"Pod"`, "PodTemplate", 1), jobs + "enforcementAction: warn",
	} {
		if strings.HasSuffix(other, "warn") {
			other = manifest("jobs", "batch/v1 Job", "spec.template", "v1 Pod", "enforcementAction: warn")
		}
		d := digest(other)
		if same, ok := seen[d]; ok {
			t.Errorf("equal digests:\n%s\n%s", same, other)
		}
		seen[d] = other
	}
}

func TestCircles(t *testing.T) {
	kind := func(i int) string { return fmt.Sprintf("x/v1 K%d", i) }
	step := func(name string, from, to int) string { return manifest(name, kind(from), "spec", kind(to), "") }
	circle := func(back string, others string) string {
		return "it is in a circle: what it makes is expanded, in the end, to x/v1 " + back + " again, by " + others + "; remove a kind from spec.applyTo of one of them, or delete one"
	}
	// Beside a circle, before it and after it there are templates that stay.
	s, errs := build(t, step("before", 0, 1), step("a", 1, 2), step("b", 2, 3), step("c", 3, 1), step("after", 2, 4), step("beside", 5, 6))
	want := map[string]string{"a": circle("K2", "b, c"), "b": circle("K3", "a, c"), "c": circle("K1", "a, b")}
	if diff := cmp.Diff(want, errs); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	var names []string
	for _, template := range s.Templates() {
		names = append(names, template.Name)
	}
	if diff := cmp.Diff([]string{"after", "before", "beside"}, names); diff != "" {
		t.Errorf("templates that are left (-want +got):\n%s", diff)
	}
	resultants, _ := expand(t, s, parse(t, "{apiVersion: x/v1, kind: K0, metadata: {name: obj}, spec: {spec: {}}}"))
	if len(resultants) != 1 || !strings.HasPrefix(resultants[0], "before: ") {
		t.Errorf("resultants: %q", resultants)
	}
}

// TestLimits has a chain that Gatekeeper gives up on, and templates that multiply.
func TestLimits(t *testing.T) {
	step := func(name string, from, to int) string {
		return manifest(name, fmt.Sprintf("x/v1 K%d", from), "metadata", fmt.Sprintf("x/v1 K%d", to), "")
	}
	var chain, tree []string
	for i := range maxLevels {
		chain = append(chain, step(fmt.Sprintf("t%02d", i), i, i+1))
	}
	k0 := parse(t, "{apiVersion: x/v1, kind: K0, metadata: {name: obj, metadata: {}}}")
	if resultants, _ := expand(t, system(t, chain...), k0); len(resultants) != maxLevels {
		t.Errorf("%d resultants of a chain of %d", len(resultants), maxLevels)
	}
	s, errs := build(t, append(chain, step("zz", maxLevels, maxLevels+1))...)
	if diff := cmp.Diff(map[string]string{"t00": "a chain of more than 29 ExpansionTemplates begins with it; Gatekeeper gives up there"}, errs); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if e := s.Expand(k0); e != nil {
		t.Errorf("%d resultants", len(e.Resultants))
	}
	// Each level has two templates: 2+4+...+128+256 resultants.
	for i := range 8 {
		tree = append(tree, step(fmt.Sprintf("a%d", i), i, i+1), step(fmt.Sprintf("b%d", i), i, i+1))
	}
	if resultants, _ := expand(t, system(t, tree[2:]...), parse(t, "{apiVersion: x/v1, kind: K1, metadata: {name: obj}}")); len(resultants) != 254 {
		t.Errorf("%d resultants, want 254", len(resultants))
	}
	if resultants, _ := expand(t, system(t, tree...), k0); len(resultants) != 510 {
		t.Errorf("%d resultants, want 510", len(resultants))
	}
	_, errs = build(t, append(tree, step("top", 100, 0))...)
	if diff := cmp.Diff(map[string]string{"top": "with the ExpansionTemplates that apply to what it makes, it leads to more than 256 objects; remove some of those"}, errs); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}
