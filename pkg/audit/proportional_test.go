package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
)

// work is what an Auditor has done since it was started.
type work struct {
	Evaluations  map[string]float64 // by result
	Transactions float64
	Revision     uint64
}

// meter gives the Auditor of a harness metrics of its own from the next start on.
type meter struct {
	*harness
	registry metrics.KubeRegistry
}

func newMeter(h *harness) *meter {
	m := &meter{harness: h}
	h.stop()
	h.configure = func(c *Config) {
		m.registry = metrics.NewKubeRegistry()
		c.metrics = newMetrics(m.registry.MustRegister)
	}
	h.start()
	return m
}

func (m *meter) work() work {
	m.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.Fatal(err)
	}
	w := work{Evaluations: map[string]float64{}, Revision: m.db.Revision()}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case "policy_apiserver_audit_evaluations_total":
				w.Evaluations[metric.GetLabel()[0].GetValue()] += metric.GetCounter().GetValue()
			case "policy_apiserver_audit_transactions_total":
				w.Transactions = metric.GetCounter().GetValue()
			}
		}
	}
	return w
}

func (m *meter) objects(outcome string) float64 {
	m.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "policy_apiserver_audit_objects_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == outcome {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// settled waits until a run has ended and nothing is written any more.
func (m *meter) settled() {
	m.Helper()
	m.waitLoaded()
	eventually(m.harness, "the end of the run", true, func() bool {
		return m.lastRun().Phase == v1alpha1.RunComplete && !m.a.tracker.pendingReport()
	})
	// What was submitted before is written when this is.
	done := make(chan struct{})
	m.a.submit(&put{a: m.a, done: func() { close(done) }})
	<-done
}

// heartbeat changes the status and the managedFields of an object.
func heartbeat(src *fakeSource, gk schema.GroupKind, namespace, name string, beat int64) {
	src.mu.Lock()
	obj := src.objects[gk][source.ObjectKey{Namespace: namespace, Name: name}].DeepCopy()
	src.mu.Unlock()
	obj.Object["status"] = map[string]any{"beat": beat}
	metadata := obj.Object["metadata"].(map[string]any)
	metadata["managedFields"] = []any{map[string]any{"manager": fmt.Sprintf("kubelet-%d", beat), "operation": "Update", "time": "2026-01-01T00:00:00Z"}}
	src.put(obj)
}

func TestHeartbeatsCostNothing(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newMeter(newHarness(t, src))
	h.settled()
	before, findings, unchanged := h.work(), h.results(), h.objects("unchanged")
	for beat := range int64(10) {
		heartbeat(src, podKind, "shop", "bad", beat)
		heartbeat(src, podKind, "shop", "good", beat)
	}
	eventually(h.harness, "the heartbeats", unchanged+20, func() float64 { return h.objects("unchanged") })
	if got := h.work(); !maps.Equal(got.Evaluations, before.Evaluations) || got.Revision != before.Revision {
		t.Errorf("after heartbeats %+v, before %+v: something was evaluated or changed", got, before)
	}
	// The put of settled is one.
	if got := h.work(); got.Transactions != before.Transactions {
		t.Errorf("%v transactions after heartbeats, %v before", got.Transactions, before.Transactions)
	}
	if got := h.results(); got[0].Resource.ResourceVersion != findings[0].Resource.ResourceVersion {
		t.Errorf("the finding is of resourceVersion %s, was of %s, at which the object was judged", got[0].Resource.ResourceVersion, findings[0].Resource.ResourceVersion)
	}

	// What a policy reads does count.
	src.apply(t, pod("shop", "bad", "owner: me"))
	h.wantFindings("an object made good")
}

func TestHeartbeatsBeforeARestartCostNothing(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newMeter(newHarness(t, src))
	h.settled()
	unchanged := h.objects("unchanged")
	heartbeat(src, podKind, "shop", "bad", 1) // while the server follows
	eventually(h.harness, "the heartbeat", unchanged+1, func() float64 { return h.objects("unchanged") })
	completed := func() int {
		return len(slices.DeleteFunc(h.runs(), func(r v1alpha1.AuditRun) bool { return r.Phase != v1alpha1.RunComplete }))
	}
	runs := completed()
	h.stop()
	heartbeat(src, podKind, "shop", "good", 1) // while it is away
	h.start()
	eventually(h.harness, "another run", runs+1, completed)
	if got := h.work().Evaluations; len(got) != 0 {
		t.Errorf("%v evaluations after a restart in which nothing changed that a policy reads", got)
	}
	if run := h.lastRun(); run.Listed != 2 || run.Unchanged != 2 {
		t.Errorf("the run listed %d and found %d unchanged, want 2 and 2", run.Listed, run.Unchanged)
	}
}

func TestAConstraintTouchesItsOwnPairsOnly(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newMeter(newHarness(t, src))
	h.settled()
	// The records are of an older resourceVersion than the objects have by now.
	unchanged := h.objects("unchanged")
	heartbeat(src, podKind, "shop", "bad", 1)
	eventually(h.harness, "the heartbeat", unchanged+1, func() float64 { return h.objects("unchanged") })
	for _, more := range []string{"", "namespaceSelector: {matchLabels: {tier: gold}}"} {
		h.settled()
		before := h.work()
		src.apply(t, constraint("NeedLabel", "team", "Pod", "team", more))
		eventually(h.harness, "verdicts of the constraint", before.Evaluations["fail"]+2, func() float64 { return h.work().Evaluations["fail"] })
		h.settled()
		if got := h.work().Evaluations["pass"]; got != before.Evaluations["pass"] {
			t.Errorf("match %q: %v evaluations pass, %v before: another constraint was evaluated", more, got, before.Evaluations["pass"])
		}
	}
	before := h.work()
	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}, "", "team")
	h.wantFindings("constraint deleted", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")
	h.settled()
	if got := h.work().Evaluations; !maps.Equal(got, before.Evaluations) {
		t.Errorf("evaluations %v, before the deletion of a constraint %v", got, before.Evaluations)
	}
}

