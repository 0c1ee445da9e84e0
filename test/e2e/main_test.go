package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/test/framework"
)

var (
	cp     *framework.ControlPlane
	server *framework.Server
	client *versioned.Clientset
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "policy-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if cp, err = framework.StartControlPlane(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, "start the control plane:", err)
		return 1
	}
	defer cp.Stop()
	if server, err = cp.InstallServer(ctx); err == nil {
		err = server.Start()
	}
	if err == nil {
		client, err = versioned.NewForConfig(cp.Admin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start policy-apiserver:", err)
		return 1
	}
	code := m.Run()
	log, err := server.Log()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "end of the server's log:\n"+log[max(0, len(log)-20_000):])
	}
	// The rights of artifacts/deploy are all that it needs.
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") {
			fmt.Fprint(os.Stderr, "the server lacks a right: ", line)
			code = 1
		}
	}
	return code
}

// kubectl runs kubectl as the administrator and fails the test if it fails.
func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := cp.Kubectl("", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// apply applies manifests, again while their kind is not known yet.
func apply(t testing.TB, manifests ...string) {
	t.Helper()
	text := strings.Join(manifests, "\n---\n")
	eventually(t, 20*time.Second, "apply", func() error {
		_, err := cp.Kubectl(text, "apply", "-f", "-")
		return err
	})
}

// remove deletes what a test has made, when it ends.
func remove(t testing.TB, args ...string) {
	t.Cleanup(func() {
		if _, err := cp.Kubectl("", append([]string{"delete", "--ignore-not-found", "--wait=false"}, args...)...); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

// eventually calls check until it returns nil.
func eventually(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, timeout, err)
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// expect returns an error if got is not want.
func expect(got, want string, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("got %q, want %q", got, want)
	}
	return err
}

// found waits until exactly these objects of a namespace have findings of a
// constraint; objects are written Kind/name.
func found(t testing.TB, timeout time.Duration, namespace, constraint string, objects ...string) {
	t.Helper()
	want := strings.Join(objects, " ")
	eventually(t, timeout, "findings of "+constraint, func() error {
		out, err := cp.Kubectl("", "get", "auditresults", "-n", namespace, "--field-selector=constraint.name="+constraint,
			"-o", `jsonpath={range .items[*]}{.resource.kind}/{.resource.name}{"\n"}{end}`)
		if err != nil {
			return err
		}
		if got := strings.Join(strings.Fields(out), " "); got != want {
			return fmt.Errorf("found %q, want %q", got, want)
		}
		return nil
	})
}

// template needs a label on the objects that its constraints select.
func template(kind string) string {
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: %s}
spec:
  crd:
    spec:
      names: {kind: %s}
      validation:
        openAPIV3Schema:
          type: object
          properties:
            label: {type: string}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package labels
      violation[{"msg": msg, "details": {"missing": input.parameters.label}}] {
        not input.review.object.metadata.labels[input.parameters.label]
        msg := sprintf("label %%v is missing", [input.parameters.label])
      }
`, strings.ToLower(kind), kind)
}

func constraint(kind, name, kinds, namespace, label string) string {
	return fmt.Sprintf(`
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: %s
metadata: {name: %s}
spec:
  match:
    kinds: [{apiGroups: ["*"], kinds: [%s]}]
    namespaces: [%q]
  parameters: {label: %s}
`, kind, name, kinds, namespace, label)
}

func namespace(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", name)
}

func configMap(namespace, name, labels string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, labels: {%s}}\n", name, namespace, labels)
}
