package audit

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
)

// A constraint that names a kind which is not audited does not look clean, and one that
// selects it by a wildcard is about the others.
func TestAKindThatIsNotAuditedIsNamed(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	event := source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Event"}, Resource: "events", Namespaced: true}
	src.mu.Lock()
	src.unstreamed = []source.UnstreamedKind{{Kind: event, Reason: "Events are not audited"}}
	src.mu.Unlock()
	src.apply(t, constraint("NeedLabel", "events", "Event", "owner", ""), constraint("NeedLabel", "both", "Event, ConfigMap", "owner", ""), constraint("NeedLabel", "any", `"*"`, "owner", ""))
	h := newHarness(t, src)
	for name, want := range map[string]v1alpha1.SummaryState{
		"needlabel.events": v1alpha1.SummaryPartial, "needlabel.both": v1alpha1.SummaryPartial,
		"needlabel.any": v1alpha1.SummaryCurrent, "needlabel.owner": v1alpha1.SummaryCurrent,
	} {
		eventually(h, "state of "+name, want, func() v1alpha1.SummaryState { return h.summary(name).State })
	}
	if message := h.summary("needlabel.events").Message; !strings.Contains(message, "Event: Events are not audited") {
		t.Errorf("the message is %q", message)
	}
	if run := h.lastRun(); run.Phase != v1alpha1.RunPartial || len(run.Problems) != 1 || run.Problems[0].Subject != "Event" {
		t.Errorf("the run is %s, with problems %+v", run.Phase, run.Problems)
	}
	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}, "", "events")
	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}, "", "both")
	eventually(h, "a run without problems", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
}

// The stream of a kind of policies follows its preferred version.
func TestPoliciesAreReadInThePreferredVersion(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.waitLoaded()
	src.addKind("templates.gatekeeper.sh", "v1beta1", "ConstraintTemplate", "constrainttemplates", false)
	eventually(h, "versions of ConstraintTemplates", []string{"templates.gatekeeper.sh/v1beta1"}, func() []string { return src.versionsOf(templateKind) })
	src.addKind(constraintGroup, "v1", "NeedLabel", "needlabel", false)
	gk := schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}
	eventually(h, "versions of constraints", []string{constraintGroup + "/v1"}, func() []string { return src.versionsOf(gk) })
	src.apply(t, template("NeedLabel", "v2"))
	h.wantFindings("policies are followed", "NeedLabel/owner Pod shop/bad fail: v2: label owner is missing")
}

