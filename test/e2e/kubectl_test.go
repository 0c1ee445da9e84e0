package e2e

import (
	"bufio"
	"strings"
	"testing"
	"time"
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
		if out := kubectl(t, "get", "ar", "-n", "e2e-query"); strings.Contains(out, "MESSAGE") || !strings.Contains(out, "ConfigMap/b") {
			t.Errorf("get -n:\n%s", out)
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
	t.Run("api-resources", func(t *testing.T) {
		out := kubectl(t, "api-resources", "--api-group=policy.example.io", "-o", "wide", "--no-headers")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 4 {
			t.Errorf("resources:\n%s", out)
		}
		for _, line := range lines {
			if fields := strings.Fields(line); fields[len(fields)-2] != "get,list,watch" || fields[len(fields)-1] != "policy" {
				t.Errorf("verbs and categories: %s", line)
			}
		}
	})
	t.Run("writes are refused", func(t *testing.T) {
		name := strings.Fields(kubectl(t, "get", "ar", "-n", "e2e-query", "-o", "name"))[0]
		manifest := kubectl(t, "get", "-n", "e2e-query", name, "-o", "yaml")
		for _, args := range [][]string{
			{"delete", "-n", "e2e-query", name},
			{"label", "-n", "e2e-query", name, "a=b"},
			{"replace", "-f", "-"},
		} {
			if _, err := cp.Kubectl(manifest, args...); err == nil || !strings.Contains(err.Error(), "MethodNotAllowed") {
				t.Errorf("kubectl %s: %v", args[0], err)
			}
		}
	})
	t.Run("watch", func(t *testing.T) {
		cmd := cp.Command("get", "ar", "-n", "e2e-query", "-w", "-o", `jsonpath={.resource.name}{"\n"}`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // it was killed
		}()
		lines := bufio.NewScanner(out)
		seen := map[string]bool{}
		for len(seen) < 3 && lines.Scan() {
			seen[lines.Text()] = true
		}
		apply(t, configMap("e2e-query", "later", ""))
		for !seen["later"] && lines.Scan() {
			seen[lines.Text()] = true
		}
		if !seen["later"] {
			t.Error("the new finding does not come")
		}
	})
}

// TestTenant sees the findings of the one namespace that a Role grants.
func TestTenant(t *testing.T) {
	_, kubeconfig, err := cp.User("tenant")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, namespace("e2e-tenant"))
	remove(t, "namespace/e2e-tenant")
	kubectl(t, "create", "rolebinding", "tenant", "-n", "e2e-tenant", "--clusterrole=view", "--user=tenant")
	eventually(t, 15*time.Second, "aggregated role", func() error {
		_, err := cp.KubectlAs(kubeconfig, "", "get", "ar", "-n", "e2e-tenant")
		return err
	})
	for _, args := range [][]string{{"get", "ar", "-A"}, {"get", "ar", "-n", "default"}, {"get", "csum"}} {
		if _, err := cp.KubectlAs(kubeconfig, "", args...); err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
