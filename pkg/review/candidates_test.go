package review

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// candidatesOf are candidatePolicies of manifests.
func candidatesOf(t testing.TB, manifests ...string) []runtime.RawExtension {
	t.Helper()
	var out []runtime.RawExtension
	for _, manifest := range manifests {
		out = append(out, runtime.RawExtension{Raw: toJSON(t, manifest)})
	}
	return out
}

func admission(name, spec string) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}
  %s
`, name, spec)
}

func binding(name, policy, more string) string {
	return fmt.Sprintf("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {name: %s}\nspec: {policyName: %s, validationActions: [Deny]%s}\n", name, policy, more)
}

const (
	needsParams = "paramKind: {apiVersion: v1, kind: ConfigMap}\n  validations: [{expression: \"has(object.metadata.labels) && params.data.label in object.metadata.labels\", messageExpression: \"'no ' + params.data.label\"}]"
	byName      = ", paramRef: {name: limits, namespace: shop, parameterNotFoundAction: Deny}"
	limits      = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: limits, namespace: shop}\ndata: {label: cost}\n"
)

// TestCandidates judges by policies that are not installed: alone, with those that are,
// and in place of those of the same name.
func TestCandidates(t *testing.T) {
	denied := template("Denied", `msg := sprintf("denied %v", [object.get(input.parameters, "x", "")])`)
	for _, test := range []struct {
		name       string
		candidates []string
		spec       string
		want       []string
	}{
		{"alone", []string{denied, constraint("Denied", "d", "")}, "", []string{
			"allowed=false 1 1 0 0", "0 Pod shop/p d [deny] fail denied ",
		}},
		{"with the installed ones", []string{denied, constraint("Denied", "d", "")}, "withInstalled: true\nenforcementPoint: audit.gatekeeper.sh", []string{
			"allowed=false 3 1 0 0", "0 Pod shop/p d [deny] fail denied ", "0 Pod shop/p owner [warn] pass", "0 Pod shop/p privileged [deny] pass",
		}},
		{"a constraint of an installed template", []string{constraint("Owner", "mine", "")}, "", []string{
			"allowed=true 1 0 0 0", "0 Pod shop/p mine [deny] pass",
		}},
		{"a constraint in place of an installed one", []string{constraint("Owner", "owner", "enforcementAction: dryrun")}, "withInstalled: true\nconstraints: [{kind: Owner}]", []string{
			"allowed=true 1 0 0 0", "0 Pod shop/p owner [dryrun] pass",
		}},
		{"a template in place of an installed one", []string{template("Owner", `msg := "new"`)}, "withInstalled: true\nconstraints: [{kind: Owner}]", []string{
			"allowed=true 1 1 0 0", "0 Pod shop/p owner [warn] fail new",
		}},
		{"a template in place of an installed one, alone", []string{template("Owner", `msg := "new"`)}, "", []string{
			"allowed=true 1 1 0 0", "0 Pod shop/p owner [warn] fail new",
		}},
		{"a template without constraints", []string{denied, constraint("Owner", "mine", "")}, "", []string{
			"allowed=true 1 0 0 0", "0 Pod shop/p mine [deny] pass", "ConstraintTemplate denied judges nothing: it has no constraint",
		}},
		{"an admission policy", []string{admission("vap", "validations: [{expression: \"false\", message: never}]"), binding("b", "vap", "")}, "", []string{
			"allowed=false 1 1 0 0", "0 Pod shop/p b [deny] fail never",
		}},
		{"params that are given", []string{limits, binding("b", "vap", byName), admission("vap", needsParams)}, "", []string{
			"allowed=false 1 1 0 0", "0 Pod shop/p b [deny] fail no cost",
		}},
		{"live params", []string{binding("b", "vap", byName), admission("vap", needsParams)}, "", []string{
			"allowed=false 1 1 0 0", "0 Pod shop/p b [deny] fail no live",
		}},
		{"live params in the namespace of the object", []string{binding("b", "vap", ", paramRef: {selector: {}, parameterNotFoundAction: Deny}"), admission("vap", needsParams)}, "", []string{
			"allowed=false 1 1 0 0", "0 Pod shop/p b [deny] fail no live",
		}},
		{
			"expansion",
			[]string{
				"apiVersion: expansion.gatekeeper.sh/v1beta1\nkind: ExpansionTemplate\nmetadata: {name: pods}\nspec: {applyTo: [{groups: [apps], versions: [v1], kinds: [Deployment]}], templateSource: spec.template, generatedGVK: {version: v1, kind: Pod}}\n",
				constraint("Owner", "mine", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}`),
			},
			"enforcementPoint: audit.gatekeeper.sh\nobject: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: {metadata: {labels: {a: b}}, spec: {}}}}",
			[]string{"allowed=false 1 1 0 0", "0 Deployment shop/web mine [deny] fail [Implied by pods] no owner"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := spec(t, test.spec)
			if s.Object == nil {
				s.Object = &runtime.RawExtension{Raw: toJSON(t, goodPod)}
			}
			s.CandidatePolicies = candidatesOf(t, test.candidates...)
			w := newWorld(t)
			live := newFakeReader(t, strings.Replace(limits, "cost", "live", 1))
			status, err := Evaluate(context.Background(), w, Request{Spec: s, User: policy.User{Name: "alice"}, Reader: live})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, lines(status)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if status.PolicyDigest == w.set.Digest() || status.PolicyDigest == "" {
				t.Errorf("the digest is that of the installed policies: %q", status.PolicyDigest)
			}
		})
	}
}