func TestNamespaceChangesCountIfTheyAreRead(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "gold", "Pod", "gold", "namespaceSelector: {matchLabels: {tier: gold}}"))
	h := newMeter(newHarness(t, src))
	h.settled()
	before, lists := h.work(), src.listsOf(podKind)
	annotated := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "shop", "labels": map[string]any{"tier": "gold"}, "annotations": map[string]any{"note": "new"}},
	}}
	src.put(annotated)
	eventually(h.harness, "the annotation", "new", func() string {
		return h.a.planner.namespaces.get("", "shop").GetAnnotations()["note"]
	})
	h.settled()
	src.apply(t, pod("shop", "bad", "owner: me, x: y"))
	h.wantFindings("the Pod after the annotation",
		"NeedLabel/gold Pod shop/bad fail: v1: label gold is missing",
		"NeedLabel/gold Pod shop/good fail: v1: label gold is missing")
	if got := src.listsOf(podKind); got != lists {
		t.Errorf("%d lists of Pods, %d before an annotation of their Namespace that no policy reads", got, lists)
	}
	if got := h.work().Evaluations; got["fail"]+got["pass"] != before.Evaluations["fail"]+before.Evaluations["pass"]+2 {
		t.Errorf("evaluations %v, before %v; want two more, of the Pod", got, before.Evaluations)
	}
}

