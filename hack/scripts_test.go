// Package hack tests the scripts.
package hack

import (
	"crypto/tls"
	"crypto/x509"
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

// TestMakeCertsOut writes the files of the component self-managed-certificates, without
// a cluster. Certificates from before are trusted until they are to be forgotten.
func TestMakeCertsOut(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	dir := t.TempDir()
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	out := filepath.Join(dir, "certificates")
	run := func(args ...string) (leaf *x509.Certificate, bundle []byte) {
		t.Helper()
		text, err := exec.Command("./make-certs.sh", append([]string{"--out", out}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(out, "tls.crt"), filepath.Join(out, "tls.key"))
		if err != nil {
			t.Fatal(err)
		}
		if bundle, err = os.ReadFile(filepath.Join(out, "ca-bundle.crt")); err != nil {
			t.Fatal(err)
		}
		return pair.Leaf, bundle
	}
	trusts := func(bundle []byte, leaf *x509.Certificate, host string) bool {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
		return err == nil
	}
	const host = "policy-apiserver.policy-system.svc"
	first, firstBundle := run()
	second, secondBundle := run()
	third, thirdBundle := run("--forget-old", "other")
	for what, test := range map[string]struct{ got, want bool }{
		"the first by its CA":            {trusts(firstBundle, first, host), true},
		"the first by the second bundle": {trusts(secondBundle, first, host), true},
		"the second by its CA":           {trusts(secondBundle, second, host), true},
		"the second by the first bundle": {trusts(firstBundle, second, host), false},
		"the second, forgotten":          {trusts(thirdBundle, second, host), false},
		"another host":                   {trusts(thirdBundle, third, host), false},
		"in another namespace":           {trusts(thirdBundle, third, "policy-apiserver.other.svc"), true},
	} {
		if test.got != test.want {
			t.Errorf("%s: trusted is %v", what, test.got)
		}
	}
	if info, err := os.Stat(filepath.Join(out, "tls.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is %v, %v", info.Mode(), err)
	}
	if text, err := exec.Command("./make-certs.sh", "--nonsense").CombinedOutput(); err == nil || !strings.Contains(string(text), "unknown flag --nonsense") {
		t.Errorf("%v: %s", err, text)
	}
}
