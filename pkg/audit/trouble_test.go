package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
)

const badPod = "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing"

func lists(src *fakeSource) int {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.lists[podKind]
}

// A Namespace goes and comes, and its objects are there all the time: their streams
// have nothing to say.
func TestNamespaceThatComesBackLosesNothing(t *testing.T) {
	for name, pause := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			seed(t, src)
			h := newHarness(t, src)
			h.wantFindings("first audit", badPod)
			before := lists(src)
			src.remove(namespaceKind, "", "shop")
			if pause {
				h.wantFindings("namespace gone")
			}
			src.apply(t, object("v1", "Namespace", "", "shop", "tier: gold"))
			eventually(h, "list of Pods", before+1, func() int { return lists(src) })
			h.wantFindings("namespace back", badPod)
			eventually(h, "summary", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
			// Summaries are reported a moment after findings.
			eventually(h, "totals", v1alpha1.SummaryTotals{Evaluated: 2, Fail: 1}, func() v1alpha1.SummaryTotals { return h.summary("needlabel.owner").Totals })
		})
	}
}

// An object that the index cannot keep is named and costs nothing else.
func TestObjectThatCannotBeKept(t *testing.T) {
	for name, odd := range map[string]struct{ namespace, name, want string }{
		"zero byte": {"a\x00b", "p", `"a\x00b/p" cannot be kept: row key`},
		"long":      {"shop", strings.Repeat("x", 40_000), `xxxxx" cannot be kept: key too large`},
	} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			seed(t, src)
			h := newHarness(t, src)
			h.wantFindings("first audit", badPod)
			src.apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: %q, name: %q}}", odd.namespace, odd.name), pod("shop", "worse", "x: y"))
			h.wantFindings("the others", badPod, "NeedLabel/owner Pod shop/worse fail: v1: label owner is missing")
			eventually(h, "summary", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
			if message := h.summary("needlabel.owner").Message; !strings.Contains(message, odd.want) || len(message) > 500 {
				t.Errorf("the summary says %.1000q", message)
			}
			h.restart()
			eventually(h, "partial run", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
			src.remove(podKind, odd.namespace, odd.name)
			eventually(h, "summary", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
		})
	}
}

// While Namespaces cannot be followed, constraints that need them are not current.
func TestNamespacesThatCannotBeFollowed(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "gold", "Pod", "owner", "namespaceSelector: {matchLabels: {tier: gold}}"))
	h := newHarness(t, src)
	states := func() [2]v1alpha1.SummaryState {
		return [2]v1alpha1.SummaryState{h.summary("needlabel.gold").State, h.summary("needlabel.owner").State}
	}
	eventually(h, "first audit", [2]v1alpha1.SummaryState{v1alpha1.SummaryCurrent, v1alpha1.SummaryCurrent}, states)
	src.fail(namespaceKind, errForbidden)
	eventually(h, "failure", [2]v1alpha1.SummaryState{v1alpha1.SummaryPartial, v1alpha1.SummaryCurrent}, states)
	if message := h.summary("needlabel.gold").Message; !strings.Contains(message, "Namespace: pods is forbidden") {
		t.Errorf("the summary says %q", message)
	}
	eventually(h, "run", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	src.fail(namespaceKind, nil)
	eventually(h, "recovery", [2]v1alpha1.SummaryState{v1alpha1.SummaryCurrent, v1alpha1.SummaryCurrent}, states)
}