func TestANewVersionOfAKindIsJudgedAgain(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "roles", "ClusterRole", "owner", ""), object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "r", "x: y"))
	h := newMeter(newHarness(t, src))
	h.settled()
	// As a cluster does, the source hands over the same object in another version.
	src.mu.Lock()
	for _, obj := range src.objects[schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}] {
		obj.SetAPIVersion("rbac.authorization.k8s.io/v2")
	}
	src.mu.Unlock()
	src.addKind("rbac.authorization.k8s.io", "v2", "ClusterRole", "clusterroles", false)
	eventually(h.harness, "the version in the finding", "rbac.authorization.k8s.io/v2", func() string {
		for _, r := range h.results() {
			if r.Resource.Kind == "ClusterRole" {
				return r.Resource.APIVersion
			}
		}
		return ""
	})
}

func TestErrorsAreEvaluatedAgainAtTheNextVersion(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "gold", "Pod", "gold", "namespaceSelector: {matchLabels: {tier: gold}}"), pod("nowhere", "p", "owner: me"))
	h := newMeter(newHarness(t, src))
	h.settled()
	before := h.work().Evaluations["error"]
	heartbeat(src, podKind, "nowhere", "p", 1)
	eventually(h.harness, "an evaluation", before+1, func() float64 { return h.work().Evaluations["error"] })
}

// TestHeartbeatsOfAPolicyThatReadsEverythingCount: nothing is skipped that is read.
func TestHeartbeatsOfAPolicyThatReadsEverythingCount(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.addKind(constraintGroup, "v1beta1", "SaysAll", "saysall", false)
	src.apply(t, `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: saysall}
spec:
  crd: {spec: {names: {kind: SaysAll}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package all
      violation[{"msg": msg}] { msg := sprintf("beat %v", [input.review.object.status.beat]) }
`, `{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: SaysAll, metadata: {name: all}, spec: {match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}}}`)
	h := newMeter(newHarness(t, src))
	h.settled()
	heartbeat(src, podKind, "shop", "good", 7)
	eventually(h.harness, "the message", "beat 7", func() string {
		page, err := h.db.List(context.Background(), index.Query{Table: rows.AuditResults, Terms: []index.Term{{Field: "constraint.kind", Value: "SaysAll"}}})
		if err != nil || len(page.Rows) == 0 {
			return ""
		}
		var r v1alpha1.AuditResult
		if err := rows.Decode(page.Rows[0], &r); err != nil {
			t.Fatal(err)
		}
		return r.Violations[0].Message
	})
}

// TestContentIsAskedForWhenItIsRead: while constraints read labels only, so does the
// stream; with one that reads more it begins anew, and only that one is evaluated.
func TestContentIsAskedForWhenItIsRead(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.addKind(constraintGroup, "v1beta1", "NeedSpec", "needspec", false)
	src.apply(t, `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: needspec}
spec:
  crd: {spec: {names: {kind: NeedSpec}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package spec
      violation[{"msg": "no spec"}] { not input.review.object.spec.nodeName }
`, "{apiVersion: v1, kind: Pod, metadata: {name: placed, namespace: shop, labels: {owner: me}}, spec: {nodeName: node-1}}")
	h := newMeter(newHarness(t, src))
	h.settled()
	src.mu.Lock()
	streams := src.metadataStreams
	src.mu.Unlock()
	if streams == 0 {
		t.Error("no stream is one of metadata")
	}
	before := h.work().Evaluations
	src.apply(t, "{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: NeedSpec, metadata: {name: spec}, spec: {match: {kinds: [{apiGroups: [\"\"], kinds: [Pod]}]}}}")
	h.wantFindings("content is read", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing", "NeedSpec/spec Pod shop/bad fail: no spec", "NeedSpec/spec Pod shop/good fail: no spec")
	h.settled()
	if got := h.work().Evaluations; got["fail"] != before["fail"]+2 || got["pass"] != before["pass"]+1 {
		t.Errorf("evaluations %v, before %v; want two more that fail and one that passes", got, before)
	}
	if run := h.sweep(); run.Differences != 0 {
		t.Errorf("a sweep says %d differences", run.Differences)
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.metadataStreams != streams {
		t.Errorf("%d streams of metadata, %d before content was read", src.metadataStreams, streams)
	}
}
