package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// review is a manifest of a Review or, in a namespace, a LocalReview.
func review(namespace, spec string) string {
	if namespace == "" {
		return "{apiVersion: policy.example.io/v1alpha1, kind: Review, spec: {" + spec + "}}"
	}
	return fmt.Sprintf("{apiVersion: policy.example.io/v1alpha1, kind: LocalReview, metadata: {namespace: %s}, spec: {%s}}", namespace, spec)
}

// messages of an answer, a line a violation, behind whether it is allowed.
const messages = `jsonpath={.status.allowed}{range .status.verdicts[*]}{"\n"}{.result} {.message}{range .violations[*]}{.message}; {end}{end}`

// user returns the kubeconfig of a user.
func user(t *testing.T, name string) string {
	t.Helper()
	_, kubeconfig, err := cp.User(name)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// create creates a review. To see whether the server validates fields, kubectl looks for
// an operation to patch, which reviews do not have, and then at
// CustomResourceDefinitions, which users may not list; with SelfSubjectAccessReviews it
// does the same.
func create(kubeconfig, manifest string, args ...string) (string, error) {
	args = append([]string{"create", "-f", "-"}, args...)
	if kubeconfig != cp.AdminKubeconfig {
		args = append(args, "--validate=false")
	}
	return cp.KubectlAs(kubeconfig, manifest, args...)
}

// answered creates a review until the answer is as wanted: rights and policies take a
// moment.
func answered(t *testing.T, kubeconfig, manifest, want string) {
	t.Helper()
	eventually(t, 30*time.Second, "answer", func() error {
		got, err := create(kubeconfig, manifest, "-o", messages)
		return expect(got, want, err)
	})
}

// refused creates a review that is not answered.
func refused(t *testing.T, kubeconfig, manifest string, want ...string) {
	t.Helper()
	out, err := create(kubeconfig, manifest)
	if err == nil {
		t.Errorf("it is answered: %s", out)
		return
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the answer does not say %q: %.2000v", part, err)
		}
	}
}