// TestCandidatesThatAreWrong are named, with the place and what to do.
func TestCandidatesThatAreWrong(t *testing.T) {
	good := []string{template("Denied", `msg := "x"`), constraint("Denied", "d", "")}
	var many []string
	for i := range MaxCandidates + 1 {
		many = append(many, constraint("Owner", fmt.Sprintf("c%d", i), ""))
	}
	for _, test := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"too many", many, "spec.candidatePolicies: Too many: 101: must have at most 100 items"},
		{"too large", []string{constraint("Owner", "o", "x: "+strings.Repeat("x", MaxCandidateBytes))}, "spec.candidatePolicies: Invalid value: "},
		{"twice", append(good, good[1]), `spec.candidatePolicies[2]: Duplicate value: "Denied d"`},
		{"no name", []string{"{apiVersion: v1, kind: ConfigMap, metadata: {generateName: a}}"}, "spec.candidatePolicies[0].metadata.name: Required value"},
		{"no kind", []string{"{apiVersion: v1, metadata: {name: a}}"}, "spec.candidatePolicies[0].kind: Required value"},
		{"no policy", append(good, goodPod), `spec.candidatePolicies[2].kind: Invalid value: "Pod": v1 Pod is no kind of policies`},
		{"params of nothing", append(good, limits), `spec.candidatePolicies[2].kind: Invalid value: "ConfigMap": v1 ConfigMap is no kind of policies`},
		{"no such template", []string{constraint("Absent", "a", "")}, `spec.candidatePolicies[0].kind: Invalid value: "Absent": there is no ConstraintTemplate absent, neither among the candidatePolicies nor installed`},
		{"no such policy", []string{binding("b", "absent", "")}, `spec.candidatePolicies[0].spec.policyName: Invalid value: "absent": there is no such ValidatingAdmissionPolicy`},
		{"Rego that does not compile", []string{constraint("Broken", "b", ""), template("Broken", "msg := nonsense(")}, `spec.candidatePolicies[1]: Invalid value: "ConstraintTemplate broken": template broken: rego:2`},
		{"an unsafe variable", []string{template("Broken", "msg := x"), constraint("Broken", "b", "")}, "var x is unsafe"},
		{"CEL that does not compile", []string{admission("vap", "validations: [{expression: \"object.\"}]"), binding("b", "vap", "")}, `spec.candidatePolicies[0]: Invalid value: "ValidatingAdmissionPolicy vap": ValidatingAdmissionPolicy vap: spec.validations[0].expression`},
		{"a constraint that the schema refuses", []string{strings.Replace(template("Strict", `msg := "x"`), "{names: {kind: Strict}}", "{names: {kind: Strict}, validation: {openAPIV3Schema: {type: object, properties: {size: {type: integer}}}}}", 1), constraint("Strict", "s", "parameters: {size: many}")}, `spec.candidatePolicies[1]: Invalid value: "Strict s"`},
		{"an installed constraint that the schema refuses", []string{strings.Replace(template("Owner", `msg := "x"`), "{names: {kind: Owner}}", "{names: {kind: Owner}, validation: {openAPIV3Schema: {type: object, properties: {size: {type: integer}}}}}", 1), constraint("Owner", "other", "parameters: {size: 1}")}, `spec.candidatePolicies[0]: Invalid value: "ConstraintTemplate owner, which makes the installed Owner/sized invalid"`},
		{"an ExpansionTemplate without a source", append(good, "{apiVersion: expansion.gatekeeper.sh/v1beta1, kind: ExpansionTemplate, metadata: {name: e}, spec: {}}"), `spec.candidatePolicies[2]: Invalid value: "ExpansionTemplate e"`},
		{"an earlier version of admission policies", []string{strings.Replace(admission("vap", "validations: [{expression: \"true\"}]"), "k8s.io/v1\n", "k8s.io/v1beta1\n", 1), binding("b", "vap", "")}, "want admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy"},
		{"nothing that judges", good[:1], "spec.candidatePolicies: Invalid value: 1: no constraint and no binding among them judges anything; add one, or set spec.withInstalled"},
		{"a null", []string{"null"}, "spec.candidatePolicies[0]: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &v1alpha1.ReviewSpec{Object: &runtime.RawExtension{Raw: toJSON(t, goodPod)}, CandidatePolicies: candidatesOf(t, test.candidates...)}
			w := newWorld(t, constraint("Owner", "sized", "parameters: {size: many}"))
			_, err := Evaluate(context.Background(), w, Request{Spec: s})
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %s", err, test.want)
			}
		})
	}
	_, err := Evaluate(context.Background(), newWorld(t), Request{Spec: spec(t, "withInstalled: true\nobject: "+goodPod)})
	if err == nil || !strings.Contains(err.Error(), "spec.withInstalled: Forbidden") {
		t.Errorf("withInstalled without candidates: %v", err)
	}
}

