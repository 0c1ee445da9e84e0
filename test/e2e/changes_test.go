package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// changed waits until a list of changes has exactly these lines: type, reason, kind and
// name of the object.
func changed(t testing.TB, what string, want []string, args ...string) {
	t.Helper()
	eventually(t, 20*time.Second, what, func() error {
		out, err := cp.Kubectl("", append([]string{
			"get", "-o", `jsonpath={range .items[*]}{.type} {.reason} {.resource.kind}/{.resource.name}{"\n"}{end}`,
		}, args...)...)
		return expect(strings.TrimSpace(out), strings.Join(want, "\n"), err)
	})
}

// TestChanges asks with kubectl what is new since a time and what was resolved, until
// after the Namespace is gone.
func TestChanges(t *testing.T) {
	apply(t, template("E2EChange"), namespace("e2e-change"))
	remove(t, "constrainttemplate/e2echange", "namespace/e2e-change")
	apply(t, constraint("E2EChange", "change-owner", "ConfigMap", "e2e-change", "owner"), configMap("e2e-change", "old", ""))
	found(t, 20*time.Second, "e2e-change", "change-owner", "ConfigMap/old")
	settled(t)

	// settled has waited for longer than the second in which the old one opened.
	mark := fmt.Sprintf("policy.example.io/time>%s", time.Now().UTC().Add(-time.Second).Format("20060102150405"))
	apply(t, configMap("e2e-change", "new", ""))
	changed(t, "what is new", []string{"opened objectCreated ConfigMap/new"},
		"auditchanges", "-A", "--field-selector=type=opened,constraint.name=change-owner", "-l", mark)
	apply(t, configMap("e2e-change", "old", "owner: me"))
	kubectl(t, "delete", "configmap", "new", "-n", "e2e-change")
	changed(t, "what was resolved", []string{"resolved objectDeleted ConfigMap/new", "resolved objectChanged ConfigMap/old"},
		"ach", "-n", "e2e-change", "--field-selector=type=resolved,constraint.kind=E2EChange")

	out := kubectl(t, "get", "ach", "-n", "e2e-change", "--field-selector=type=resolved,reason=objectDeleted")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 2 || strings.Join(strings.Fields(lines[0]), " ") != "NAME TYPE REASON ACTION CONSTRAINT RESOURCE MESSAGE AGE" {
		t.Errorf("kubectl prints %q", out)
	}
	if _, err := cp.Kubectl("", "get", "ach", "-A", "--field-selector=type=closed"); err == nil || !strings.Contains(err.Error(), `"opened" "resolved"`) {
		t.Errorf("a type that there is not: %v", err)
	}

	alice := newAccessUser(t, "change-alice", "e2e-change-tenants")
	kubectl(t, "create", "rolebinding", "alice", "-n", "e2e-change", "--clusterrole=view", "--user=change-alice")
	alice.sees(t, "e2e-change/ConfigMap/new e2e-change/ConfigMap/old", "ach", "-n", "e2e-change", "--field-selector=type=resolved,constraint.kind=E2EChange")

	kubectl(t, "delete", "namespace", "e2e-change", "--timeout=60s")
	apply(t, namespace("e2e-change"))
	changed(t, "what the next tenant sees", []string{}, "ach", "-n", "e2e-change", "--field-selector=resource.name=new")
	changed(t, "what auditors see of the last one", []string{"opened objectCreated ConfigMap/new", "resolved objectDeleted ConfigMap/new"},
		"cach", "--field-selector=constraint.kind=E2EChange,resource.name=new")
}
