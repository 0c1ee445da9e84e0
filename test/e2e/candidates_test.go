package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// candidateSpec is a spec with candidatePolicies, as JSON, which YAML includes.
func candidateSpec(t testing.TB, more string, manifests ...string) string {
	t.Helper()
	var candidates []string
	for _, manifest := range manifests {
		data, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		candidates = append(candidates, string(data))
	}
	return more + "candidatePolicies: [" + strings.Join(candidates, ", ") + "]"
}

// ask creates a review and returns the answer.
func ask(kubeconfig, manifest string, args ...string) (*v1alpha1.ReviewStatus, error) {
	out, err := create(kubeconfig, manifest, append(args, "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var answer v1alpha1.Review
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return nil, err
	}
	return &answer.Status, nil
}

// lines of findings, sorted: constraint, object, result and messages.
func findingLines(verdicts []v1alpha1.ReviewVerdict) []string {
	var out []string
	for _, v := range verdicts {
		out = append(out, findingLine(v.Constraint, v.Resource, string(v.Result), v.EnforcementAction, v.Message, v.Violations))
	}
	slices.Sort(out)
	return out
}

func findingLine(c v1alpha1.ConstraintReference, r v1alpha1.ResourceReference, result, action, message string, violations []v1alpha1.Violation) string {
	line := fmt.Sprintf("%s/%s %s %s/%s %s %s %s", c.Kind, c.Name, r.Kind, r.Namespace, r.Name, result, action, message)
	for _, v := range violations {
		line += "; " + v.Message
		if v.Details != nil {
			var details bytes.Buffer
			if err := json.Compact(&details, v.Details.Raw); err != nil { // kubectl indents it
				return err.Error()
			}
			line += " " + details.String()
		}
	}
	return line
}

// auditLines are the findings of the audit in namespaces.
func auditLines(ctx context.Context, constraints []string, namespaces ...string) ([]string, error) {
	out := []string{}
	for _, namespace := range namespaces {
		list, err := client.PolicyV1alpha1().AuditResults(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, r := range list.Items {
			if slices.Contains(constraints, r.Constraint.Name) {
				out = append(out, findingLine(r.Constraint, r.Resource, string(r.Result), r.EnforcementAction, r.Message, r.Violations))
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// TestCandidates has policies judge the cluster before they are installed.
func TestCandidates(t *testing.T) {
	apply(t, namespace("e2e-candidate"), namespace("e2e-candidate-b"))
	apply(t, configMap("e2e-candidate", "fine", "owner: me"), configMap("e2e-candidate", "bad", ""), configMap("e2e-candidate-b", "bad", ""), "{apiVersion: v1, kind: ConfigMap, metadata: {name: limits, namespace: e2e-candidate}, data: {label: team}}")
	remove(t, "namespace/e2e-candidate", "namespace/e2e-candidate-b")
	const admission = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-candidate}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "has(object.metadata.labels) && params.data.label in object.metadata.labels", messageExpression: "object.metadata.name + ' has no ' + params.data.label"}]
`
	const bound = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-candidate-binding}
spec:
  policyName: e2e-candidate
  validationActions: [Audit]
  paramRef: {name: limits, namespace: e2e-candidate, parameterNotFoundAction: Deny}
  matchResources: {namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [e2e-candidate, e2e-candidate-b]}]}}
`
	policies := []string{
		template("E2ECandidate"), constraint("E2ECandidate", "candidate-owner", "ConfigMap, Namespace", "e2e-candidate*", "owner"),
		admission, bound,
	}
	constraints := []string{"candidate-owner", "e2e-candidate-binding"}
	everything := candidateSpec(t, "scope: {limit: 1000}, ", policies...)

	t.Run("as the audit does later", func(t *testing.T) {
		before, err := ask(cp.AdminKubeconfig, review("", everything))
		if err != nil {
			t.Fatal(err)
		}
		if before.Allowed || !before.Impact.Complete || before.Errors+before.Deferred > 0 || len(before.Impact.Constraints) != 2 {
			t.Errorf("the answer: %+v", before)
		}
		if len(before.Verdicts) == 0 || int64(len(before.Verdicts)) != before.Failed {
			t.Fatalf("%d verdicts of %d", len(before.Verdicts), before.Failed)
		}
		// The API is asked for the findings in each namespace: Namespaces are in theirs.
		got := findingLines(before.Verdicts)
		apply(t, policies[0], policies[2], policies[3])
		apply(t, policies[1])
		remove(t, "constrainttemplate/e2ecandidate", "validatingadmissionpolicy/e2e-candidate", "validatingadmissionpolicybinding/e2e-candidate-binding")
		eventually(t, 60*time.Second, "the same findings", func() error {
			want, err := auditLines(t.Context(), constraints, "e2e-candidate", "e2e-candidate-b")
			if err != nil {
				return err
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("-audit +review:\n%s", diff)
			}
			return nil
		})
		after, err := ask(cp.AdminKubeconfig, review("", "scope: {limit: 1000}, constraints: [{kind: E2ECandidate}, {kind: e2e-candidate}]"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, findingLines(after.Verdicts)); diff != "" {
			t.Errorf("installed (-candidates +installed):\n%s", diff)
		}
		kubectl(t, "delete", "constrainttemplate/e2ecandidate", "validatingadmissionpolicybinding/e2e-candidate-binding", "validatingadmissionpolicy/e2e-candidate")
	})
	t.Run("as a tenant", func(t *testing.T) {
		tenant := user(t, "e2e-tenant")
		kubectl(t, "create", "role", "reviewer", "-n", "e2e-candidate", "--verb=create", "--resource=localreviews.policy.example.io")
		kubectl(t, "create", "rolebinding", "reviewer", "-n", "e2e-candidate", "--role=reviewer", "--user=e2e-tenant")
		local := review("e2e-candidate", candidateSpec(t, "scope: {}, ", policies[:2]...))
		eventually(t, 30*time.Second, "localreviews, but no candidates", func() error {
			_, err := ask(tenant, local)
			if err == nil || !strings.Contains(err.Error(), `localreviews.policy.example.io/candidates is forbidden`) && !strings.Contains(err.Error(), `localreviews/candidates.policy.example.io`) && !strings.Contains(err.Error(), "candidates") {
				return fmt.Errorf("the answer is %w", err)
			}
			return nil
		})
		kubectl(t, "create", "role", "trier", "-n", "e2e-candidate", "--verb=create", "--resource=localreviews.policy.example.io/candidates")
		kubectl(t, "create", "rolebinding", "trier", "-n", "e2e-candidate", "--role=trier", "--user=e2e-tenant")
		eventually(t, 30*time.Second, "ConfigMaps are left out", func() error {
			status, err := ask(tenant, local)
			if err != nil {
				return err
			}
			if status.Allowed || status.Impact.Complete || status.Impact.Objects != 0 || len(status.Impact.NotJudged) != 1 ||
				status.Impact.NotJudged[0].Reason != v1alpha1.NotJudgedForbidden || !strings.Contains(status.Impact.NotJudged[0].Message, `cannot list it in the namespace "e2e-candidate"`) {
				return fmt.Errorf("the answer is %+v %+v", status, status.Impact)
			}
			return nil
		})
		kubectl(t, "create", "role", "reader", "-n", "e2e-candidate", "--verb=list", "--resource=configmaps")
		kubectl(t, "create", "rolebinding", "reader", "-n", "e2e-candidate", "--role=reader", "--user=e2e-tenant")
		eventually(t, 30*time.Second, "ConfigMaps are judged", func() error {
			status, err := ask(tenant, local)
			if err != nil {
				return err
			}
			return expect(fmt.Sprint(status.Impact.Complete, findingLines(status.Verdicts)), "true [E2ECandidate/candidate-owner ConfigMap e2e-candidate/bad fail deny ; label owner is missing {\"missing\":\"owner\"} E2ECandidate/candidate-owner ConfigMap e2e-candidate/limits fail deny ; label owner is missing {\"missing\":\"owner\"}]", nil)
		})
		// Of the whole cluster they see what they may list, and what they may not is named.
		kubectl(t, "create", "clusterrolebinding", "e2e-tenant", "--clusterrole=policy-reviewer", "--user=e2e-tenant")
		remove(t, "clusterrolebinding/e2e-tenant")
		eventually(t, 30*time.Second, "a review of the cluster", func() error {
			status, err := ask(tenant, review("", candidateSpec(t, "scope: {kinds: [{kind: ConfigMap}, {kind: Namespace}]}, ", policies[:2]...)))
			if err != nil {
				return err
			}
			var not []string
			for _, n := range status.Impact.NotJudged {
				not = append(not, n.Namespace+"/"+n.Kind+" "+string(n.Reason))
			}
			return expect(fmt.Sprint(status.Impact.Complete, status.Failed, not), "false 2 [/Namespace Forbidden /ConfigMap Forbidden]", nil)
		})
		refused(t, tenant, review("e2e-candidate", candidateSpec(t, "scope: {}, ", admission, bound)), "paramRef: Forbidden", "cannot get it in the namespace", "give them among the candidatePolicies")
	})
	t.Run("what is wrong", func(t *testing.T) {
		for _, test := range []struct {
			manifests []string
			more      string
			want      []string
		}{
			{[]string{strings.Replace(policies[0], "not input", "nonsense(", 1), policies[1]}, "scope: {}, ", []string{`spec.candidatePolicies[0]`, "ConstraintTemplate e2ecandidate", "rego:3"}},
			{policies[1:2], "scope: {}, ", []string{"spec.candidatePolicies[0].kind", "there is no ConstraintTemplate e2ecandidate"}},
			{policies[:2], "scope: {kinds: [{apiGroup: shop.example, kind: Offer}]}, ", []string{"spec.scope.kinds[0].kind", "there is no kind Offer"}},
			{append(policies[:2:2], namespace("x")), "scope: {}, ", []string{"spec.candidatePolicies[2].kind", "is no kind of policies"}},
		} {
			refused(t, cp.AdminKubeconfig, review("", candidateSpec(t, test.more, test.manifests...)), test.want...)
		}
	})
	t.Run("from the command line", func(t *testing.T) {
		dir := t.TempDir()
		for name, text := range map[string]string{"good.yaml": policies[0] + "---" + policies[1], "bad.yaml": policies[0] + "---" + strings.Replace(policies[1], "label: owner", "label: [owner]", 1)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, test := range []struct {
			args   []string
			status int
			want   []string
		}{
			{[]string{"--candidates", filepath.Join(dir, "good.yaml")}, 1, []string{"E2ECandidate/candidate-owner   deny", "e2e-candidate-b   ConfigMap   ", "ConfigMap e2e-candidate/bad", "of which 5 fail the review; 0 could not be judged"}},
			{[]string{"--candidates", filepath.Join(dir, "good.yaml"), "-l", "owner=me"}, 0, []string{"0 violations"}},
			{[]string{"--candidates", filepath.Join(dir, "good.yaml"), "--scope-namespaces=e2e-candidate", "-o", "json"}, 1, []string{`"complete": true`, `"failed": 2`}},
			{[]string{"--candidates", filepath.Join(dir, "bad.yaml")}, 2, []string{"bad.yaml:23: ", "label"}},
		} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, server.Binary, append([]string{"review", "--kubeconfig", cp.AdminKubeconfig}, test.args...)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			status := 0
			var exit *exec.ExitError
			if err := cmd.Run(); errors.As(err, &exit) {
				status = exit.ExitCode()
			} else if err != nil {
				t.Error(err)
			}
			for _, want := range test.want {
				if status != test.status || !strings.Contains(out.String(), want) {
					t.Errorf("%v: status %d, no %q in\n%s", test.args, status, want, out.String())
				}
			}
		}
	})
}

// TestEndlessCandidate ends at the deadline of its request, with an answer that says so,
// while another user is answered and the audit goes on.
func TestEndlessCandidate(t *testing.T) {
	apply(t, namespace("e2e-endless"), template("E2EEndlessAudit"))
	apply(t, configMap("e2e-endless", "one", ""), constraint("E2EEndlessAudit", "endless-audit", "ConfigMap", "e2e-endless", "owner"))
	remove(t, "namespace/e2e-endless", "constrainttemplate/e2eendlessaudit")
	found(t, 30*time.Second, "e2e-endless", "endless-audit", "ConfigMap/one")
	endless := strings.Replace(template("E2EEndless"), "not input", "count([1 | x := numbers.range(1, 3000)[_]; y := numbers.range(1, 3000)[_]; z := numbers.range(1, 3000)[_]; x + y + z < 0]) > 0\n        not input", 1)
	long := review("", candidateSpec(t, "scope: {}, ", endless, constraint("E2EEndless", "endless", "ConfigMap, ClusterRole", "*", "owner")))
	other := user(t, "e2e-endless-other")
	kubectl(t, "create", "clusterrolebinding", "e2e-endless-other", "--clusterrole=policy-reviewer", "--user=e2e-endless-other")
	kubectl(t, "create", "clusterrolebinding", "e2e-endless-viewer", "--clusterrole=view", "--user=e2e-endless-other")
	remove(t, "clusterrolebinding/e2e-endless-other", "clusterrolebinding/e2e-endless-viewer")
	short := review("", candidateSpec(t, "scope: {namespaces: [e2e-endless]}, ", template("E2EShort"), constraint("E2EShort", "short", "ConfigMap", "*", "owner")))
	eventually(t, 30*time.Second, "rights", func() error {
		_, err := ask(other, short)
		return err
	})

	var running sync.WaitGroup
	type answer struct {
		status *v1alpha1.ReviewStatus
		err    error
	}
	answers := make([]answer, 2)
	for i := range answers {
		// If one is refused because the third came before it, kubectl asks again.
		running.Go(func() {
			answers[i].status, answers[i].err = ask(cp.AdminKubeconfig, long, "--request-timeout=25s")
		})
	}
	eventually(t, 10*time.Second, "a third review of the same user is too many", func() error {
		spec := v1alpha1.ReviewSpec{Scope: &v1alpha1.ReviewScope{Namespaces: []string{"e2e-endless"}}}
		result := client.PolicyV1alpha1().RESTClient().Post().Resource("reviews").MaxRetries(0).Body(&v1alpha1.Review{Spec: spec}).Do(t.Context())
		var code int
		if result.StatusCode(&code); code != 429 {
			return fmt.Errorf("the answer is %d: %w", code, result.Error())
		}
		return nil
	})
	status, err := ask(other, short)
	if err != nil {
		t.Fatalf("another user: %v", err)
	}
	if status.Failed != 1 || !status.Impact.Complete {
		t.Errorf("another user: %+v", status)
	}
	apply(t, configMap("e2e-endless", "two", ""))
	found(t, 30*time.Second, "e2e-endless", "endless-audit", "ConfigMap/one", "ConfigMap/two")
	running.Wait()
	for _, a := range answers {
		if a.err != nil {
			t.Errorf("the endless review: %v", a.err)
			continue
		}
		impact := a.status.Impact
		if a.status.Allowed || impact.Complete || len(impact.NotJudged) == 0 || impact.NotJudged[0].Reason != v1alpha1.NotJudgedDeadline {
			t.Errorf("the endless review: %+v %+v", a.status, a.status.Impact)
		}
	}
	eventually(t, 10*time.Second, "the limit is free again", func() error {
		_, err := ask(cp.AdminKubeconfig, short)
		return err
	})
}

// BenchmarkCandidates judges 10,000 Pods by candidates, and reports the seconds from the
// request to the answer, and how many objects were judged:
//
//	go test -run '^$' -bench Candidates -benchtime 3x ./test/e2e
func BenchmarkCandidates(b *testing.B) {
	ctx := context.Background()
	core, err := kubernetes.NewForConfig(cp.Admin)
	if err != nil {
		b.Fatal(err)
	}
	apply(b, namespace("e2e-many"))
	remove(b, "namespace/e2e-many")
	createPods(ctx, b, core, "e2e-many", 10_000)
	latest := strings.Replace(template("E2EMany"), `not input.review.object.metadata.labels[input.parameters.label]
        msg := sprintf("label %v is missing", [input.parameters.label])`, `c := input.review.object.spec.containers[_]
        not c.resources.limits.memory
        msg := sprintf("container %v of %v has no memory limit", [c.name, input.review.object.metadata.name])`, 1)
	if !strings.Contains(latest, "memory limit") {
		b.Fatal("the template is another one")
	}
	limit := int32(100)
	spec := v1alpha1.ReviewSpec{Scope: &v1alpha1.ReviewScope{Limit: &limit}}
	for _, manifest := range []string{latest, constraint("E2EMany", "many", "Pod", "e2e-many", "a"), template("E2EManyLabels"), constraint("E2EManyLabels", "labels", "Pod", "e2e-many", "owner")} {
		data, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			b.Fatal(err)
		}
		spec.CandidatePolicies = append(spec.CandidatePolicies, runtime.RawExtension{Raw: data})
	}
	for b.Loop() {
		started := time.Now()
		answer, err := client.PolicyV1alpha1().Reviews().Create(ctx, &v1alpha1.Review{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(started).Seconds(), "s/answer")
		status := answer.Status
		if !status.Impact.Complete || status.Impact.Objects < 10_000 || status.Failed != 20_000 || len(status.Verdicts) != 100 {
			b.Fatalf("%d objects, %d failed, %d verdicts, %+v", status.Impact.Objects, status.Failed, len(status.Verdicts), status.Impact.NotJudged)
		}
		b.ReportMetric(float64(status.Impact.Objects), "objects")
		b.ReportMetric(memoryMiB(b, "VmHWM:"), "MiB-peak")
	}
}

// createPods creates Pods of two containers that no node runs.
func createPods(ctx context.Context, b *testing.B, core kubernetes.Interface, namespace string, count int) {
	b.Helper()
	work := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range work {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%05d", i), Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%100)}},
					Spec: corev1.PodSpec{
						Containers: []corev1.Container{
							{Name: "web", Image: fmt.Sprintf("registry.example/web:%d", i), Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, Args: []string{"--port=80"}},
							{Name: "log", Image: "registry.example/log:1"},
						},
						AutomountServiceAccountToken: new(bool),
					},
				}
				if _, err := core.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range count {
		work <- i
	}
	close(work)
	workers.Wait()
}
