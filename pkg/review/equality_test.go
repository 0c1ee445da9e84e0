package review_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/audit"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/review"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

// everything reads a directory, for somebody who may read all of it.
type everything struct{ *directory.Source }

func (e everything) Allowed(context.Context, review.Reading) error { return nil }

func (e everything) Get(ctx context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	return e.Source.Get(ctx, source.Kind(kind), namespace, name)
}

func (e everything) List(ctx context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
	return e.Source.ListPages(ctx, source.Kind(kind), namespace, selector, page)
}

// audited is a directory and its audit.
type audited struct {
	testing.TB
	source  *directory.Source
	auditor *audit.Auditor
	db      *index.DB
}

// auditOf audits manifests until all have been judged once.
func auditOf(t testing.TB, manifests map[string]string) *audited {
	t.Helper()
	dir := t.TempDir()
	text := strings.Join(slices.Collect(maps.Values(manifests)), "\n---\n")
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return auditDir(t, dir)
}

// auditDir audits a directory until all have been judged once.
func auditDir(t testing.TB, dir string) *audited {
	t.Helper()
	src, err := directory.New(dir, directory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := src.Inventory(t.Context())
	if err != nil || len(inventory.Problems) > 0 {
		t.Fatalf("%v, %v", inventory.Problems, err)
	}
	a := &audited{TB: t, source: src, db: indextest.MustOpen(t, rows.Schemas())}
	if a.auditor, err = audit.New(audit.Config{Source: src, Index: a.db, Workers: 2}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.auditor.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("audit: %v", err)
		}
	})
	for deadline := time.Now().Add(time.Minute); a.auditor.Ready(rows.AuditResults) != nil; {
		if time.Now().After(deadline) {
			t.Fatal(a.auditor.Ready(rows.AuditResults))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return a
}

// isPolicy tells whether an object is there for the policies only: candidates are objects
// themselves once they are installed.
func isPolicy(r v1alpha1.ResourceReference) bool {
	return review.IsPolicy(schema.GroupKind{Group: r.APIGroup, Kind: r.Kind})
}

// finding is what is compared.
func finding(c v1alpha1.ConstraintReference, r v1alpha1.ResourceReference, result, action string, actions []string, message string, violations []v1alpha1.Violation) string {
	text := fmt.Sprintf("%s %s/%s: %s %s/%s: %s %s %v %s", c.Engine, c.Kind, c.Name, r.Kind, r.Namespace, r.Name, result, action, actions, message)
	for _, v := range violations {
		text += "; " + v.Message
		if v.Details != nil {
			text += " " + string(v.Details.Raw)
		}
	}
	return text
}

// findings of the audit, by constraint.
func (a *audited) findings() map[string][]string {
	a.Helper()
	out := map[string][]string{}
	for _, table := range []index.Table{rows.AuditResults, rows.ClusterAuditResults} {
		page, err := a.db.List(context.Background(), index.Query{Table: table})
		if err != nil {
			a.Fatal(err)
		}
		for _, row := range page.Rows {
			var r v1alpha1.AuditResult
			if err := rows.Decode(row, &r); err != nil {
				a.Fatal(err)
			}
			if isPolicy(r.Resource) {
				continue
			}
			c := r.Constraint
			id := string(c.Engine) + " " + c.Kind + "/" + c.Name
			actions := r.EnforcementActions
			if len(actions) == 0 {
				actions = []string{r.EnforcementAction}
			}
			out[id] = append(out[id], finding(c, r.Resource, string(r.Result), r.EnforcementAction, actions, r.Message, r.Violations))
		}
	}
	return out
}

// generator makes random policies and objects.
type generator struct{ *rand.Rand }

func (g generator) pick(options ...string) string { return options[g.IntN(len(options))] }

func (g generator) maybe(text string) string {
	if g.IntN(2) == 0 {
		return ""
	}
	return text
}

func (g generator) labels() string {
	return "labels: {" + g.maybe("owner: "+g.pick("me", "you")) + "}"
}

func (g generator) object(i int) (key, manifest string) {
	kind := g.pick("Pod", "Pod", "ConfigMap", "Service", "Deployment", "ClusterRole", "Namespace")
	namespace, name := g.pick("shop", "shop-test", "bank", "kube-system"), fmt.Sprintf("%s-%d", g.pick("web", "db"), i)
	switch kind {
	case "Namespace":
		return "Namespace " + namespace, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {tier: %s}}\n", namespace, g.pick("gold", "tin"))
	case "ClusterRole":
		return kind + name, fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s, %s}\n", name, g.labels())
	case "Deployment":
		return kind + name, fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: %s, namespace: %s, %s}\nspec: {replicas: %d, template: {metadata: {%s}, spec: {containers: [{name: c, image: %s}]}}}\n",
			name, namespace, g.labels(), g.IntN(3), g.labels(), g.pick("a", "b:latest"))
	case "Pod":
		return kind + name, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, %s}\nspec: {containers: [{name: c, image: %s}]}\n", name, namespace, g.labels(), g.pick("a", "b:latest"))
	}
	return kind + name, fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata: {name: %s, namespace: %s, %s}\n", kind, name, namespace, g.labels())
}