// Problems that hide objects make every total doubtful. They make runs without kinds,
// which complete nothing.
func TestProblemsThatHideObjects(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	eventually(h, "first audit", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	completed := h.summary("needlabel.owner").LastCompletedRun
	src.setProblems(source.Problem{Subject: "a.yaml", Message: "line 3: not YAML"}, source.Problem{Subject: "b.yaml", Message: "no kind"})
	eventually(h, "problem", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	if message := h.summary("needlabel.owner").Message; message != "problems that keep objects from being seen: 2, the first: a.yaml: line 3: not YAML; the newest AuditRun has them" {
		t.Errorf("the summary says %q", message)
	}
	eventually(h, "run", v1alpha1.TriggerProblemChange, func() v1alpha1.RunTrigger { return h.lastRun().Trigger })
	src.setProblems()
	eventually(h, "mended", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	if got := h.summary("needlabel.owner").LastCompletedRun; got != completed {
		t.Errorf("the last completed run is %s, want %s", got, completed)
	}
}

// A group whose kinds are not known concerns the constraints that select it.
func TestGroupThatCannotBeDiscovered(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, strings.Replace(constraint("NeedLabel", "core", "Pod", "owner", ""), `apiGroups: ["*"]`, `apiGroups: [""]`, 1))
	src.failGroup("metrics.k8s.io", errors.New("the server is down"))
	h := newHarness(t, src)
	eventually(h, "states", [2]v1alpha1.SummaryState{v1alpha1.SummaryPartial, v1alpha1.SummaryCurrent}, func() [2]v1alpha1.SummaryState {
		return [2]v1alpha1.SummaryState{h.summary("needlabel.owner").State, h.summary("needlabel.core").State}
	})
	if message := h.summary("needlabel.owner").Message; !strings.Contains(message, "kinds of the API group metrics.k8s.io: the server is down") {
		t.Errorf("the summary says %q", message)
	}
}

func TestSomeProblems(t *testing.T) {
	var problems []source.Problem
	for i := range 250 {
		problems = append(problems, source.Problem{Subject: fmt.Sprint(i), Message: strings.Repeat("ä", 5000)})
	}
	got := someProblems(problems)
	if len(got) != maxProblems+1 || got[99].Subject != "99" || len(got[0].Message) > maxProblemBytes {
		t.Errorf("%d problems, message of %d bytes", len(got), len(got[0].Message))
	}
	if want := (source.Problem{Subject: "more", Message: "150 more problems are not shown"}); got[100] != want {
		t.Errorf("the last is %+v", got[100])
	}
}

func TestDistinctNames(t *testing.T) {
	var summaries []*v1alpha1.ConstraintSummary
	for _, ref := range []v1alpha1.ConstraintReference{{Kind: "TAll", Name: "c"}, {Kind: "TALL", Name: "c"}, {Kind: "Tall", Name: "c"}, {Kind: "TAll", Name: "d"}} {
		summaries = append(summaries, newSummary(ref, "deny"))
	}
	var got []string
	for _, s := range distinctNames(summaries) {
		got = append(got, s.Name)
	}
	if diff := cmp.Diff([]string{"tall.c", "tall.c.", "tall.c.", "tall.d"}, []string{got[0], got[1][:7], got[2][:7], got[3]}); diff != "" || got[1] == got[2] {
		t.Errorf("%v: %s", got, diff)
	}
}

// failingOperation fails as often as a counter says.
type failingOperation struct {
	failures  int
	committal chan struct{}
}

func (f *failingOperation) prepare(context.Context) {}

func (f *failingOperation) apply(context.Context, *index.Tx) error {
	if f.failures--; f.failures >= 0 {
		return errors.New("disk full")
	}
	return nil
}

func (f *failingOperation) committed() { close(f.committal) }

// A writer that cannot write says so, and summaries are not served meanwhile.
func TestStalledWriter(t *testing.T) {
	db := openIndex(t)
	clk := clocktesting.NewFakeClock(time.Now())
	w := newWriter(db, clk, processMetrics())
	a := &Auditor{writer: w, firstRun: make(chan struct{})}
	close(a.firstRun)
	a.planner = newPlanner(a)
	a.planner.namespacesKnown.Store(true)
	op := &failingOperation{failures: 6, committal: make(chan struct{})}
	applied := make(chan error, 1)
	go func() { applied <- w.apply(context.Background(), []*queued{{operation: op}}) }()
	for i := range 6 {
		for !clk.HasWaiters() {
			time.Sleep(time.Millisecond)
		}
		ready, stalled := a.Ready(rows.ConstraintSummaries), a.Stalled()
		if wantErr := i >= 3; (ready != nil) != wantErr || (stalled != nil) != wantErr || wantErr && !strings.Contains(ready.Error(), "disk full") {
			t.Errorf("after %d s: summaries %v, stalled %v", i, ready, stalled)
		}
		if err := a.Ready(rows.AuditResults); err != nil {
			t.Errorf("results: %v", err)
		}
		clk.Step(retryInterval)
	}
	<-op.committal
	if err := <-applied; err != nil || a.Stalled() != nil || a.Ready(rows.ConstraintSummaries) != nil {
		t.Errorf("after it works: %v, %v", err, a.Stalled())
	}
}

// openIndex returns an empty index, which is closed at the end.
func openIndex(t *testing.T) *index.DB {
	t.Helper()
	opts := index.DefaultOptions()
	opts.Dir, opts.Tables = t.TempDir(), rows.Schemas()
	db, err := index.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}
