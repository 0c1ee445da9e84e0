package audit

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/source"
)

// miss changes the objects of a source without telling its streams.
func (f *fakeSource) miss(change func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.objects)
}

// sweepRuns returns the AuditRuns of sweeps that have ended.
func (h *harness) sweepRuns() []v1alpha1.AuditRun {
	return slices.DeleteFunc(h.runs(), func(r v1alpha1.AuditRun) bool {
		return r.Trigger != v1alpha1.TriggerSweep || r.Phase == v1alpha1.RunRunning
	})
}

func (m *meter) sweep() v1alpha1.AuditRun {
	m.Helper()
	n := len(m.sweepRuns())
	m.a.Sweep()
	eventually(m.harness, "the end of a sweep", n+1, func() int { return len(m.sweepRuns()) })
	return m.sweepRuns()[n]
}

func TestASweepThatFindsNothingDoesNothing(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newMeter(newHarness(t, src))
	h.settled()
	unchanged := h.objects("unchanged")
	heartbeat(src, podKind, "shop", "bad", 1)
	eventually(h.harness, "the heartbeat", unchanged+1, func() float64 { return h.objects("unchanged") })
	before, findings := h.work(), h.results()
	lists := src.listsOf(podKind)
	run := h.sweep()
	if got := h.work().Evaluations; !maps.Equal(got, before.Evaluations) {
		t.Errorf("evaluations %v, before the sweep %v", got, before.Evaluations)
	}
	if diff := cmp.Diff(findings, h.results()); diff != "" {
		t.Errorf("a sweep changed findings: %s", diff)
	}
	if run.Phase != v1alpha1.RunComplete || run.Listed != 5 || run.Unchanged != 5 || run.Evaluated != 0 || run.Differences != 0 {
		t.Errorf("the run is %s, listed %d, unchanged %d, evaluated %d, differences %d; want Complete, 5, 5, 0, 0", run.Phase, run.Listed, run.Unchanged, run.Evaluated, run.Differences)
	}
	if len(run.Conditions) != 1 || run.Conditions[0].Type != v1alpha1.ConditionConsistent || run.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("conditions are %+v", run.Conditions)
	}
	kinds := map[string]int64{}
	for _, k := range run.Kinds {
		kinds[k.Kind] = k.Listed
	}
	if diff := cmp.Diff(map[string]int64{"ConstraintTemplate": 1, "NeedLabel": 1, "Namespace": 1, "Pod": 2}, kinds); diff != "" {
		t.Errorf("listed by kind (-want +got):\n%s", diff)
	}
	if got := src.listsOf(podKind); got != lists {
		t.Errorf("Pods were listed by their stream %d times, %d before", got, lists)
	}
	eventually(h.harness, "the sweep as the last completed run", run.Name, func() string { return h.summary("needlabel.owner").LastCompletedRun })
}

func TestASweepRepairsWhatWasMissed(t *testing.T) {
	key := func(namespace, name string) source.ObjectKey {
		return source.ObjectKey{Namespace: namespace, Name: name}
	}
	constraintKind := schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}
	bad := "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing"
	for name, c := range map[string]struct {
		miss  func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured)
		want  []string
		kind  string
		named string
	}{
		"new": {func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
			obj := objects[podKind][key("shop", "bad")].DeepCopy()
			obj.SetName("new")
			obj.SetUID("uid-new")
			objects[podKind][key("shop", "new")] = obj
		}, []string{bad, strings.Replace(bad, "shop/bad", "shop/new", 1)}, "Pod", "shop/new"},
		"gone": {func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
			delete(objects[podKind], key("shop", "bad"))
		}, nil, "Pod", "shop/bad"},
		"changed": {func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
			obj := objects[podKind][key("shop", "good")].DeepCopy()
			obj.SetLabels(nil)
			obj.SetResourceVersion("1000")
			objects[podKind][key("shop", "good")] = obj
		}, []string{bad, strings.Replace(bad, "shop/bad", "shop/good", 1)}, "Pod", "shop/good"},
		"made anew": {func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
			obj := objects[podKind][key("shop", "bad")].DeepCopy()
			obj.SetUID("another")
			objects[podKind][key("shop", "bad")] = obj
		}, []string{bad}, "Pod", "shop/bad"},
		"constraint": {func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
			delete(objects[constraintKind], key("", "owner"))
		}, nil, "NeedLabel", "owner"},
	} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			seed(t, src)
			h := newMeter(newHarness(t, src))
			h.wantFindings("first audit", bad)
			h.settled()
			src.miss(c.miss)
			run := h.sweep()
			if run.Differences != 1 || run.Conditions[0].Status != metav1.ConditionFalse || !strings.Contains(run.Conditions[0].Message, c.named) {
				t.Errorf("the sweep says %d differences, %+v", run.Differences, run.Conditions)
			}
			for _, k := range run.Kinds {
				if want := map[bool]int64{true: 1}[k.Kind == c.kind]; k.Differences != want {
					t.Errorf("%s: %d differences, want %d", k.Kind, k.Differences, want)
				}
			}
			h.wantFindings("repaired", c.want...)
			if c.kind == "Pod" {
				eventually(h.harness, "a run of repair", true, func() bool {
					return h.lastRun().Trigger == v1alpha1.TriggerRepair && h.lastRun().Phase == v1alpha1.RunComplete
				})
			}
			h.settled()
			if run := h.sweep(); run.Differences != 0 || run.Phase != v1alpha1.RunComplete {
				t.Errorf("the next sweep is %s and says %d differences", run.Phase, run.Differences)
			}
		})
	}
}

// TestAStreamThatIsBehindHasMissedNothing: what the stream hands over after the list was
// read is no difference.
func TestAStreamThatIsBehindHasMissedNothing(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newMeter(newHarness(t, src))
	h.stop()
	h.patient = true
	h.start()
	h.settled()
	late := object("v1", "Pod", "shop", "late", "x: y")
	src.miss(func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
		obj := objects[podKind][source.ObjectKey{Namespace: "shop", Name: "bad"}].DeepCopy()
		obj.SetName("late")
		objects[podKind][source.ObjectKey{Namespace: "shop", Name: "late"}] = obj
	})
	h.a.Sweep()
	eventually(h.harness, "the list of Pods", true, func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return slices.Contains(src.sweeps, podKind)
	})
	src.apply(t, late)
	eventually(h.harness, "the end of the sweep", 1, func() int { return len(h.sweepRuns()) })
	if run := h.sweepRuns()[0]; run.Differences != 0 {
		t.Errorf("%d differences: %+v", run.Differences, run.Conditions)
	}
}

func TestASweepNamesKindsThatItSkips(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "maps", "ConfigMap", "owner", ""))
	h := newMeter(newHarness(t, src))
	h.settled()
	src.fail(podKind, errForbidden)
	eventually(h.harness, "the failure", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	run := h.sweep()
	if run.Phase != v1alpha1.RunPartial {
		t.Errorf("phase is %s, want Partial", run.Phase)
	}
	for _, k := range run.Kinds {
		if k.Kind == "Pod" && (k.Phase != v1alpha1.RunPartial || !strings.Contains(k.Error, "skipped: ") || !strings.Contains(k.Error, "forbidden")) ||
			k.Kind != "Pod" && k.Phase != v1alpha1.RunComplete {
			t.Errorf("%+v", k)
		}
	}
	h.wantFindings("kept", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")
}

func TestSweepsComeAtTheirInterval(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.stop()
	h.configure = func(c *Config) { c.SweepInterval = 50 * time.Millisecond }
	h.start()
	eventually(h, "sweeps", true, func() bool { return len(h.sweepRuns()) >= 3 })
}