func (g generator) template(kind string) string {
	body := g.pick(
		`not input.review.object.metadata.labels.owner; msg := "no owner"`,
		`o := input.review.object; not o.metadata.labels[input.parameters.label]; msg := sprintf("%v %v lacks %v", [o.kind, o.metadata.name, input.parameters.label])`,
		`c := input.review.object.spec.containers[_]; endswith(c.image, ":latest"); msg := sprintf("%v is the latest", [c.name])`,
		`msg := sprintf("in %v", [input.review.namespaceObject.metadata.labels.tier])`,
		`o := data.inventory.namespace[_]["v1"]["ConfigMap"][_]; o.metadata.name == input.review.object.metadata.name; msg := "there is a ConfigMap of the name"`,
		`input.review.object.kind == "Service"; msg := 7`,
	)
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: %s}
spec:
  crd: {spec: {names: {kind: %s}, validation: {openAPIV3Schema: {type: object, properties: {label: {type: string}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg, "details": {"version": %d}}] { %s }
`, strings.ToLower(kind), kind, g.IntN(2), body)
}

func (g generator) constraint(kind, name string) string {
	match := strings.Join(slices.DeleteFunc([]string{
		g.maybe(`kinds: [{apiGroups: ["", apps], kinds: [` + g.pick("Pod", "Deployment", "Pod, ConfigMap", "Namespace", "'*'") + `]}]`),
		g.maybe("namespaces: [" + g.pick("shop", "'shop*'", "bank") + "]"),
		g.maybe("excludedNamespaces: [kube-system]"),
		g.maybe("labelSelector: {matchLabels: {owner: me}}"),
		g.maybe("namespaceSelector: {matchLabels: {tier: gold}}"),
		g.maybe("scope: " + g.pick("Namespaced", "Cluster", "'*'")),
	}, func(part string) bool { return part == "" }), ", ")
	action := g.pick("deny", "warn", "dryrun", "scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: audit.gatekeeper.sh}]}]",
		"scoped, scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}]")
	return fmt.Sprintf("apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: %s\nmetadata: {name: %s}\nspec: {enforcementAction: %s, match: {%s}, parameters: {label: %s}}\n",
		kind, name, action, match, g.pick("owner", "team"))
}

func (g generator) admission(name string) string {
	params, expression := "", g.pick(`has(object.metadata.labels) && 'owner' in object.metadata.labels`, `object.metadata.name.startsWith('web')`, `object.spec.replicas > 1`, `namespaceObject == null || namespaceObject.metadata.labels['tier'] == 'gold'`)
	if g.IntN(3) == 0 {
		params, expression = "paramKind: {apiVersion: v1, kind: ConfigMap}", `params.metadata.name != object.metadata.name`
	}
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [%s], apiVersions: ["*"], operations: [%s], resources: ["*"]}]}
  validations: [{expression: "%s", message: "no"}]
  failurePolicy: %s
  %s
`, name, g.pick("''", "apps", "'*'"), g.pick("CREATE", "UPDATE", "DELETE"), expression, g.pick("Fail", "Ignore"), params)
}

func (g generator) binding(name, policy string) string {
	return fmt.Sprintf("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {name: %s}\nspec: {policyName: %s, validationActions: [%s], paramRef: {%s, parameterNotFoundAction: %s}%s}\n",
		name, policy, g.pick("Deny", "Warn", "Warn, Audit"), g.pick("selector: {}", "name: web-1", "name: db-2, namespace: shop"), g.pick("Allow", "Deny"),
		g.maybe(", matchResources: {namespaceSelector: {matchLabels: {tier: gold}}}"))
}

// policies are some, by kind and name. Of two calls some are the same.
func (g generator) policies() map[string]string {
	out := map[string]string{}
	for range 1 + g.IntN(3) {
		kind := g.pick("KindA", "KindB")
		out["template "+kind] = g.template(kind)
		for range 1 + g.IntN(2) {
			name := g.pick("one", "two")
			out[kind+"/"+name] = g.constraint(kind, name)
		}
	}
	if g.IntN(2) == 0 {
		name := g.pick("vap-a", "vap-b")
		out["policy "+name] = g.admission(name)
		for range 1 + g.IntN(2) {
			binding := name + g.pick("-1", "-2")
			out["binding "+binding] = g.binding(binding, name)
		}
	}
	if g.IntN(3) == 0 {
		out["expansion"] = "apiVersion: expansion.gatekeeper.sh/v1beta1\nkind: ExpansionTemplate\nmetadata: {name: pods}\nspec: {applyTo: [{groups: [apps], versions: [v1], kinds: [Deployment]}], templateSource: spec.template, generatedGVK: {version: v1, kind: Pod}" + g.maybe(", enforcementAction: dryrun") + "}\n"
	}
	return out
}

// TestImpactIsWhatTheAuditFinds: candidates find over a scope what the audit finds once
// they are installed, with the same messages, details and actions, and with the installed
// ones all that it finds, but for what it finds about the policies themselves. Candidates that read more of data.inventory than is loaded say
// so instead.
func TestImpactIsWhatTheAuditFinds(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 4
	}
	total := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := generator{rand.New(rand.NewPCG(uint64(seed), 1))}
			objects := map[string]string{}
			for i := range 60 {
				key, manifest := g.object(i)
				objects[key] = manifest
			}
			installed, candidates := g.policies(), g.policies()
			before, after := maps.Clone(objects), maps.Clone(objects)
			maps.Copy(before, installed)
			maps.Copy(after, installed)
			maps.Copy(after, candidates)
			now, later := auditOf(t, before), auditOf(t, after)
			policies, err := now.auditor.Policies()
			if err != nil {
				t.Fatal(err)
			}
			for _, withInstalled := range []bool{false, true} {
				limit := int32(1000)
				spec := &v1alpha1.ReviewSpec{Scope: &v1alpha1.ReviewScope{Limit: &limit}, WithInstalled: withInstalled}
				for _, key := range slices.Sorted(maps.Keys(candidates)) {
					data, err := yaml.YAMLToJSON([]byte(candidates[key]))
					if err != nil {
						t.Fatal(err)
					}
					spec.CandidatePolicies = append(spec.CandidatePolicies, runtime.RawExtension{Raw: data})
				}
				status, err := review.Evaluate(t.Context(), policies, review.Request{Spec: spec, Reader: everything{now.source}, GuessKind: guessKind})
				if err != nil {
					if strings.Contains(err.Error(), "judges anything at audit.gatekeeper.sh") {
						continue // scoped constraints only
					}
					t.Fatal(err)
				}
				total += compareFindings(t, status, later.findings(), withInstalled)
			}
		})
	}
	if total < 20*seeds {
		t.Errorf("%d findings were compared, which says little", total)
	}
}

