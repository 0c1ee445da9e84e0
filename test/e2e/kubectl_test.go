package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// visible is how soon a change has to be visible.
const visible = 2 * time.Second

// TestKubectl asks for the findings in the ways that kubectl has.
func TestKubectl(t *testing.T) {
	apply(t, template("E2EQuery"), namespace("e2e-query"))
	remove(t, "constrainttemplate/e2equery", "namespace/e2e-query")
	apply(t, constraint("E2EQuery", "query-owner", "ConfigMap, Namespace", "e2e-query", "owner"),
		configMap("e2e-query", "a", ""), configMap("e2e-query", "b", ""), configMap("e2e-query", "good", "owner: me"))
	found(t, 20*time.Second, "e2e-query", "query-owner", "ConfigMap/a", "ConfigMap/b", "Namespace/e2e-query")

	t.Run("get", func(t *testing.T) {
		out := kubectl(t, "get", "auditresults", "-A", "-o", "wide")
		for _, want := range []string{"NAMESPACE", "RESULT", "ACTION", "CONSTRAINT", "RESOURCE", "OWNER", "LAST WRITER", "MESSAGE", "AGE", "E2EQuery/query-owner", "ConfigMap/a", "label owner is missing"} {
			if !strings.Contains(out, want) {
				t.Errorf("get -A -o wide lacks %q:\n%s", want, out)
			}
		}
		if out := kubectl(t, "get", "ar", "-n", "e2e-query"); strings.Contains(out, "OWNER") || !strings.Contains(out, "ConfigMap/b") || !strings.Contains(out, "label owner is missing") {
			t.Errorf("get -n:\n%s", out)
		}
	})
	t.Run("json", func(t *testing.T) {
		var list v1alpha1.AuditResultList
		if err := json.Unmarshal([]byte(kubectl(t, "get", "--raw", "/apis/policy.example.io/v1alpha1/namespaces/e2e-query/auditresults")), &list); err != nil {
			t.Fatal(err)
		}
		if list.Kind != "AuditResultList" || list.ResourceVersion == "" || len(list.Items) != 3 {
			t.Errorf("a %s of %d items at revision %q", list.Kind, len(list.Items), list.ResourceVersion)
		}
		var printed v1alpha1.AuditResultList
		if err := json.Unmarshal([]byte(kubectl(t, "get", "ar", "-n", "e2e-query", "-o", "json")), &printed); err != nil {
			t.Fatal(err)
		}
		for i, r := range printed.Items {
			var details bytes.Buffer
			if len(r.Violations) != 1 || json.Compact(&details, r.Violations[0].Details.Raw) != nil {
				t.Fatalf("item %d: %+v", i, r)
			}
			if r.Kind != "AuditResult" || r.APIVersion != "policy.example.io/v1alpha1" || r.UID == "" || r.FirstObserved.IsZero() ||
				r.Constraint.Kind != "E2EQuery" || r.Constraint.UID == "" || r.Resource.UID == "" || r.Result != v1alpha1.ResultFail || r.EnforcementAction != "deny" ||
				r.Violations[0].Message != "label owner is missing" || details.String() != `{"missing":"owner"}` {
				t.Errorf("item %d: %+v", i, r)
			}
		}
	})
	t.Run("selectors", func(t *testing.T) {
		for selector, want := range map[string]string{
			"--field-selector=constraint.kind=E2EQuery,resource.kind=Namespace": "e2e-query ",
			"--field-selector=constraint.kind=E2EQuery,resource.name!=a":        "b e2e-query ",
			"--field-selector=result=error":                                     "",
			"-l=policy.example.io/constraint-name=query-owner":                  "a b e2e-query ",
			"-l=policy.example.io/resource-kind in (Namespace, Pod)":            "e2e-query ",
			"--chunk-size=2": "a b e2e-query ",
			"--field-selector=resource.kind=ConfigMap,enforcementAction=deny":    "a b ",
			"--field-selector=resource.kind=ConfigMap,enforcementAction!=deny":   "",
			"--field-selector=metadata.namespace=other,constraint.kind=E2EQuery": "",
		} {
			if got := kubectl(t, "get", "ar", "-n", "e2e-query", selector, "-o", "jsonpath={range .items[*]}{.resource.name} {end}"); got != want {
				t.Errorf("%s: got %q, want %q", selector, got, want)
			}
		}
		if _, err := cp.Kubectl("", "get", "ar", "-A", "--field-selector=spec.color=red"); err == nil || !strings.Contains(err.Error(), "resource.kind") {
			t.Errorf("an unknown field: %v", err)
		}
		if _, err := cp.Kubectl("", "get", "--raw", "/apis/policy.example.io/v1alpha1/auditresults?limit=1&continue=nonsense"); err == nil || !strings.Contains(err.Error(), "continue token") {
			t.Errorf("a bad continue token: %v", err)
		}
	})
	t.Run("describe and explain", func(t *testing.T) {
		if out := kubectl(t, "describe", "ar", "-n", "e2e-query"); !strings.Contains(out, "label owner is missing") || !strings.Contains(out, "First Observed") {
			t.Errorf("describe:\n%s", out)
		}
		if out := kubectl(t, "explain", "auditresults.violations"); !strings.Contains(out, "message of the policy") {
			t.Errorf("explain:\n%s", out)
		}
		if out := kubectl(t, "explain", "auditresults", "--recursive"); !strings.Contains(out, "firstObserved") {
			t.Errorf("explain --recursive:\n%s", out)
		}
	})
	t.Run("sort-by", func(t *testing.T) {
		out := kubectl(t, "get", "ar", "-n", "e2e-query", "--sort-by=.resource.name", "--chunk-size=1", "-o", "custom-columns=R:.resource.name", "--no-headers")
		if got := strings.Fields(out); !slices.Equal(got, []string{"a", "b", "e2e-query"}) {
			t.Errorf("sorted by name: %q", got)
		}
	})
	t.Run("wait and watch of one", func(t *testing.T) {
		apply(t, configMap("e2e-query", "waited", ""))
		found(t, 20*time.Second, "e2e-query", "query-owner", "ConfigMap/a", "ConfigMap/b", "ConfigMap/waited", "Namespace/e2e-query")
		name := kubectl(t, "get", "ar", "-n", "e2e-query", "--field-selector=resource.name=waited", "-o", "jsonpath={.items[0].metadata.name}")
		kubectl(t, "wait", "ar/"+name, "-n", "e2e-query", "--for=jsonpath={.result}=fail", "--timeout=10s")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		// It prints what is there, and then what changes.
		cmd := cp.Command(ctx, cp.AdminKubeconfig, "get", "ar", name, "-n", "e2e-query", "-w", "--output-watch-events", "-o", `jsonpath={.type} {.object.resource.name}{"\n"}`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for _, want := range []string{"ADDED waited", "DELETED waited"} {
			if !lines.Scan() || lines.Text() != want {
				t.Fatalf("got %q, want %q", lines.Text(), want)
			}
			if want == "ADDED waited" {
				kubectl(t, "delete", "configmap", "waited", "-n", "e2e-query")
			}
		}
		cancel()
		_ = cmd.Wait() // it was killed
		kubectl(t, "wait", "ar/"+name, "-n", "e2e-query", "--for=delete", "--timeout=10s")
	})
	t.Run("api-resources", func(t *testing.T) {
		out := kubectl(t, "api-resources", "--api-group=policy.example.io", "-o", "wide", "--no-headers")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 9 {
			t.Errorf("resources:\n%s", out)
		}
		for _, line := range lines {
			if strings.Contains(line, "reviews ") {
				if fields := strings.Fields(line); fields[len(fields)-1] != "create" {
					t.Errorf("verbs: %s", line)
				}
				continue
			}
			if fields := strings.Fields(line); fields[len(fields)-2] != "get,list,watch" || fields[len(fields)-1] != "policy" {
				t.Errorf("verbs and categories: %s", line)
			}
		}
	})
	t.Run("writes are refused", func(t *testing.T) {
		t.Setenv("KUBE_EDITOR", "sed -i s/deny/warn/")
		name := strings.Fields(kubectl(t, "get", "ar", "-n", "e2e-query", "-o", "name"))[0]
		manifest := kubectl(t, "get", "-n", "e2e-query", name, "-o", "yaml")
		for _, args := range [][]string{
			{"delete", "-n", "e2e-query", name},
			{"delete", "ar", "-n", "e2e-query", "--all"},
			{"edit", "-n", "e2e-query", name},
			{"label", "-n", "e2e-query", name, "a=b"},
			{"apply", "-f", "-"},
			{"apply", "--server-side", "-f", "-"},
			{"replace", "-f", "-"},
			{"create", "-f", "-"},
		} {
			_, err := cp.Kubectl(strings.Replace(manifest, "deny", "warn", 1), args...)
			if err == nil || !strings.Contains(err.Error(), "the server does not allow this method on the requested resource") {
				t.Errorf("kubectl %s: %v", args[0], err)
			}
		}
		if after := kubectl(t, "get", "-n", "e2e-query", name, "-o", "yaml"); after != manifest {
			t.Errorf("was\n%s\nand is\n%s", manifest, after)
		}
	})
	t.Run("watch", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := cp.Command(ctx, cp.AdminKubeconfig, "get", "ar", "-n", "e2e-query", "-w", "--output-watch-events", "-o", `jsonpath={.type} {.object.resource.name}{"\n"}`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		// await reads as many events as are wanted; compared without their order.
		await := func(want ...string) {
			t.Helper()
			got := []string{}
			for len(got) < len(want) && lines.Scan() {
				got = append(got, lines.Text())
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		await("ADDED a", "ADDED b", "ADDED e2e-query")
		apply(t, configMap("e2e-query", "later", ""))
		await("ADDED later")
		apply(t, constraint("E2EQuery", "query-owner", "ConfigMap", "e2e-query", "owner"))
		// The other results are of the constraint's new generation.
		await("DELETED e2e-query", "MODIFIED a", "MODIFIED b", "MODIFIED later")
		kubectl(t, "delete", "configmap", "later", "-n", "e2e-query")
		await("DELETED later")
		cancel()
		_ = cmd.Wait() // it was killed
	})
}

// TestTenant sees the findings of the one namespace that a Role grants. The Role is
// the built-in view, to which policy-viewer is aggregated.
func TestTenant(t *testing.T) {
	_, kubeconfig, err := cp.User("tenant", "tenants")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, template("E2ETenant"), namespace("e2e-tenant"), namespace("e2e-other"))
	remove(t, "constrainttemplate/e2etenant", "namespace/e2e-tenant", "namespace/e2e-other")
	apply(t, constraint("E2ETenant", "tenant", "ConfigMap", "e2e-*", "owner"), configMap("e2e-tenant", "mine", ""), configMap("e2e-other", "theirs", ""))
	found(t, 20*time.Second, "e2e-tenant", "tenant", "ConfigMap/mine")
	found(t, 20*time.Second, "e2e-other", "tenant", "ConfigMap/theirs")
	if _, err := cp.KubectlAs(kubeconfig, "", "get", "ar", "-n", "e2e-tenant"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("without a Role: %v", err)
	}
	kubectl(t, "create", "rolebinding", "tenant", "-n", "e2e-tenant", "--clusterrole=view", "--group=tenants")
	eventually(t, 20*time.Second, "what the Role grants", func() error {
		out, err := cp.KubectlAs(kubeconfig, "", "get", "ar", "-n", "e2e-tenant", "--field-selector=constraint.name=tenant", "-o", "jsonpath={.items[*].resource.name}")
		if err == nil && out != "mine" {
			err = fmt.Errorf("got %q", out)
		}
		return err
	})
	for _, args := range [][]string{{"get", "ar", "-A"}, {"get", "ar", "-n", "e2e-other"}, {"get", "car"}, {"get", "arun"}, {"get", "csum"}} {
		if _, err := cp.KubectlAs(kubeconfig, "", args...); err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