func TestFailingKindsSayHowOldTheirFindingsAre(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.waitLoaded()
	want := "its findings are kept, as of " + time.Now().UTC().Format("2006-01-02T")
	src.fail(podKind, errForbidden)
	says := func() bool { return strings.Contains(h.summary("needlabel.owner").Message, want) }
	eventually(h, "the age in the summary", true, says)
	h.restart()
	eventually(h, "the age in the summary after a restart", true, says)
	eventually(h, "the age in the run", true, func() bool {
		return slices.ContainsFunc(h.lastRun().Kinds, func(k v1alpha1.KindRun) bool { return k.Kind == "Pod" && strings.Contains(k.Error, want) })
	})
	h.wantFindings("kept", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")
	src.fail(podKind, nil)
	eventually(h, "the summary is current", "", func() string { return h.summary("needlabel.owner").Message })
}

// A Namespace that is made anew under its name takes the findings of the old one along,
// however little is seen of its end, though Pods cannot be listed.
func TestAnotherNamespaceOfTheSameName(t *testing.T) {
	replace := func(src *fakeSource) *unstructured.Unstructured {
		src.mu.Lock()
		defer src.mu.Unlock()
		obj := src.objects[namespaceKind][source.ObjectKey{Name: "shop"}].DeepCopy()
		obj.SetUID(types.UID("the new tenant's"))
		src.objects[namespaceKind][source.ObjectKey{Name: "shop"}] = obj
		return obj
	}
	finding := "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing"
	for name, change := range map[string]func(src *fakeSource, h *harness){
		"while the server is away": func(src *fakeSource, h *harness) {
			h.stop()
			replace(src)
			h.start()
		},
		"in a watch that says only that it is there": func(src *fakeSource, _ *harness) {
			obj := replace(src)
			src.mu.Lock()
			defer src.mu.Unlock()
			src.send(namespaceKind, func(handler source.Handler) { handler.Upsert(obj.DeepCopy()) })
		},
		"in a list": func(src *fakeSource, _ *harness) {
			replace(src)
			src.mu.Lock()
			defer src.mu.Unlock()
			src.send(namespaceKind, nil)
		},
		"gone while the server is away": func(src *fakeSource, h *harness) {
			h.stop()
			src.miss(func(objects map[schema.GroupKind]map[source.ObjectKey]*unstructured.Unstructured) {
				delete(objects[namespaceKind], source.ObjectKey{Name: "shop"})
			})
			h.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			seed(t, src)
			h := newHarness(t, src)
			h.wantFindings("first audit", finding)
			h.waitLoaded()
			src.fail(podKind, errForbidden)
			eventually(h, "the failure", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
			change(src, h)
			// Nobody sees the others meanwhile.
			for len(h.findings()) > 0 {
				if strings.Contains(name, "away") && h.a.Ready(rows.AuditResults) == nil && len(h.findings()) > 0 {
					t.Fatal("findings of the tenant before are served")
				}
			}
			h.wantFindings("of the new tenant")
			src.fail(podKind, nil)
			h.wantFindings("Pods that are there", finding)
		})
	}
}

func TestTheIndexOfAnotherSourceIsDropped(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.stop()
	h.configure = func(c *Config) { c.SourceID = "cluster" }
	h.start()
	h.waitLoaded()
	h.wantFindings("first audit", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")
	h.restart()
	if n := len(h.findings()); n != 1 {
		t.Errorf("%d findings after a restart over the same source, want 1", n)
	}
	runs := h.runs()
	h.stop()
	other := newFakeSource()
	seed(t, other)
	other.remove(podKind, "shop", "bad")
	other.fail(podKind, errForbidden)
	h.src = other
	h.configure = func(c *Config) { c.SourceID = "dir:/manifests" }
	h.start()
	if got := h.findings(); len(got) != 0 {
		t.Errorf("findings of the other source: %v", got)
	}
	if err := h.a.Ready(rows.AuditResults); err == nil {
		t.Error("findings are served before the first run over the new source has ended")
	}
	eventually(h, "a run", true, func() bool { return len(h.runs()) > 0 })
	for _, old := range runs {
		if slices.ContainsFunc(h.runs(), func(r v1alpha1.AuditRun) bool { return r.Name == old.Name }) {
			t.Errorf("there is still the run %s of the other source", old.Name)
		}
	}
}

// TestTheWriterKnowsHowFarItIsBehind: an operation that is not prepared holds it up.
func TestTheWriterKnowsHowFarItIsBehind(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	db := openIndex(t)
	w := newWriter(db, clk, processMetrics())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	done := make(chan struct{})
	q := &queued{operation: &barrier{done: done}, submitted: clk.Now(), prepared: make(chan struct{})}
	w.queue <- q
	for w.head.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if at := w.behind(); !at.IsZero() {
		t.Errorf("behind since %v at once", at)
	}
	submitted := clk.Now()
	clk.Step(backlogTolerance)
	if at := w.behind(); !at.Equal(submitted) {
		t.Errorf("behind since %v, want %v", at, submitted)
	}
	close(q.prepared)
	for !clk.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	clk.Step(maxBatchDelay)
	<-done
	for !w.behind().IsZero() {
		time.Sleep(time.Millisecond)
	}
}

func TestAKindThatGoesWhileItIsListed(t *testing.T) {
	pods := source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}}
	maps := source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}}
	for _, gone := range []bool{true, false} {
		tr := newTracker(clocktesting.NewFakeClock(time.Now()))
		tr.beginRun(v1alpha1.TriggerStartup, []source.Kind{pods, maps}, "", nil)
		stream := &kindStream{kind: maps}
		tr.listStarted(stream)
		tr.listDone(stream, &constraintSet{}, "7")
		tr.kindGone(podKind, gone)
		if len(tr.ended) != 1 {
			t.Fatalf("the run has not ended")
		}
		run := tr.ended[0].object()
		if want := map[bool]v1alpha1.RunPhase{true: v1alpha1.RunPartial, false: v1alpha1.RunComplete}[gone]; run.Phase != want {
			t.Errorf("gone %v: the run is %s, want %s", gone, run.Phase, want)
		}
		named := slices.ContainsFunc(run.Kinds, func(k v1alpha1.KindRun) bool { return k.Kind == "Pod" && strings.Contains(k.Error, "went") })
		if named != gone {
			t.Errorf("gone %v: kinds are %+v", gone, run.Kinds)
		}
	}
}

func TestSummariesSayThatChangesWait(t *testing.T) {
	tr := newTracker(clocktesting.NewFakeClock(time.Now()))
	c := &constraintStatus{Constraint: &policy.Constraint{Digest: "d"}, kinds: []schema.GroupKind{podKind}}
	tr.status(podKind).listed = map[string]struct{}{"d": {}}
	if state, message := tr.constraintState(c); state != v1alpha1.SummaryCurrent || message != "" {
		t.Errorf("the state is %s: %q", state, message)
	}
	since := time.Now().Add(-time.Minute)
	if !tr.setBehind(since) || tr.setBehind(since) {
		t.Error("only the first is news")
	}
	if state, message := tr.constraintState(c); state != v1alpha1.SummaryPending || !strings.Contains(message, since.UTC().Format(time.RFC3339)) {
		t.Errorf("the state is %s: %q", state, message)
	}
}
