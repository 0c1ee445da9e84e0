package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// TestRejectedPolicies has policies that are wrong in one way each: what is wrong is
// in their summaries, and other policies go on.
func TestRejectedPolicies(t *testing.T) {
	apply(t, template("E2EFine"), namespace("e2e-rejected"))
	remove(t, "constrainttemplate/e2efine", "namespace/e2e-rejected")
	apply(t, constraint("E2EFine", "fine", "ConfigMap", "e2e-rejected", "owner"), configMap("e2e-rejected", "first", ""))
	found(t, 20*time.Second, "e2e-rejected", "fine", "ConfigMap/first")

	for _, test := range []struct {
		kind, name string // name of a constraint, if the summary is that of one
		manifest   string
		want       []string
	}{
		{
			kind:     "E2ESyntax",
			manifest: strings.Replace(template("E2ESyntax"), "not input", "not not input", 1),
			want:     []string{"template e2esyntax", "rego:3:", "rego_parse_error"},
		},
		{
			kind:     "E2EUnsafe",
			manifest: strings.Replace(template("E2EUnsafe"), "not input", "count(nobody) > 0; not input", 1),
			want:     []string{"template e2eunsafe", "rego:3:", "nobody is unsafe"},
		},
		{
			kind:     "E2ENoRule",
			manifest: strings.Replace(template("E2ENoRule"), "violation[", "finding[", 1),
			want:     []string{"template e2enorule", "violation"},
		},
		{
			kind:     "E2ETwoTargets",
			manifest: strings.Replace(template("E2ETwoTargets"), "targets:\n", "targets:\n  - {target: other.example.io, rego: package x}\n", 1),
			want:     []string{"template e2etwotargets", "spec.targets has 2 entries"},
		},
		{
			kind:     "E2EOtherName",
			manifest: strings.Replace(template("E2EOtherName"), "{name: e2eothername}", "{name: e2emisnamed}", 1),
			want:     []string{"template e2emisnamed", `"e2eothername"`},
		},
		{
			kind: "E2EOrphan", name: "orphan",
			manifest: definition("E2EOrphan") + "\n---\n" + constraint("E2EOrphan", "orphan", "ConfigMap", "e2e-rejected", "owner"),
			want:     []string{"constraint E2EOrphan/orphan has no template", "ConstraintTemplate e2eorphan"},
		},
	} {
		t.Run(test.kind, func(t *testing.T) {
			lower := strings.ToLower(test.kind)
			apply(t, test.manifest)
			remove(t, "constrainttemplate/"+lower, "constrainttemplate/e2emisnamed", "crd/"+lower+".constraints.gatekeeper.sh")
			name := lower
			if test.name != "" {
				name += "." + test.name
			}
			eventually(t, 20*time.Second, "rejection", func() error {
				s, err := summary(t, name)
				if err != nil {
					return err
				}
				for _, want := range test.want {
					if s.State != v1alpha1.SummaryRejected || !strings.Contains(s.Message, want) {
						return fmt.Errorf("state %s, message %q, want it to say %q", s.State, s.Message, want)
					}
				}
				return nil
			})
		})
	}
	apply(t, configMap("e2e-rejected", "second", ""))
	found(t, visible, "e2e-rejected", "fine", "ConfigMap/first", "ConfigMap/second")
}

// TestRepairedPolicy is rejected first and evaluated once it is right.
func TestRepairedPolicy(t *testing.T) {
	wrong := strings.Replace(template("E2ERepair"), "not input", "not not input", 1)
	apply(t, wrong, namespace("e2e-repair"))
	remove(t, "constrainttemplate/e2erepair", "namespace/e2e-repair")
	// Its constraints can be made all the same.
	apply(t, constraint("E2ERepair", "repair", "ConfigMap", "e2e-repair", "owner"), configMap("e2e-repair", "a", ""))
	rejected := func() error {
		s, err := summary(t, "e2erepair.repair")
		if err == nil && (s.State != v1alpha1.SummaryRejected || !strings.Contains(s.Message, "rego_parse_error")) {
			err = fmt.Errorf("state %s, message %q", s.State, s.Message)
		}
		return err
	}
	eventually(t, 20*time.Second, "rejection", rejected)
	found(t, visible, "e2e-repair", "repair")
	apply(t, template("E2ERepair"))
	found(t, 10*time.Second, "e2e-repair", "repair", "ConfigMap/a")
	eventually(t, 5*time.Second, "template's own summary goes", func() error {
		if s, err := summary(t, "e2erepair"); err == nil {
			return fmt.Errorf("state %s, message %q", s.State, s.Message)
		}
		return nil
	})
}

// TestConstraintKinds are made from templates by the server, since no Gatekeeper
// does it, and go with them.
func TestConstraintKinds(t *testing.T) {
	apply(t, template("E2EKinds"))
	remove(t, "constrainttemplate/e2ekinds")
	const crd = "crd/e2ekinds.constraints.gatekeeper.sh"
	kubectl(t, "wait", "--for=create", crd, "--timeout=20s")
	kubectl(t, "wait", "--for=condition=Established", crd, "--timeout=20s")
	got := kubectl(t, "get", crd, "-o", `jsonpath={.metadata.labels.gatekeeper\.sh/constraint} {.metadata.ownerReferences[0].kind} {.spec.scope} {.spec.names.categories} {.spec.versions[*].name}`)
	if want := `yes ConstraintTemplate Cluster ["constraint","constraints"] v1beta1 v1alpha1`; got != want {
		t.Errorf("the definition is %q, want %q", got, want)
	}
	if _, err := cp.Kubectl(strings.Replace(constraint("E2EKinds", "kinds", "Pod", "x", "owner"), "label:", "labels:", 1), "apply", "--validate=strict", "-f", "-"); err == nil || !strings.Contains(err.Error(), "spec.parameters.labels") {
		t.Errorf("a parameter that the schema does not have: %v", err)
	}
	kubectl(t, "delete", "constrainttemplate", "e2ekinds")
	kubectl(t, "wait", "--for=delete", crd, "--timeout=20s")
}

// TestTemplateVersions has a template as v1beta1, whose parameters need not be named
// by its schema; read as v1 it still is one.
func TestTemplateVersions(t *testing.T) {
	text := strings.Replace(template("E2EOld"), "templates.gatekeeper.sh/v1", "templates.gatekeeper.sh/v1beta1", 1)
	apply(t, strings.Replace(text, "label: {type: string}", "other: {type: string}", 1), namespace("e2e-old"))
	remove(t, "constrainttemplate/e2eold", "namespace/e2e-old")
	apply(t, constraint("E2EOld", "old", "ConfigMap", "e2e-old", "owner"), configMap("e2e-old", "a", ""))
	found(t, 20*time.Second, "e2e-old", "old", "ConfigMap/a")
}

// definition of a kind of constraints that has no template.
func definition(kind string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.constraints.gatekeeper.sh}
spec:
  group: constraints.gatekeeper.sh
  scope: Cluster
  names: {kind: %[2]s, plural: %[1]s, singular: %[1]s}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`, strings.ToLower(kind), kind)
}