// TestCandidatesReadWhatTheirUserMay: params and Namespaces are not shown to who may not
// read them. TestCandidatesInventory has data.inventory.
func TestCandidatesReadWhatTheirUserMay(t *testing.T) {
	ask := func(w *world, reader Reader, candidates ...string) ([]string, error) {
		s := &v1alpha1.ReviewSpec{Object: &runtime.RawExtension{Raw: toJSON(t, goodPod)}, CandidatePolicies: candidatesOf(t, candidates...)}
		status, err := Evaluate(context.Background(), w, Request{Spec: s, User: policy.User{Name: "alice"}, Reader: reader})
		if err != nil {
			return nil, err
		}
		return lines(status), nil
	}
	live := func(refused ...string) *fakeReader {
		r := newFakeReader(t, limits)
		for _, what := range refused {
			r.refused[what] = true
		}
		return r
	}

	_, err := ask(newWorld(t), live("get configmaps shop/limits"), binding("b", "vap", byName), admission("vap", needsParams))
	if err == nil || !strings.Contains(err.Error(), "spec.candidatePolicies[0].spec.paramRef: Forbidden: the params of the ValidatingAdmissionPolicyBinding b cannot be read: you may not get configmaps shop/limits; give them among the candidatePolicies") {
		t.Errorf("params: %v", err)
	}
	tier := []string{template("Tier", `msg := sprintf("%v", [object.get(input.review.namespaceObject, ["metadata", "labels", "tier"], "hidden")])`), constraint("Tier", "t", "")}
	got, err := ask(newWorld(t), live(), tier...)
	if diff := cmp.Diff([]string{"allowed=false 1 1 0 0", "0 Pod shop/p t [deny] fail gold"}, got); diff != "" || err != nil {
		t.Errorf("a Namespace that may be read: %v\n%s", err, diff)
	}
	got, err = ask(newWorld(t), live("get namespaces /shop"), tier...)
	if diff := cmp.Diff([]string{"allowed=false 1 1 0 0", "0 Pod shop/p t [deny] fail hidden", "candidatePolicies do not see the Namespace shop: you may not get namespaces /shop"}, got); diff != "" || err != nil {
		t.Errorf("a Namespace that may not be read: %v\n%s", err, diff)
	}
}

