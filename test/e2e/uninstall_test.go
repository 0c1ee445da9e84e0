package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/test/framework"
)

// TestUninstall runs hack/uninstall.sh on a cluster whose server is gone, so that a
// namespace hangs, and sees that nothing is left.
func TestUninstall(t *testing.T) {
	cluster, err := framework.StartControlPlane(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	installed, err := cluster.InstallServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := installed.Start(); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := cluster.Kubectl("", args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(out)
	}
	if _, err := cluster.Kubectl(template("E2EUninstall"), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the kind of constraints", func() error {
		_, err := cluster.Kubectl("", "wait", "--for=condition=Established", "crd/e2euninstall.constraints.gatekeeper.sh")
		return err
	})
	installed.Stop(syscall.SIGTERM)
	run("wait", "--for=condition=Available=false", "apiservice/v1alpha1.policy.example.io", "--timeout=90s")
	run("create", "namespace", "e2e-hangs")
	run("delete", "namespace", "e2e-hangs", "--wait=false")
	eventually(t, 30*time.Second, "why the namespace hangs", func() error {
		out, err := cluster.Kubectl("", "get", "namespace", "e2e-hangs", "-o", "jsonpath={.status.conditions}")
		if err == nil && !strings.Contains(out, "policy.example.io") {
			err = fmt.Errorf("conditions: %s", out)
		}
		return err
	})

	uninstall := func(args ...string) (string, error) {
		script := filepath.Join(framework.DeployDir(), "..", "..", "hack", "uninstall.sh")
		cmd := exec.CommandContext(t.Context(), script, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.AdminKubeconfig,
			"PATH="+filepath.Dir(cluster.Binaries.Kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := uninstall(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, 60*time.Second, "the namespaces are gone", func() error {
		out, err := cluster.Kubectl("", "get", "namespaces", "--field-selector=status.phase=Terminating", "-o", "name")
		return expect(strings.TrimSpace(out), "", err)
	})
	for _, kinds := range []string{"clusterroles,clusterrolebindings", "priorityclasses,flowschemas,apiservices", "rolebindings", "namespaces"} {
		for name := range strings.Lines(run("get", kinds, "-A", "-o", "name")) {
			if (strings.Contains(name, "policy-") || strings.Contains(name, "policy.example.io")) && !strings.Contains(name, "system:") && !strings.Contains(name, "admission") {
				t.Errorf("%s is left", strings.TrimSpace(name))
			}
		}
	}
	if got := run("get", "constrainttemplates", "-o", "name"); got != "constrainttemplate.templates.gatekeeper.sh/e2euninstall" {
		t.Errorf("templates are %q", got)
	}
	run("label", "crd", "constrainttemplates.templates.gatekeeper.sh", "gatekeeper.sh/system=yes")
	if out, err := uninstall("--policies"); err == nil || !strings.Contains(out, "Gatekeeper is installed") {
		t.Errorf("with Gatekeeper: %v: %s", err, out)
	}
	run("label", "crd", "constrainttemplates.templates.gatekeeper.sh", "gatekeeper.sh/system-")
	if out, err := uninstall("--policies"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if got := run("get", "crd", "-o", "name"); got != "" {
		t.Errorf("kinds that are left: %s", got)
	}
}