// TestReviews asks with kubectl, as users with more and less rights.
func TestReviews(t *testing.T) {
	apply(t, template("E2EReview"), namespace("e2e-review"), namespace("e2e-review-other"))
	apply(t, constraint("E2EReview", "review-owner", "ConfigMap, Pod", "e2e-review*", "owner"), configMap("e2e-review", "there", ""))
	remove(t, "constrainttemplate/e2ereview", "namespace/e2e-review", "namespace/e2e-review-other")
	filter := "enforcementPoint: validation.gatekeeper.sh, constraints: [{kind: E2EReview}], "
	object := "object: {apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: e2e-review}}"
	const missing = "false\nfail label owner is missing; "

	t.Run("as an administrator", func(t *testing.T) {
		answered(t, cp.AdminKubeconfig, review("", filter+object), missing)
		out, err := cp.Kubectl(review("", filter+object), "create", "-f", "-", "-o", "yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"allowed: false", "message: label owner is missing", "policyDigest: ", "missing: owner", "name: review-owner", "generation: 1"} {
			if !strings.Contains(out, want) {
				t.Errorf("there is no %q in\n%s", want, out)
			}
		}
		if strings.Contains(out, "managedFields") {
			t.Errorf("fields are managed:\n%s", out)
		}
		if out, err := cp.Kubectl("", "get", "configmap", "new", "-n", "e2e-review", "--ignore-not-found"); err != nil || out != "" {
			t.Errorf("the object was created: %s, %v", out, err)
		}
		answered(t, cp.AdminKubeconfig, review("", filter+strings.Replace(object, "name: new", "name: new, labels: {owner: me}", 1)), "true\npass ")
		answered(t, cp.AdminKubeconfig, review("", filter+"object: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: e2e-review}, spec: {template: {spec: {}}}}"),
			"false\nfail [Implied by Deployment web] label owner is missing; ")
	})
	t.Run("by a Role only", func(t *testing.T) {
		bot := user(t, "e2e-review-bot")
		kubectl(t, "create", "role", "reviewer", "-n", "e2e-review", "--verb=create", "--resource=localreviews.policy.example.io")
		kubectl(t, "create", "rolebinding", "reviewer", "-n", "e2e-review", "--role=reviewer", "--user=e2e-review-bot")
		answered(t, bot, review("e2e-review", filter+object), missing)
		answered(t, bot, review("e2e-review", filter+strings.Replace(object, ", namespace: e2e-review", "", 1)), missing)
		refused(t, bot, review("e2e-review", strings.Replace(object, "e2e-review", "e2e-review-other", 1)), "spec.object.metadata.namespace: Invalid value", "a LocalReview is for objects in its namespace, e2e-review")
		refused(t, bot, review("e2e-review", "object: {apiVersion: v1, kind: Namespace, metadata: {name: e2e-review}}"), "this kind is in none")
		refused(t, bot, review("e2e-review-other", object), "Forbidden", "localreviews")
		refused(t, bot, review("", object), "Forbidden", "cannot create resource \"reviews\"")
		refused(t, bot, review("e2e-review", "resource: {apiVersion: v1, kind: ConfigMap, name: there}"), `configmaps "there" is forbidden: user "e2e-review-bot" cannot get it`)

		// Whoever may edit a namespace may review in it.
		kubectl(t, "create", "rolebinding", "editor", "-n", "e2e-review-other", "--clusterrole=edit", "--user=e2e-review-editor")
		eventually(t, 30*time.Second, "the right of editors", func() error {
			out, err := cp.KubectlAs(user(t, "e2e-review-editor"), "", "auth", "can-i", "create", "localreviews.policy.example.io", "-n", "e2e-review-other")
			return expect(strings.TrimSpace(out), "yes", err)
		})
	})
	t.Run("references", func(t *testing.T) {
		reader := user(t, "e2e-review-reader")
		kubectl(t, "create", "clusterrolebinding", "e2e-review-reader", "--clusterrole=policy-reviewer", "--user=e2e-review-reader")
		remove(t, "clusterrolebinding/e2e-review-reader")
		reference := filter + "resource: {apiVersion: v1, kind: ConfigMap, namespace: e2e-review, name: there}"
		answered(t, reader, review("", filter+object), missing)
		refused(t, reader, review("", reference), `configmaps "there" is forbidden: user "e2e-review-reader" cannot get it in the namespace "e2e-review"`)
		kubectl(t, "create", "role", "reader", "-n", "e2e-review", "--verb=get", "--resource=configmaps")
		kubectl(t, "create", "rolebinding", "reader", "-n", "e2e-review", "--role=reader", "--user=e2e-review-reader")
		answered(t, reader, review("", reference), missing)
		answered(t, reader, review("", "operation: DELETE, "+reference), missing)
		refused(t, reader, review("", strings.Replace(reference, "name: there", "name: absent", 1)), `"absent" not found`)
	})
	t.Run("impersonation", func(t *testing.T) {
		asker := user(t, "e2e-review-asker")
		kubectl(t, "create", "clusterrolebinding", "e2e-review-asker", "--clusterrole=policy-reviewer", "--user=e2e-review-asker")
		remove(t, "clusterrolebinding/e2e-review-asker", "clusterrolebinding/e2e-review-impersonator", "clusterrole/e2e-review-impersonator")
		as := filter + "userInfo: {username: eve, groups: [ops]}, " + object
		answered(t, asker, review("", filter+object), missing)
		refused(t, asker, review("", as), `users "eve" is forbidden: user "e2e-review-asker" cannot impersonate it`)
		kubectl(t, "create", "clusterrole", "e2e-review-impersonator", "--verb=impersonate", "--resource=users", "--resource-name=eve")
		kubectl(t, "create", "clusterrolebinding", "e2e-review-impersonator", "--clusterrole=e2e-review-impersonator", "--user=e2e-review-asker")
		eventually(t, 30*time.Second, "the groups are what is refused", func() error {
			_, err := create(asker, review("", as))
			if err == nil || !strings.Contains(err.Error(), `groups "ops" is forbidden`) {
				return fmt.Errorf("the answer is %w", err)
			}
			return nil
		})
		answered(t, asker, review("", strings.Replace(as, ", groups: [ops]", "", 1)), missing)
	})
	t.Run("bad input", func(t *testing.T) {
		many := strings.TrimSuffix(strings.Repeat("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}, ", 101), ", ")
		for _, test := range []struct{ spec, want string }{
			{"object: {apiVersion: shop.example/v1, kind: Offer, metadata: {name: o}}", "the cluster has no kind Offer in shop.example/v1"},
			{"object: {metadata: {name: o}}", "spec.object.apiVersion: Required value"},
			{"object: {apiVersion: v1, kind: ConfigMap, metadata: {name: o}, data: {x: " + strings.Repeat("x", 3<<20) + "}}", "limit is 3145728"},
			{"objects: [" + many + "]", "spec.objects: Too many: 101: must have at most 100 items"},
			{"operation: CONNECT, " + object, "spec.operation: Unsupported value"},
			{"", "exactly one of object, objects, resource and scope"},
			{"unknown: 7, " + object, "unknown field"},
		} {
			refused(t, cp.AdminKubeconfig, review("", test.spec), test.want)
		}
	})
	t.Run("from the command line", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "new.yaml")
		if err := os.WriteFile(file, []byte(configMap("e2e-review", "new", "")+"---\n"+configMap("e2e-review", "fine", "owner: me")), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			args   []string
			status int
			want   string
		}{
			{[]string{"--kubeconfig", cp.AdminKubeconfig}, 1, "ConfigMap e2e-review/new"},
			{[]string{"--kubeconfig", user(t, "e2e-review-bot"), "-n", "e2e-review"}, 1, "label owner is missing"},
			{[]string{"--kubeconfig", user(t, "e2e-review-bot")}, 2, "cannot create resource \"reviews\""},
		} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, server.Binary, append([]string{"review", "-f", file, "--enforcement-point=validation.gatekeeper.sh"}, test.args...)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != test.status || !strings.Contains(out.String(), test.want) || strings.Contains(out.String(), "e2e-review/fine") {
				t.Errorf("%v: %v\n%s", test.args, err, out.String())
			}
		}
	})
}

