package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"policy.example.io/policy-apiserver/test/framework"
)

// webhookName is the one of artifacts/deploy/enforcement.
const webhookName = "validation.policy.example.io"

// install makes the kube-apiserver ask the webhook, as artifacts/deploy/enforcement has
// it with some changes, and no longer when the test ends. port is that of the webhook if
// it is not the server's.
func install(t testing.TB, port int, change func(*admissionregistrationv1.ValidatingWebhook)) {
	t.Helper()
	config, err := server.WebhookConfiguration(port)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&config.Webhooks[0])
	}
	manifest, err := framework.Manifest(config)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, manifest)
}

// admitted is what kubectl says of a request: what denies it, and warnings.
type admitted struct{ Denials, Warnings []string }

// admit runs kubectl. The error is none of the webhook's denials.
func admit(kubeconfig, manifest string, args ...string) (admitted, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := cp.Command(ctx, kubeconfig, args...)
	cmd.Stdin = strings.NewReader(manifest)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var out admitted
	text := stderr.String()
	for _, line := range strings.Split(text, "\n") {
		if warning, ok := strings.CutPrefix(line, "Warning: "); ok {
			out.Warnings = append(out.Warnings, warning)
			text = strings.Replace(text, line+"\n", "", 1)
		}
	}
	if err == nil {
		return out, nil
	}
	_, denials, denied := strings.Cut(text, fmt.Sprintf("admission webhook %q denied the request: ", webhookName))
	if !denied {
		return out, fmt.Errorf("%w: %s", err, text)
	}
	out.Denials = strings.Split(strings.TrimSpace(denials), "\n")
	return out, nil
}