// TestCandidatesInventory reads what is loaded, as far as it is, and is deferred
// otherwise.
func TestCandidatesInventory(t *testing.T) {
	hosts := func(kind, read string) []string {
		return []string{
			template(kind, `o := data.inventory.namespace[_]["v1"]["ConfigMap"][_]; msg := sprintf("%v", [o.`+read+`])`),
			constraint(kind, strings.ToLower(kind), `enforcementAction: warn, match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}`),
		}
	}
	w := newWorld(t, hosts("Loaded", "data.a")...)
	preferred, _, _ := w.Kinds()
	in := w.set.Inputs()
	for _, view := range w.set.InventoryViews(preferred, nil) {
		item, err := view.Item(parse(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop}, data: {a: one, b: two}}"))
		if err != nil {
			t.Fatal(err)
		}
		in.Inventory = policy.NewInventory([]policy.InventoryObjects{{View: view, Items: []*policy.InventoryItem{item}}}, nil)
	}
	w.set = policy.Compile(context.Background(), in, w.set)
	secrets := []string{
		template("Absent", `o := data.inventory.namespace[_]["v1"]["Pod"][_]; msg := sprintf("%v", [o])`),
		constraint("Absent", "absent", ""),
	}
	for _, test := range []struct {
		name       string
		candidates []string
		refused    string
		want       []string
	}{
		{"what is loaded", hosts("Same", "data.a"), "", []string{"allowed=true 1 1 0 0", "0 Pod shop/p same [warn] fail one"}},
		{"more than is loaded", hosts("More", "data.b"), "", []string{"allowed=false 0 0 0 1", "0 Pod shop/p more [warn] deferredthe policy reads data.inventory, and v1 ConfigMap objects are not known: the policies that are installed read less of them than this one"}},
		{"what is not loaded", secrets, "", []string{"allowed=false 0 0 0 1", "0 Pod shop/p absent [deny] deferredthe policy reads data.inventory, and v1 Pod objects are not known: no policy that is installed reads them, so they are not loaded"}},
		{"what may not be read", hosts("Same", "data.a"), "list configmaps /", []string{"allowed=false 0 0 0 1", "0 Pod shop/p same [warn] deferredthe policy reads data.inventory, and v1 ConfigMap objects are not known: you may not list configmaps /"}},
		{"an installed constraint, by a template in its place", hosts("Loaded", "data.a")[:1], "list configmaps /", []string{"allowed=false 0 0 0 1", "0 Pod shop/p loaded [warn] deferredthe policy reads data.inventory, and v1 ConfigMap objects are not known: you may not list configmaps /"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			reader := newFakeReader(t)
			reader.refused[test.refused] = true
			s := &v1alpha1.ReviewSpec{Object: &runtime.RawExtension{Raw: toJSON(t, goodPod)}, CandidatePolicies: candidatesOf(t, test.candidates...)}
			status, err := Evaluate(context.Background(), w, Request{Spec: s, Reader: reader})
			if err != nil {
				t.Fatal(err)
			}
			want := test.want
			if strings.Contains(want[1], "[warn]") {
				want[0] = strings.Replace(want[0], "allowed=false", "allowed=true", 1)
			}
			if diff := cmp.Diff(want, lines(status)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	// The installed policies still read all of it.
	status, err := Evaluate(context.Background(), w, Request{Spec: spec(t, "constraints: [{kind: Loaded}]\nobject: "+goodPod)})
	if err != nil || len(status.Verdicts) != 1 || status.Verdicts[0].Violations[0].Message != "one" {
		t.Errorf("%v, %v", status, err)
	}
}

// FuzzCandidates: whatever is given, there is an answer or an *InvalidError.
func FuzzCandidates(f *testing.F) {
	for _, manifest := range []string{
		template("Denied", `msg := "x"`), constraint("Denied", "d", ""), constraint("Owner", "mine", "match: {kinds: 7}"),
		admission("vap", needsParams), binding("b", "vap", byName), limits, goodPod,
		"{apiVersion: expansion.gatekeeper.sh/v1beta1, kind: ExpansionTemplate, metadata: {name: e}, spec: {}}",
	} {
		f.Add(toJSON(f, manifest), []byte(`{"kinds":[{"kind":"Pod"}],"limit":1}`))
	}
	w := newWorld(f)
	reader := newFakeReader(f, goodPod, limits)
	owner := candidatesOf(f, constraint("Owner", "also", ""))
	f.Fuzz(func(t *testing.T, candidate, scope []byte) {
		s := &v1alpha1.ReviewSpec{CandidatePolicies: append(owner[:1:1], runtime.RawExtension{Raw: candidate})}
		var live v1alpha1.ReviewScope
		if json.Unmarshal(scope, &live) == nil {
			s.Scope = &live
		} else {
			s.Object = &runtime.RawExtension{Raw: toJSON(t, goodPod)}
		}
		status, err := Evaluate(context.Background(), w, Request{Spec: s, Reader: reader})
		var invalid *InvalidError
		if (status == nil) == (err == nil) || err != nil && !errors.As(err, &invalid) {
			t.Errorf("%v, %v", status, err)
		}
	})
}