// TestReviewsAndAdmission compares reviews by ValidatingAdmissionPolicies with what the
// kube-apiserver says of the same requests as dry runs, by the same user.
func TestReviewsAndAdmission(t *testing.T) {
	policies := map[string]string{
		"user":       `validations: [{expression: "request.userInfo.username != 'e2e-admission'", messageExpression: "'not ' + request.userInfo.username + ' ' + request.operation"}]`,
		"old":        `validations: [{expression: "oldObject == null || object == null || object.data == oldObject.data", messageExpression: "'from ' + oldObject.data.a + ' to ' + object.data.a"}]`,
		"gone":       `validations: [{expression: "object != null", messageExpression: "'stays ' + oldObject.data.a"}]`,
		"authorizer": `validations: [{expression: "authorizer.group('').resource('secrets').namespace('e2e-admission').check('get').allowed()", message: may not read Secrets}]`,
		"condition":  "matchConditions: [{name: c, expression: \"request.operation == 'UPDATE'\"}]\nvalidations: [{expression: \"false\", message: updated}]",
		"namespace":  `validations: [{expression: "namespaceObject.metadata.labels['e2e'] == 'x'", messageExpression: "'e2e is ' + namespaceObject.metadata.labels['e2e']"}]`,
		"options":    `validations: [{expression: "!has(request.options.kind)", messageExpression: "string(request.options.kind)"}]`,
		"request":    `validations: [{expression: "false", messageExpression: "request.kind.kind + ' ' + request.resource.resource + ' ' + request.name + ' ' + request.namespace"}]`,
	}
	apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: e2e-admission, labels: {e2e: admission}}\n",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: there, namespace: e2e-admission}, data: {a: one}}")
	remove(t, "namespace/e2e-admission")
	kubeconfig := user(t, "e2e-admission")
	kubectl(t, "create", "role", "admission", "-n", "e2e-admission", "--verb=create,get,update,delete", "--resource=configmaps,localreviews.policy.example.io")
	kubectl(t, "create", "rolebinding", "admission", "-n", "e2e-admission", "--role=admission", "--user=e2e-admission")
	const (
		created = "{apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: e2e-admission}, data: {a: one}}"
		there   = "{apiVersion: v1, kind: ConfigMap, metadata: {name: there, namespace: e2e-admission}, data: {a: one}}"
		changed = "{apiVersion: v1, kind: ConfigMap, metadata: {name: there, namespace: e2e-admission}, data: {a: two}}"
	)
	requests := []struct{ spec, object, verb string }{
		{"object: " + created, created, "create"},
		{"operation: UPDATE, object: " + changed + ", oldObject: " + there, changed, "replace"},
		{"operation: DELETE, oldObject: " + there, there, "delete"},
	}
	for name, spec := range policies {
		t.Run(name, func(t *testing.T) {
			policy := "e2e-admission-" + name
			apply(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: ["*"], resources: [configmaps]}]}
  %s
`, policy, strings.ReplaceAll(spec, "\n", "\n  ")), fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s-binding}
spec:
  policyName: %[1]s
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {e2e: admission}}}
`, policy))
			defer kubectl(t, "delete", "validatingadmissionpolicybinding/"+policy+"-binding", "validatingadmissionpolicy/"+policy)
			eventually(t, 60*time.Second, "the same answers", func() error {
				denials := 0
				for _, r := range requests {
					_, err := cp.KubectlAs(kubeconfig, r.object, r.verb, "--dry-run=server", "-f", "-")
					denied := ""
					if err != nil {
						_, denied, _ = strings.Cut(err.Error(), fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s-binding' denied request: ", policy, policy))
						if denied = strings.TrimSpace(denied); denied == "" {
							return fmt.Errorf("%s: %w", r.verb, err)
						}
						denials++
					}
					got, err := create(kubeconfig, review("e2e-admission", r.spec+", constraints: [{kind: "+policy+"}]"),
						"-o", `jsonpath={range .status.verdicts[*]}{.message}{.violations[*].message}{end}`)
					if err != nil {
						return err
					}
					if got != denied {
						return fmt.Errorf("%s: the kube-apiserver says %q, the review %q", r.verb, denied, got)
					}
				}
				if denials == 0 {
					return errors.New("nothing is denied yet")
				}
				return nil
			})
		})
	}
}
