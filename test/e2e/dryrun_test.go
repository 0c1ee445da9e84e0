package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"policy.example.io/policy-apiserver/test/framework"
)

// stub is a kind that somebody else brings.
func stub(group, version, kind, plural string) string {
	text := gatekeeperDefinition(group, kind, plural, "Namespaced")
	return strings.Replace(text, "name: v1alpha1\n", "name: "+version+"\n", 1)
}

// TestDryRun has the kube-apiserver check all that kustomize makes of the base and its
// components, alone and together, as it would if it was applied.
func TestDryRun(t *testing.T) {
	apply(t, stub("cert-manager.io", "v1", "Certificate", "certificates"), stub("cert-manager.io", "v1", "Issuer", "issuers"),
		stub("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"), stub("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
		namespace("monitoring"))
	crds := []string{"certificates.cert-manager.io", "issuers.cert-manager.io", "servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"}
	remove(t, append([]string{"crd"}, crds...)...)
	for _, crd := range crds {
		kubectl(t, "wait", "--for=condition=Established", "crd/"+crd)
	}
	// A copy, because one component has files that are made for a cluster.
	dir := evalSymlinks(t, t.TempDir())
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(framework.DeployDir())); err != nil {
		t.Fatal(err)
	}
	certificates := filepath.Join(dir, "deploy", "self-managed-certificates")
	makeCerts(t, "--out", certificates)
	all, err := os.ReadDir(framework.DeployDir())
	if err != nil {
		t.Fatal(err)
	}
	overlays := map[string][]string{"base": nil, "together": {"self-managed-certificates", "monitoring", "audit-log"}}
	for _, entry := range all {
		switch name := entry.Name(); name {
		case "base", "constrainttemplate-crd":
		default:
			overlays[name] = []string{name}
		}
	}
	for name, components := range overlays {
		t.Run(name, func(t *testing.T) {
			overlay := filepath.Join(dir, "overlay-"+name)
			if err := os.Mkdir(overlay, 0o700); err != nil {
				t.Fatal(err)
			}
			text := "resources: [../deploy/base]\ncomponents:\n"
			for _, component := range components {
				text += "- ../deploy/" + component + "\n"
			}
			writeFile(t, overlay, "kustomization.yaml", strings.TrimSuffix(text, "components:\n"))
			dryRun(t, kubectl(t, "kustomize", overlay))
		})
	}
	t.Run("constrainttemplate-crd", func(t *testing.T) {
		dryRun(t, kubectl(t, "kustomize", filepath.Join(dir, "deploy", "constrainttemplate-crd")))
	})
}

// dryRun applies manifests without effect.
func dryRun(t *testing.T, manifests string) {
	t.Helper()
	// The framework has changed the Service that is there.
	documents := strings.Split(manifests, "\n---\n")
	for i, document := range documents {
		if strings.Contains("\n"+document, "\nkind: Service\n") {
			documents[i] = strings.Replace(document, "\n  name: policy-apiserver\n", "\n  name: e2e-dry-run\n", 1)
		}
	}
	manifests = strings.Join(documents, "\n---\n")
	out, err := cp.Kubectl(manifests, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	objects, applied := strings.Count("\n"+manifests, "\nkind: "), strings.Count(out, "(server dry run)")
	if objects == 0 || objects != applied {
		t.Errorf("%d of %d objects are applied:\n%s", applied, objects, out)
	}
	if strings.Contains(strings.ToLower(out), "warning") {
		t.Error(fmt.Errorf("%s", out))
	}
}
