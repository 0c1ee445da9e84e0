package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

var deploymentKind = schema.GroupKind{Group: "apps", Kind: "Deployment"}

func expansionTemplate(action string) string {
	return `
apiVersion: expansion.gatekeeper.sh/v1beta1
kind: ExpansionTemplate
metadata: {name: pods}
spec:
  applyTo: [{groups: [apps], versions: [v1], kinds: [Deployment]}]
  templateSource: spec.template
  generatedGVK: {group: "", version: v1, kind: Pod}
  enforcementAction: "` + action + `"
`
}

func deployment(namespace, name, labels string) string {
	return `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `, namespace: ` + namespace + `}
spec: {template: {metadata: {labels: {` + labels + `}}, spec: {}}}
`
}

func addExpansionKinds(src *fakeSource) {
	src.addKind("apps", "v1", "Deployment", "deployments", true)
	src.addKind(expansionGroup, "v1beta1", "ExpansionTemplate", "expansiontemplate", false)
}

// expansionSource has a Deployment and a Pod that break a constraint for Pods.
func expansionSource(t *testing.T) *fakeSource {
	src := newFakeSource()
	seed(t, src)
	addExpansionKinds(src)
	src.apply(t, deployment("shop", "bad", "x: y"), deployment("shop", "good", "owner: me"), expansionTemplate("dryrun"))
	return src
}

const impliedFinding = "NeedLabel/owner Deployment shop/bad fail: [Implied by pods] v1: label owner is missing"

// A Deployment gets what is found in the Pod that it would make, for as long as an
// ExpansionTemplate says that it makes one.
func TestImpliedFindings(t *testing.T) {
	src := expansionSource(t)
	h := newHarness(t, src)
	h.wantFindings("first audit", badPod, impliedFinding)
	actions := func() map[string]string {
		out := map[string]string{}
		for _, r := range h.results() {
			out[r.Resource.Kind] = r.EnforcementAction
		}
		return out
	}
	if diff := cmp.Diff(map[string]string{"Pod": "deny", "Deployment": "dryrun"}, actions()); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	// The actions of a scoped constraint are not those of the ExpansionTemplate.
	src.apply(t, constraint("NeedLabel", "owner", "Pod", "owner", "")+"  enforcementAction: scoped\n  scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: '*'}]}]\n")
	eventually(h, "a scoped constraint", map[string]string{"Pod": "scoped [deny]", "Deployment": "dryrun []"}, func() map[string]string {
		out := map[string]string{}
		for _, r := range h.results() {
			out[r.Resource.Kind] = fmt.Sprintf("%s %v", r.EnforcementAction, r.EnforcementActions)
		}
		return out
	})
	src.apply(t, constraint("NeedLabel", "owner", "Pod", "owner", ""))
	src.apply(t, expansionTemplate("warn"))
	eventually(h, "another action of the ExpansionTemplate", map[string]string{"Pod": "deny", "Deployment": "warn"}, actions)

	src.apply(t, deployment("shop", "bad", "owner: me"))
	h.wantFindings("the Deployment mended", badPod)
	src.apply(t, deployment("shop", "bad", "x: y"))
	h.wantFindings("the Deployment broken again", badPod, impliedFinding)
	h.restart()
	h.wantFindings("restart", badPod, impliedFinding)

	src.remove(expansionTemplateKind, "", "pods")
	h.wantFindings("the ExpansionTemplate is gone", badPod)
	src.apply(t, expansionTemplate(""))
	h.wantFindings("the ExpansionTemplate is back", badPod, impliedFinding)
	src.removeKind(expansionTemplateKind)
	h.wantFindings("the kind of ExpansionTemplates is gone", badPod)
}

// In a directory there are no Pods but those that ExpansionTemplates make.
func TestImpliedFindingsOfADirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, manifests ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(manifests, "---\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("policies.yaml", template("NeedLabel", "v1"), constraint("NeedLabel", "owner", "Pod", "owner", ""))
	write("objects.yaml", deployment("shop", "bad", "x: y"), deployment("shop", "good", "owner: me"))
	write("expansion.yaml", expansionTemplate("dryrun"))
	src, err := directory.New(dir, directory.Options{RescanInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() {
		if err := src.Run(ctx); err != nil {
			t.Errorf("source: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); followed.Wait() })
	h := &harness{TB: t, src: src, dir: t.TempDir()}
	h.start()
	t.Cleanup(h.stop)
	h.wantFindings("first audit", impliedFinding)
	if err := os.Remove(filepath.Join(dir, "expansion.yaml")); err != nil {
		t.Fatal(err)
	}
	h.wantFindings("without ExpansionTemplates")
}

func TestRejectedExpansionTemplate(t *testing.T) {
	src := expansionSource(t)
	src.apply(t, "apiVersion: expansion.gatekeeper.sh/v1beta1\nkind: ExpansionTemplate\nmetadata: {name: pods}\nspec: {}\n")
	h := newHarness(t, src)
	h.wantFindings("first audit", badPod)
	eventually(h, "rejection", "ExpansionTemplate pods: spec.generatedGVK.kind is missing; it is the kind of the objects that are made, such as Pod", func() string {
		return h.summary("expansiontemplate.pods").Message
	})
	if state := h.summary("expansiontemplate.pods").State; state != v1alpha1.SummaryRejected {
		t.Errorf("state is %s", state)
	}
	src.apply(t, expansionTemplate(""))
	h.wantFindings("mended", badPod, impliedFinding)
	eventually(h, "the rejection is gone", "", func() string { return h.summary("expansiontemplate.pods").Message })
}

// Implied findings stay while nobody knows whether they are implied still.
func TestExpansionTemplatesCannotBeListed(t *testing.T) {
	src := expansionSource(t)
	h := newHarness(t, src)
	h.wantFindings("first audit", badPod, impliedFinding)

	h.stop()
	src.fail(expansionTemplateKind, errors.New("overloaded"))
	h.start()
	eventually(h, "waiting", "ExpansionTemplate.expansion.gatekeeper.sh objects cannot be listed: overloaded", h.a.planner.waitingFor)
	h.wantFindings("a failure that may pass", badPod, impliedFinding)
	src.fail(expansionTemplateKind, nil)
	h.waitLoaded()
	h.wantFindings("the failure is over", badPod, impliedFinding)

	h.stop()
	src.fail(expansionTemplateKind, apierrors.NewForbidden(schema.GroupResource{Group: expansionGroup, Resource: "expansiontemplate"}, "", errors.New("no")))
	h.start()
	h.waitLoaded()
	eventually(h, "state of a constraint", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	h.wantFindings("ExpansionTemplates are withheld", badPod)
}
