package audit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// TestConvergence changes objects, Namespaces and policies at random, breaks and
// mends kinds and restarts the audit in between, and compares what comes of it
// with an audit that starts from nothing.
func TestConvergence(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			src := newFakeSource()
			seed1(t, src)
			h := newHarness(t, src)
			for range 120 {
				randomStep(t, random, src, h)
				time.Sleep(time.Duration(random.IntN(15)) * time.Millisecond)
			}
			src.fail(podKind, nil)
			src.fail(configMapKind, nil)
			src.fail(deploymentKind, nil)
			src.fail(expansionTemplateKind, nil)
			// What is read of the same kinds changes once more, after a plan has been made.
			for range 3 {
				time.Sleep(2 * planDelay)
				changeReads(t, random, src)
			}
			fresh := newHarness(t, src)
			fresh.waitLoaded()
			settled := func() v1alpha1.RunPhase { return fresh.lastRun().Phase }
			eventually(fresh, "fresh audit", v1alpha1.RunComplete, settled)
			eventually(h, "the findings of a fresh audit", fresh.findings(), h.findings)
			for name := range map[string]bool{"needlabel.c0": true, "needlabel.c1": true, "needlabel.c2": true} {
				eventually(h, "summary "+name, fresh.summary(name).Totals, func() v1alpha1.SummaryTotals { return h.summary(name).Totals })
			}
			// It must stay so.
			time.Sleep(300 * time.Millisecond)
			if diff := cmp.Diff(fresh.findings(), h.findings()); diff != "" {
				t.Errorf("findings differ from those of a fresh audit (-fresh +audit):\n%s", diff)
			}
		})
	}
}

func seed1(t testing.TB, src *fakeSource) {
	src.addKind("constraints.gatekeeper.sh", "v1beta1", "NeedLabel", "needlabel", false)
	src.addKind("constraints.gatekeeper.sh", "v1beta1", "NeedUnique", "needunique", false)
	addExpansionKinds(src)
	src.addKind(constraintGroup, "v1beta1", "NeedOther", "needother", false)
	src.addKind(configGroup, "v1alpha1", "Config", "configs", true)
	src.apply(t, template("NeedLabel", "v0"), takenTemplate, needOther.Replace(takenTemplate))
	for i := range 3 {
		src.apply(t, object("v1", "Namespace", "", fmt.Sprintf("ns%d", i), "tier: gold"))
	}
}

func randomStep(t testing.TB, random *rand.Rand, src *fakeSource, h *harness) {
	namespace := fmt.Sprintf("ns%d", random.IntN(3))
	name := fmt.Sprintf("o%d", random.IntN(8))
	labels := []string{"a: b", "owner: x", "team: y", "owner: x, team: y"}[random.IntN(4)]
	constraintName := fmt.Sprintf("c%d", random.IntN(3))
	constraintKind := schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}
	kind := []schema.GroupKind{podKind, configMapKind, deploymentKind}[random.IntN(3)]
	switch n := random.IntN(100); {
	case n < 5:
		changeReads(t, random, src)
	case n < 47 && kind == deploymentKind:
		src.apply(t, deployment(namespace, name, labels))
	case n < 47:
		src.apply(t, object("v1", kind.Kind, namespace, name, labels))
	case n < 60:
		src.remove(kind, namespace, name)
	case n < 66:
		src.apply(t, object("v1", "Namespace", "", namespace, []string{"tier: gold", "tier: tin"}[random.IntN(2)]))
	case n < 76:
		kinds := []string{"Pod", "ConfigMap", "Pod, ConfigMap", `"*"`}[random.IntN(4)]
		selector := []string{"", "namespaceSelector: {matchLabels: {tier: gold}}", "excludedNamespaces: [ns1]"}[random.IntN(3)]
		src.apply(t, constraint("NeedLabel", constraintName, kinds, []string{"owner", "team"}[random.IntN(2)], selector))
	case n < 80:
		src.remove(constraintKind, "", constraintName)
	case n < 82:
		src.apply(t, expansionTemplate([]string{"", "warn"}[random.IntN(2)]))
	case n < 83:
		src.remove(expansionTemplateKind, "", "pods")
	case n < 84:
		src.fail(expansionTemplateKind, []error{nil, errForbidden}[random.IntN(2)])
	case n < 85:
		src.apply(t, uniqueConstraint)
	case n < 87:
		src.apply(t, template("NeedLabel", fmt.Sprintf("v%d", random.IntN(3))))
	case n < 89:
		src.fail(kind, errForbidden)
	case n < 94:
		src.fail(kind, nil)
	case n < 97:
		src.mu.Lock()
		src.send(kind, nil) // lists anew, as after a 410
		src.mu.Unlock()
	default:
		h.restart()
	}
}

// changeReads changes what policies read of Pods and ConfigMaps in data.inventory.
func changeReads(t testing.TB, random *rand.Rand, src *fakeSource) {
	switch n := random.IntN(5); n {
	case 0, 1:
		src.apply(t, uniqueConstraint, needOther.Replace(uniqueConstraint))
	case 2:
		src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedOther"}, "", "u")
	case 3:
		src.apply(t, fmt.Sprintf("{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: [{processes: [%s], excludedNamespaces: [ns%d]}]}}", []string{"sync", "audit"}[random.IntN(2)], random.IntN(3)))
	default:
		src.remove(configKind, "gatekeeper-system", "config")
	}
}
