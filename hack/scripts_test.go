// Package hack tests the scripts.
package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMakeCertsTooEarly runs make-certs.sh with a kubectl that finds no APIService:
// it says what to do first and makes nothing.
func TestMakeCertsTooEarly(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	for tool, script := range map[string]string{
		"kubectl": "#!/bin/sh\necho kubectl $* >>" + calls + "\n",
		"openssl": "#!/bin/sh\necho openssl $* >>" + calls + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := exec.Command("./make-certs.sh").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "apply artifacts/deploy/base first") {
		t.Errorf("%v: %s", err, out)
	}
	got, err := os.ReadFile(calls)
	if want := "kubectl get apiservice v1alpha1.policy.example.io --ignore-not-found -o name\n"; err != nil || string(got) != want {
		t.Errorf("called %q (%v), want %q", got, err, want)
	}
}