func guessKind(gvk schema.GroupVersionKind, inNamespace bool) (policy.Kind, bool) {
	kind, known := directory.GuessKind(gvk, inNamespace)
	return policy.Kind(kind), known
}

// compareFindings compares an impact with the findings of the audit, and returns how many there are.
func compareFindings(t *testing.T, status *v1alpha1.ReviewStatus, want map[string][]string, all bool) int {
	t.Helper()
	got := map[string][]string{}
	unknown := map[string]bool{}
	for _, v := range status.Verdicts {
		c := v.Constraint
		id := string(c.Engine) + " " + c.Kind + "/" + c.Name
		if v.Result == v1alpha1.ReviewDeferred && strings.Contains(v.Message, "data.inventory") {
			unknown[id] = true
		}
		if !isPolicy(v.Resource) {
			got[id] = append(got[id], finding(c, v.Resource, string(v.Result), v.EnforcementAction, v.EnforcementActions, v.Message, v.Violations))
		}
	}
	if !status.Impact.Complete || int64(len(status.Verdicts)) != status.Failed+status.Errors+status.Deferred {
		t.Fatalf("%d verdicts: %+v", len(status.Verdicts), status)
	}
	judged := map[string]bool{}
	compared := 0
	for _, c := range status.Impact.Constraints {
		id := string(c.Constraint.Engine) + " " + c.Constraint.Kind + "/" + c.Constraint.Name
		judged[id] = true
		if unknown[id] {
			continue
		}
		slices.Sort(got[id])
		slices.Sort(want[id])
		compared += len(got[id])
		if diff := cmp.Diff(want[id], got[id]); diff != "" {
			t.Errorf("%s (-audit +review):\n%s", id, diff)
		}
	}
	for id := range want {
		if all && !judged[id] {
			t.Errorf("%s is not judged", id)
		}
	}
	return compared
}

// TestDocumentation: the review in docs/reviews.md finds something in artifacts/example.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/reviews.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "cat > review.yaml <<EOF\n")
	manifest, _, ended := strings.Cut(after, "    EOF\n")
	if !found || !ended {
		t.Fatal("there is no review.yaml in it")
	}
	var in v1alpha1.Review
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll("\n"+manifest, "\n    ", "\n")), &in); err != nil {
		t.Fatal(err)
	}
	a := auditDir(t, "../../artifacts/example")
	policies, err := a.auditor.Policies()
	if err != nil {
		t.Fatal(err)
	}
	status, err := review.Evaluate(t.Context(), policies, review.Request{Spec: &in.Spec, Reader: everything{a.source}, GuessKind: guessKind})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range status.Verdicts {
		got = append(got, v.Resource.Name+": "+v.Violations[0].Message)
	}
	want := []string{"cart: replicas is 1; it must be at least 3"}
	if diff := cmp.Diff(want, got); diff != "" || !status.Impact.Complete || status.Impact.Objects != 2 {
		t.Errorf("-want +got:\n%s\n%+v", diff, status.Impact)
	}
}