// reviewed is what a review says of the same.
func reviewed(t *testing.T, spec string) admitted {
	t.Helper()
	text, err := create(cp.AdminKubeconfig, review("", "enforcementPoint: validation.gatekeeper.sh, constraints: [{kind: E2EEnforce}], "+spec),
		"-o", `jsonpath={range .status.verdicts[*]}{range .violations[*]}{.message}{end}|{.constraint.name}|{.enforcementActions}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	var out admitted
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), "|", 3)
		if parts[0] == "" {
			continue
		}
		said := fmt.Sprintf("[%s] %s", parts[1], parts[0])
		if strings.Contains(parts[2], "deny") {
			out.Denials = append(out.Denials, said)
		}
		if strings.Contains(parts[2], "warn") {
			out.Warnings = append(out.Warnings, said)
		}
	}
	slices.Sort(out.Denials)
	slices.Sort(out.Warnings)
	return out
}

// becomes runs kubectl until what it says is as wanted: the webhook takes a moment.
func becomes(t *testing.T, want admitted, manifest string, args ...string) {
	t.Helper()
	eventually(t, 30*time.Second, "admission", func() error {
		got, err := admit(cp.AdminKubeconfig, manifest, args...)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// TestEnforcement installs the webhook as artifacts/deploy/enforcement has it.
func TestEnforcement(t *testing.T) {
	with := func(manifest, spec string) string { return manifest + "  " + spec + "\n" }
	apply(t, template("E2EEnforce"), namespace("e2e-enforce"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: e2e-enforce-exempt, labels: {policy.example.io/exempt: 'yes'}}\n")
	apply(t,
		configMap("e2e-enforce", "there", ""),
		constraint("E2EEnforce", "enforce-owner", "ConfigMap, PodExecOptions, Namespace", "e2e-enforce*", "owner"),
		with(constraint("E2EEnforce", "enforce-team", "ConfigMap", "e2e-enforce*", "team"), "enforcementAction: warn"),
		with(constraint("E2EEnforce", "enforce-cost", "ConfigMap", "e2e-enforce*", "cost"), "enforcementAction: dryrun"),
		with(constraint("E2EEnforce", "enforce-audit", "ConfigMap", "e2e-enforce*", "audit"), "enforcementAction: scoped\n  scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}]"),
		with(constraint("E2EEnforce", "enforce-tier", "ConfigMap", "e2e-enforce*", "tier"), "enforcementAction: scoped\n  scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: validation.gatekeeper.sh}]}]"))
	remove(t, "constrainttemplate/e2eenforce", "namespace/e2e-enforce", "namespace/e2e-enforce-exempt", "namespace/e2e-enforce-new")
	remove(t, "validatingwebhookconfiguration/policy-apiserver") // first
	withDelete := func(hook *admissionregistrationv1.ValidatingWebhook) {
		hook.Rules[0].Operations = append(hook.Rules[0].Operations, admissionregistrationv1.Delete)
	}
	install(t, 0, withDelete)
	owner := []string{"[enforce-owner] label owner is missing"}
	team, tier := "[enforce-team] label team is missing", "[enforce-tier] label tier is missing"
	becomes(t, admitted{owner, []string{team, tier}}, configMap("e2e-enforce", "new", ""), "create", "--dry-run=server", "-f", "-")

	t.Run("as reviewed", func(t *testing.T) {
		for _, labels := range []string{"", "owner: me", "team: us", "owner: me, team: us", "owner: me, tier: one", "owner: me, team: us, tier: one, cost: high"} {
			manifest := configMap("e2e-enforce", "new", labels)
			want := reviewed(t, "object: {apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: e2e-enforce, labels: {"+labels+"}}}")
			for _, args := range [][]string{{"create", "--dry-run=server", "-f", "-"}, {"create", "-f", "-"}} {
				got, err := admit(cp.AdminKubeconfig, manifest, args...)
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("%s of {%s} (-review +admission):\n%s%v", args, labels, diff, err)
				}
			}
			exists := kubectl(t, "get", "configmap", "new", "-n", "e2e-enforce", "--ignore-not-found", "-o", "name")
			if (exists != "") != (len(want.Denials) == 0) {
				t.Errorf("{%s}: it exists: %q, denied by %q", labels, exists, want.Denials)
			}
			if exists != "" {
				// What has an owner may go.
				kubectl(t, "delete", "configmap", "new", "-n", "e2e-enforce")
			}
		}
	})
	t.Run("update", func(t *testing.T) {
		becomes(t, admitted{owner, []string{team, tier}}, "", "annotate", "configmap", "there", "-n", "e2e-enforce", "a=b")
		becomes(t, admitted{nil, []string{tier}}, "", "label", "configmap", "there", "-n", "e2e-enforce", "owner=me", "team=us", "--dry-run=server")
	})
	t.Run("delete", func(t *testing.T) {
		becomes(t, admitted{owner, []string{team, tier}}, "", "delete", "configmap", "there", "-n", "e2e-enforce")
	})
	t.Run("connect", func(t *testing.T) {
		becomes(t, admitted{}, "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: e2e-enforce}, spec: {containers: [{name: c, image: none.example/c}]}}", "apply", "-f", "-")
		becomes(t, admitted{Denials: owner}, "", "exec", "-n", "e2e-enforce", "p", "--", "true")
	})
	t.Run("exempt", func(t *testing.T) {
		becomes(t, admitted{}, configMap("e2e-enforce-exempt", "new", ""), "create", "--dry-run=server", "-f", "-")
		before, err := server.Metric(`policy_apiserver_admission_requests_total{operation="CREATE",result="exempt"}`)
		if err != nil {
			t.Fatal(err)
		}
		// The server leaves its own namespace alone, whatever the kube-apiserver asks.
		install(t, 0, func(hook *admissionregistrationv1.ValidatingWebhook) { hook.NamespaceSelector = nil })
		eventually(t, 30*time.Second, "exemption by the server", func() error {
			if _, err := cp.Kubectl(configMap("policy-system", "new", ""), "create", "--dry-run=server", "-f", "-"); err != nil {
				return err
			}
			after, err := server.Metric(`policy_apiserver_admission_requests_total{operation="CREATE",result="exempt"}`)
			if err == nil && after == before {
				err = errors.New("it was not asked")
			}
			return err
		})
		becomes(t, admitted{owner, []string{team, tier}}, configMap("e2e-enforce-exempt", "new", ""), "create", "--dry-run=server", "-f", "-")
	})
	t.Run("a new namespace", func(t *testing.T) {
		becomes(t, admitted{Denials: owner}, namespace("e2e-enforce-new"), "create", "-f", "-")
		becomes(t, admitted{}, strings.Replace(namespace("e2e-enforce-new"), "new}", "new, labels: {owner: me}}", 1), "create", "-f", "-")
		becomes(t, admitted{owner, []string{team, tier}}, configMap("e2e-enforce-new", "new", ""), "create", "-f", "-")
	})
	t.Run("bad input", badInput)
	t.Run("away", func(t *testing.T) {
		server.Stop(syscall.SIGTERM)
		becomes(t, admitted{}, configMap("e2e-enforce", "ignored", ""), "create", "-f", "-")
		fail := admissionregistrationv1.Fail
		install(t, 0, func(hook *admissionregistrationv1.ValidatingWebhook) {
			hook.FailurePolicy = &fail
			hook.NamespaceSelector.MatchExpressions[0].Values = append(hook.NamespaceSelector.MatchExpressions[0].Values, "default")
		})
		eventually(t, 30*time.Second, "failure", func() error {
			_, err := admit(cp.AdminKubeconfig, configMap("e2e-enforce", "refused", "owner: me"), "create", "--dry-run=server", "-f", "-")
			if err == nil || !strings.Contains(err.Error(), `failed calling webhook "`+webhookName+`"`) {
				return fmt.Errorf("kubectl says %w", err)
			}
			return nil
		})
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		becomes(t, admitted{owner, []string{team, tier}}, configMap("e2e-enforce", "refused", ""), "create", "--dry-run=server", "-f", "-")
		becomes(t, admitted{nil, []string{team, tier}}, configMap("e2e-enforce", "refused", "owner: me"), "create", "--dry-run=server", "-f", "-")
	})
}

// badInput posts what no kube-apiserver would.
func badInput(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // whom it is, other tests look at
	defer client.CloseIdleConnections()
	request := func(size int) string {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Secret"},"resource":{"group":"","version":"v1","resource":"secrets"},` +
			`"operation":"CREATE","name":"s","namespace":"default","object":{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"},"data":{"x":"` + strings.Repeat("x", size) + `"}}}}`
	}
	for _, test := range []struct {
		method, path, media, body string
		code                      int
		want                      string
	}{
		{"POST", "/v1/admit?timeout=5s", "application/json", request(1), 200, `"allowed":true`},
		{"POST", "/v1/admit", "application/json", request(4 << 20), 200, `"allowed":true`},
		{"POST", "/v1/admit", "application/json", request(8 << 20), 413, "at most 7340032 bytes"},
		{"POST", "/v1/admit", "application/json", `{"apiVersion":"v1","kind":"Pod"}`, 400, "has to be an AdmissionReview of admission.k8s.io/v1"},
		{"POST", "/v1/admit", "application/json", "nonsense", 400, "the body is no AdmissionReview"},
		{"POST", "/v1/admit", "application/vnd.kubernetes.protobuf", "k8s", 415, "application/json"},
		{"GET", "/v1/admit", "", "", 405, "not supported"},
		{"GET", "/apis", "", "", 404, "there is nothing at /apis"},
	} {
		r, err := http.NewRequest(test.method, "https://"+server.WebhookAddress()+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", test.media)
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.code || !strings.Contains(string(body), test.want) {
			t.Errorf("%s %s %.60s: %d %.300s, %v", test.method, test.path, test.body, response.StatusCode, body, err)
		}
	}
}
