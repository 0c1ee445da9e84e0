package reviewcmd

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/pkg/review"
)

const policies = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: needlabel}
spec:
  crd: {spec: {names: {kind: NeedLabel}, validation: {openAPIV3Schema: {type: object, properties: {label: {type: string}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg}] { label := input.parameters.label; not input.review.object.metadata.labels[label]; msg := sprintf("no %v in %v", [label, input.review.namespaceObject.metadata.labels.tier]) }
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: NeedLabel
metadata: {name: owner}
spec: {match: {kinds: [{apiGroups: ["*"], kinds: [Pod]}]}, parameters: {label: owner}}
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: NeedLabel
metadata: {name: team}
spec: {enforcementAction: warn, match: {kinds: [{apiGroups: ["*"], kinds: [Pod]}]}, parameters: {label: team}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: who}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: ["shop.example"], apiVersions: ["*"], operations: [CREATE], resources: [offers]}]}
  validations: [{expression: "request.userInfo.username == params.data.who", messageExpression: "'not ' + params.data.who"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: who}
spec: {policyName: who, validationActions: [Audit], paramRef: {name: limits, namespace: shop, parameterNotFoundAction: Deny}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: limits, namespace: shop}
data: {who: bob}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {tier: gold}}
`

const (
	goodPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: good, namespace: shop, labels: {owner: me, team: a}}\n"
	warnPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: warn, namespace: shop, labels: {owner: me}}\n"
	badPod  = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, namespace: shop}\n"
	webApp  = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec: {template: {metadata: {labels: {team: a}}, spec: {containers: []}}}\n"
	offer   = "apiVersion: shop.example/v1\nkind: Offer\nmetadata: {name: one, namespace: shop}\n"
)

// folder writes files: pairs of a name and a text.
func folder(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// call runs the command and returns its exit status, and what it prints. Paths of the
// test are left out of that.
func call(t *testing.T, dir, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := New()
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	status = Run(cmd)
	short := func(text string) string {
		if dir == "" {
			return text
		}
		return strings.ReplaceAll(text, dir+"/", "")
	}
	return status, short(out.String()), short(errs.String())
}

// rows of a table, with single spaces.
func rows(table string) []string {
	var out []string
	for line := range strings.Lines(table) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return out
}

func TestCommand(t *testing.T) {
	rules := filepath.Join(folder(t, "policies.yaml", policies), "policies.yaml")
	const header = "RESULT ACTION CONSTRAINT RESOURCE FILE MESSAGE"
	const warned = "fail warn NeedLabel/team Pod shop/warn warn.yaml:1 no team in gold"
	bad := []string{
		header,
		"fail deny NeedLabel/owner Pod shop/bad bad.yaml:1 no owner in gold",
		"fail warn NeedLabel/team Pod shop/bad bad.yaml:1 no team in gold",
	}
	for _, test := range []struct {
		name   string
		files  []string
		args   []string
		status int
		want   []string
		stderr string
	}{
		{"clean", []string{"a.yaml", goodPod}, nil, 0, nil, "1 objects: 0 violations, of which 0 fail the review; 0 could not be judged"},
		{"a warning", []string{"warn.yaml", warnPod}, nil, 0, []string{header, warned}, "1 violations, of which 0 fail"},
		{"a warning that fails", []string{"warn.yaml", warnPod}, []string{"--fail-on=warn"}, 1, []string{header, warned}, "1 violations, of which 1 fail"},
		{"a denial", []string{"bad.yaml", badPod}, nil, 1, bad, "2 violations, of which 1 fail"},
		{"a workload", []string{"web.yaml", "# web\n" + webApp}, nil, 1, []string{
			header, "fail deny NeedLabel/owner Deployment shop/web web.yaml:2 [Implied by Deployment web] no owner in gold",
		}, ""},
		{"audited", []string{"o.yaml", offer}, []string{"--as=alice"}, 0, []string{header, "fail audit who/who Offer shop/one o.yaml:1 not bob"}, ""},
		{"audited, and it fails", []string{"o.yaml", offer}, []string{"--as=alice", "--fail-on=dryrun"}, 1, []string{header, "fail audit who/who Offer shop/one o.yaml:1 not bob"}, ""},
		{"somebody else", []string{"o.yaml", offer}, []string{"--as=bob", "--as-group=dev"}, 0, nil, ""},
		{"at a point", []string{"o.yaml", offer}, []string{"--enforcement-point=validation.gatekeeper.sh"}, 0, nil, ""},
		{
			"its own Namespace",
			[]string{"warn.yaml", warnPod, "z.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {tier: new}}\n"},
			nil, 0,
			[]string{header, strings.Replace(warned, "gold", "new", 1)},
			"",
		},
		{"a file that is wrong", []string{"a.yaml", goodPod, "b.yaml", "kind: Pod\n"}, nil, 2, nil, "Problem: b.yaml: document 1 (line 1) has no apiVersion"},
		{"wrong and denied", []string{"bad.yaml", badPod, "b.yaml", "x: [\n"}, nil, 2, bad, "Problem: b.yaml: document 1 (line 1) is not valid YAML"},
		{"explained", []string{"o.yaml", offer}, []string{"--explain", "--as=bob"}, 0, []string{
			header,
			"notMatched deny NeedLabel/owner Offer shop/one o.yaml:1 spec.match.kinds",
			"notMatched warn NeedLabel/team Offer shop/one o.yaml:1 spec.match.kinds",
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t, test.files...)
			status, stdout, stderr := call(t, dir, "", append([]string{"-f", dir, "--policies", rules}, test.args...)...)
			if status != test.status || !strings.Contains(stderr, test.stderr) {
				t.Errorf("status %d, want %d; stderr %s", status, test.status, stderr)
			}
			if diff := cmp.Diff(test.want, rows(stdout)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	status, stdout, _ := call(t, "", badPod, "-f", "-", "--policies", rules)
	if status != 1 || !strings.Contains(stdout, "Pod shop/bad   -:1") {
		t.Errorf("from the standard input: %d\n%s", status, stdout)
	}
	dir := folder(t, "x.yaml", goodPod+"---\n"+warnPod)
	if status, stdout, _ := call(t, dir, "", "-f", dir+"/x.yaml", "--policies", rules); status != 0 || !strings.Contains(stdout, " x.yaml:5 ") {
		t.Errorf("a file: %d\n%s", status, stdout)
	}
}

// TestRefusals exit with 2: nothing is known about violations.
func TestRefusals(t *testing.T) {
	dir := folder(t, "a.yaml", goodPod)
	broken := folder(t, "p.yaml", strings.Replace(policies, "violation[", "violation(", 1))
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing":                       {nil, "-f is missing"},
		"no policies":                   {[]string{"-f", dir}, "either --policies with a directory, or --kubeconfig"},
		"both":                          {[]string{"-f", dir, "--policies", dir, "--kubeconfig", "x"}, "either --policies"},
		"output":                        {[]string{"-f", dir, "--policies", dir, "-o", "yaml"}, "--output=yaml is unknown; use one of json, junit, sarif, table"},
		"fail on":                       {[]string{"-f", dir, "--policies", dir, "--fail-on", "audit"}, "--fail-on=audit is unknown; use deny, warn or dryrun"},
		"namespace":                     {[]string{"-f", dir, "--policies", dir, "-n", "shop"}, "--namespace is for --kubeconfig only"},
		"candidates without a cluster":  {[]string{"-f", dir, "--policies", dir, "--candidates", dir}, "--candidates is for --kubeconfig only"},
		"installed without candidates":  {[]string{"-f", dir, "--kubeconfig", "x", "--with-installed"}, "--with-installed is for --candidates only"},
		"a scope of manifests":          {[]string{"-f", dir, "--kubeconfig", "x", "--candidates", dir, "--limit", "7"}, "--limit is for --candidates without -f"},
		"a scope without candidates":    {[]string{"-f", dir, "--kubeconfig", "x", "--scope-kinds", "Pod"}, "--scope-kinds is for --candidates without -f"},
		"candidates as SARIF":           {[]string{"--kubeconfig", "x", "--candidates", dir, "-o", "sarif"}, "--output=sarif is for -f"},
		"candidates as somebody":        {[]string{"--kubeconfig", "x", "--candidates", dir, "--as", "bob"}, "--as and --explain are for -f"},
		"candidates that are none":      {[]string{"--kubeconfig", "x", "--candidates", dir}, "--candidates: there are no policies in"},
		"candidates that are not there": {[]string{"--kubeconfig", "x", "--candidates", dir + "/absent"}, "no such folder or file"},
		"groups of nobody":              {[]string{"-f", dir, "--policies", dir, "--as-group", "dev"}, "--as-group needs --as"},
		"an argument":                   {[]string{"-f", dir, "--policies", dir, "more"}, `unknown command "more"`},
		"a flag":                        {[]string{"--nonsense"}, "unknown flag: --nonsense"},
		"no such file":                  {[]string{"-f", "/does/not/exist", "--policies", dir}, "no such folder or file"},
		"no such policies":              {[]string{"-f", dir, "--policies", "/does/not/exist"}, "--policies: source /does/not/exist: no such folder or file"},
		"no kubeconfig":                 {[]string{"-f", dir, "--kubeconfig", "/does/not/exist"}, "--kubeconfig: stat /does/not/exist"},
		"no constraints":                {[]string{"-f", dir, "--policies", dir}, "has no constraints and no bindings to judge by"},
		"a wrong policy":                {[]string{"-f", dir, "--policies", broken}, "Problem: template needlabel: rego:"},
		"a wrong point":                 {[]string{"-f", dir, "--policies", dir, "--enforcement-point", "webhook"}, `spec.enforcementPoint: Unsupported value: "webhook"`},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, stderr := call(t, dir, "", test.args...)
			if status != 2 || !strings.Contains(stderr, test.want) {
				t.Errorf("status %d, stderr %s", status, stderr)
			}
		})
	}
}

// TestFormats have the same in them.
func TestFormats(t *testing.T) {
	rules := folder(t, "policies.yaml", policies)
	dir := folder(t, "a.yaml", goodPod+"---\n"+badPod, "b.yaml", "kind: Pod\n")
	print := func(format string) string {
		status, stdout, _ := call(t, dir, "", "-f", dir, "--policies", rules, "-o", format)
		if status != 2 {
			t.Errorf("%s: status %d", format, status)
		}
		return stdout
	}
	var asJSON struct {
		Objects  int
		Problems []string
		Verdicts []struct {
			File       string
			Line       int
			Result     string
			Violations []struct{ Message string }
		}
	}
	if err := json.Unmarshal([]byte(print("json")), &asJSON); err != nil {
		t.Fatal(err)
	}
	if len(asJSON.Verdicts) != 4 || asJSON.Objects != 2 || len(asJSON.Problems) != 1 {
		t.Fatalf("JSON: %+v", asJSON)
	}
	if v := asJSON.Verdicts[2]; v.File != "a.yaml" || v.Line != 5 || v.Result != "fail" || v.Violations[0].Message != "no owner in gold" {
		t.Errorf("JSON: %+v", v)
	}

	var asSARIF sarifLog
	if err := json.Unmarshal([]byte(print("sarif")), &asSARIF); err != nil {
		t.Fatal(err)
	}
	run := asSARIF.Runs[0]
	var results []string
	for _, r := range run.Results {
		location := r.Locations[0]
		results = append(results, fmt.Sprintf("%s %s %s %s:%d %s", r.Level, run.Tool.Driver.Rules[r.RuleIndex].ID, r.Message.Text,
			location.Physical.Artifact.URI, location.Physical.Region.StartLine, location.Logical[0].FullyQualifiedName))
	}
	want := []string{
		"error NeedLabel/owner no owner in gold a.yaml:5 Pod shop/bad",
		"warning NeedLabel/team no team in gold a.yaml:5 Pod shop/bad",
	}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Errorf("SARIF (-want +got):\n%s", diff)
	}
	if asSARIF.Version != "2.1.0" || run.Invocations[0].ExecutionSuccessful || len(run.Invocations[0].Notifications) != 1 {
		t.Errorf("SARIF %s: %+v", asSARIF.Version, run.Invocations)
	}

	var asJUnit junitSuites
	if err := xml.Unmarshal([]byte(print("junit")), &asJUnit); err != nil {
		t.Fatal(err)
	}
	if asJUnit.Tests != 5 || asJUnit.Failures != 1 || asJUnit.Errors != 1 || len(asJUnit.Suites) != 2 {
		t.Fatalf("JUnit: %+v", asJUnit)
	}
	if c := asJUnit.Suites[0].Cases[2]; c.Failure == nil || c.Failure.Message != "no owner in gold" || c.Failure.Type != "deny" || c.Line != 5 {
		t.Errorf("JUnit: %+v", c)
	}
	if c := asJUnit.Suites[0].Cases[3]; c.Failure != nil || c.Output != "warn: no team in gold" {
		t.Errorf("JUnit: %+v", c)
	}
}

// TestBatches are no larger than a review may be, and have all manifests in them.
func TestBatches(t *testing.T) {
	rules := folder(t, "policies.yaml", policies)
	var many strings.Builder
	for i := range 250 {
		fmt.Fprintf(&many, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: shop, annotations: {text: %s}}\n", i, strings.Repeat("x", 30_000))
	}
	status, stdout, stderr := call(t, "", many.String(), "-f", "-", "--policies", rules)
	if status != 1 || !strings.Contains(stderr, "250 objects: 500 violations, of which 250 fail") || strings.Count(stdout, "\n") != 501 {
		t.Errorf("status %d, stderr %s, %d lines", status, stderr, strings.Count(stdout, "\n"))
	}
}

// TestWrongObjects are told from what is wrong with a review as a whole.
func TestWrongObjects(t *testing.T) {
	path := field.NewPath("spec", "objects")
	some := field.ErrorList{field.Required(path.Index(1).Child("kind"), "an object has one"), field.Invalid(path.Index(7), "", "it is not an object")}
	want := map[int][]string{1: {"kind: Required value: an object has one"}, 7: {`Invalid value: "": it is not an object`}}
	kind := schema.GroupKind{Kind: "Review"}
	for name, test := range map[string]struct {
		err  error
		want map[int][]string
	}{
		"offline":           {&review.InvalidError{Errors: some}, want},
		"online":            {fmt.Errorf("create: %w", apierrors.NewInvalid(kind, "", some)), want},
		"the review":        {&review.InvalidError{Errors: append(field.ErrorList{field.Required(field.NewPath("spec", "userInfo"), "")}, some...)}, nil},
		"the review online": {apierrors.NewInvalid(kind, "", field.ErrorList{field.Required(field.NewPath("spec", "userInfo"), "")}), nil},
		"forbidden":         {apierrors.NewForbidden(schema.GroupResource{Resource: "reviews"}, "", nil), nil},
		"anything":          {errors.New("spec.objects[1]"), nil},
	} {
		got := wrongObjects(test.err)
		if len(got) == 0 && len(test.want) == 0 {
			continue
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestInventory has two Ingresses of a host among what is judged, and one of another
// in the directory of the policies; what is judged takes the place of an older one there.
func TestInventory(t *testing.T) {
	const rules = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: uniquehost}
spec:
  crd: {spec: {names: {kind: UniqueHost}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg}] {
        other := data.inventory.namespace[ns]["networking.k8s.io/v1"]["Ingress"][name]
        [ns, name] != [input.review.object.metadata.namespace, input.review.object.metadata.name]
        host := other.spec.rules[_].host
        host == input.review.object.spec.rules[_].host
        msg := sprintf("%v is the host of %v/%v", [host, ns, name])
      }
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: UniqueHost
metadata: {name: hosts}
spec: {match: {kinds: [{apiGroups: [networking.k8s.io], kinds: [Ingress]}]}}
`
	ingress := func(name, host string) string {
		return "---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: " + name + ", namespace: shop}, spec: {rules: [{host: " + host + "}]}}\n"
	}
	dir := folder(t, "in.yaml", ingress("a", "x.example")+ingress("b", "x.example")+ingress("c", "y.example")+ingress("d", "z.example"))
	policies := folder(t, "policies.yaml", rules+ingress("old", "y.example")+ingress("d", "x.example"))
	status, stdout, stderr := call(t, dir, "", "-f", dir, "--policies", policies)
	want := []string{
		"RESULT ACTION CONSTRAINT RESOURCE FILE MESSAGE",
		"fail deny UniqueHost/hosts Ingress shop/a in.yaml:2 x.example is the host of shop/b",
		"fail deny UniqueHost/hosts Ingress shop/b in.yaml:4 x.example is the host of shop/a",
		"fail deny UniqueHost/hosts Ingress shop/c in.yaml:6 y.example is the host of shop/old",
	}
	got := rows(stdout)
	if len(got) > len(want) {
		got = got[:len(want)]
	}
	if diff := cmp.Diff(want, got); diff != "" || status != 1 {
		t.Errorf("status %d (-want +got):\n%s\n%s", status, diff, stderr)
	}
}
