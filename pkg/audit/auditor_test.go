package audit

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
)

var (
	podKind       = schema.GroupKind{Kind: "Pod"}
	configMapKind = schema.GroupKind{Kind: "ConfigMap"}
)

// template requires the labels that parameters name; version tells versions of
// the program apart.
func template(kind, version string) string {
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
      violation[{"msg": msg}] {
        not input.review.object.metadata.labels[input.parameters.label]
        msg := sprintf("%s: label %%v is missing", [input.parameters.label])
      }
`, strings.ToLower(kind), kind, version)
}

func constraint(kind, name, kinds, label, more string) string {
	return fmt.Sprintf(`
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: %s
metadata: {name: %s}
spec:
  match:
    kinds: [{apiGroups: ["*"], kinds: [%s]}]
    %s
  parameters: {label: %s}
`, kind, name, kinds, more, label)
}

func object(apiVersion, kind, namespace, name, labels string) string {
	meta := fmt.Sprintf("{name: %s, labels: {%s}", name, labels)
	if namespace != "" {
		meta += ", namespace: " + namespace
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: %s}\n", apiVersion, kind, meta)
}

func pod(namespace, name, labels string) string {
	return object("v1", "Pod", namespace, name, labels)
}

// harness runs an Auditor over a source, mostly a fake one.
type harness struct {
	testing.TB
	src source.Source
	dir string
	db  *index.DB
	a   *Auditor
	// configure changes the configuration of Auditors, nil if that is not wanted.
	configure func(*Config)
	// patient makes sweeps wait for streams as long as it takes.
	patient bool
	cancel  context.CancelFunc
	done    chan error
	// options changes those of the index; nil leaves them alone.
	options func(*index.Options)
	// opened is called with each index before the audit runs; nil if nobody cares.
	opened func(*index.DB)
}

func newHarness(t testing.TB, src *fakeSource) *harness {
	t.Helper()
	h := &harness{TB: t, src: src, dir: t.TempDir()}
	src.addKind("constraints.gatekeeper.sh", "v1beta1", "NeedLabel", "needlabel", false)
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *harness) start() {
	h.Helper()
	opts := index.DefaultOptions()
	opts.Dir = h.dir
	opts.Tables = rows.Schemas()
	if h.options != nil {
		h.options(&opts)
	}
	db, err := index.Open(opts)
	if err != nil {
		h.Fatalf("open index: %v", err)
	}
	if h.opened != nil {
		h.opened(db)
	}
	config := Config{Source: h.src, Index: db, Workers: 2}
	if h.configure != nil {
		h.configure(&config)
	}
	a, err := New(config)
	if err != nil {
		h.Fatalf("new auditor: %v", err)
	}
	a.planner.referenceDelay = 100 * time.Millisecond
	a.roomInterval, a.refillInterval = 50*time.Millisecond, 500*time.Millisecond
	a.sweeper.grace = 300 * time.Millisecond
	if h.patient {
		a.sweeper.grace = time.Hour
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.db, h.a, h.cancel, h.done = db, a, cancel, make(chan error, 1)
	go func() {
		indexed := make(chan error, 1)
		go func() { indexed <- db.Run(ctx) }()
		h.done <- errors.Join(a.Run(ctx), <-indexed)
	}()
}

func (h *harness) stop() {
	if h.cancel == nil {
		return
	}
	h.cancel()
	h.cancel = nil
	if err := <-h.done; err != nil {
		h.Errorf("audit: %v", err)
	}
	if err := h.db.Check(context.Background()); err != nil {
		h.Errorf("index check: %v", err)
	}
	h.checkSummaries()
	if err := h.db.Close(); err != nil {
		h.Errorf("close index: %v", err)
	}
}

// checkSummaries compares the AuditSummaries with a count of the results.
func (h *harness) checkSummaries() {
	type group struct {
		namespace, constraint, kind, action string
	}
	want, got := map[group]v1alpha1.ResultTotals{}, map[group]v1alpha1.ResultTotals{}
	for _, r := range h.results() {
		if r.Namespace == "" {
			continue // cluster-scoped
		}
		key := group{r.Namespace, r.Constraint.Kind + "/" + r.Constraint.Name, r.Resource.Kind + "." + r.Resource.APIGroup, r.EnforcementAction}
		totals := want[key]
		switch r.Result {
		case v1alpha1.ResultFail:
			totals.Fail++
		case v1alpha1.ResultError:
			totals.Error++
		case v1alpha1.ResultDeferred:
			totals.Deferred++
		}
		want[key] = totals
	}
	page, err := h.db.List(context.Background(), index.Query{Table: rows.AuditSummaries})
	if err != nil {
		h.Errorf("list summaries: %v", err)
		return
	}
	for _, row := range page.Rows {
		var s v1alpha1.AuditSummary
		if err := rows.Decode(row, &s); err != nil {
			h.Errorf("decode: %v", err)
			return
		}
		got[group{s.Namespace, s.Constraint.Kind + "/" + s.Constraint.Name, s.Resource.Kind + "." + s.Resource.APIGroup, s.EnforcementAction}] = s.Totals
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(group{})); diff != "" {
		h.Errorf("summaries (-count of results +summaries):\n%s", diff)
	}
}

func (h *harness) restart() {
	h.stop()
	h.start()
}

// findings returns what the index says, one line a finding.
func (h *harness) findings() []string {
	h.Helper()
	var out []string
	for _, f := range h.results() {
		text := f.Message
		if len(f.Violations) > 0 {
			text = f.Violations[0].Message
		}
		out = append(out, fmt.Sprintf("%s/%s %s %s/%s %s: %s", f.Constraint.Kind, f.Constraint.Name, f.Resource.Kind, f.Resource.Namespace, f.Resource.Name, f.Result, text))
	}
	sort.Strings(out)
	return out
}

func (h *harness) results() []v1alpha1.AuditResult {
	h.Helper()
	var out []v1alpha1.AuditResult
	for _, table := range []index.Table{rows.AuditResults, rows.ClusterAuditResults} {
		page, err := h.db.List(context.Background(), index.Query{Table: table})
		if err != nil {
			h.Fatalf("list: %v", err)
		}
		for _, row := range page.Rows {
			var result v1alpha1.AuditResult
			if err := rows.Decode(row, &result); err != nil {
				h.Fatalf("decode: %v", err)
			}
			out = append(out, result)
		}
	}
	return out
}

func (h *harness) summary(name string) *v1alpha1.ConstraintSummary {
	h.Helper()
	row, err := h.db.Get(rows.ConstraintSummaries, index.Key{Name: name}, 0)
	if err != nil {
		return &v1alpha1.ConstraintSummary{}
	}
	var out v1alpha1.ConstraintSummary
	if err := rows.Decode(row, &out); err != nil {
		h.Fatalf("decode: %v", err)
	}
	return &out
}

func (h *harness) runs() []v1alpha1.AuditRun {
	h.Helper()
	page, err := h.db.List(context.Background(), index.Query{Table: rows.AuditRuns})
	if err != nil {
		h.Fatalf("list runs: %v", err)
	}
	var out []v1alpha1.AuditRun
	for _, row := range page.Rows {
		var run v1alpha1.AuditRun
		if err := rows.Decode(row, &run); err != nil {
			h.Fatalf("decode: %v", err)
		}
		out = append(out, run)
	}
	return out
}

func (h *harness) lastRun() v1alpha1.AuditRun {
	runs := h.runs()
	if len(runs) == 0 {
		return v1alpha1.AuditRun{}
	}
	return runs[len(runs)-1]
}

// eventually waits until got returns want.
func eventually[T any](h *harness, what string, want T, got func() T) {
	h.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		diff := cmp.Diff(want, got())
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			h.Fatalf("%s does not come about (-want +got):\n%s", what, diff)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (h *harness) wantFindings(what string, want ...string) {
	h.Helper()
	sort.Strings(want)
	if len(want) == 0 {
		eventually(h, what, 0, func() int { return len(h.findings()) })
		return
	}
	eventually(h, what, want, h.findings)
}

func (h *harness) waitLoaded() {
	h.Helper()
	select {
	case <-h.a.FirstRun():
	case <-time.After(20 * time.Second):
		h.Fatal("the first run does not end")
	}
}

func seed(t testing.TB, src *fakeSource) {
	src.addKind("constraints.gatekeeper.sh", "v1beta1", "NeedLabel", "needlabel", false)
	src.apply(t,
		object("v1", "Namespace", "", "shop", "tier: gold"),
		template("NeedLabel", "v1"),
		constraint("NeedLabel", "owner", "Pod", "owner", ""),
		pod("shop", "good", "owner: me"),
		pod("shop", "bad", "x: y"),
	)
}

func TestFindingsFollowObjects(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	bad := "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing"
	h.wantFindings("first audit", bad)
	h.waitLoaded()

	src.apply(t, pod("shop", "good", "x: y"))
	h.wantFindings("an object made bad", bad, "NeedLabel/owner Pod shop/good fail: v1: label owner is missing")
	src.apply(t, pod("shop", "good", "owner: me"))
	h.wantFindings("an object made good", bad)
	src.remove(podKind, "shop", "bad")
	h.wantFindings("an object deleted")
}

func TestFindingsFollowPolicies(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.wantFindings("first audit", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")

	src.apply(t, template("NeedLabel", "v2"))
	h.wantFindings("template changed", "NeedLabel/owner Pod shop/bad fail: v2: label owner is missing")
	src.apply(t, constraint("NeedLabel", "team", "Pod", "team", ""))
	h.wantFindings("constraint added",
		"NeedLabel/owner Pod shop/bad fail: v2: label owner is missing",
		"NeedLabel/team Pod shop/bad fail: v2: label team is missing",
		"NeedLabel/team Pod shop/good fail: v2: label team is missing")
	src.apply(t, constraint("NeedLabel", "team", "ConfigMap", "team", ""))
	h.wantFindings("constraint moved to another kind", "NeedLabel/owner Pod shop/bad fail: v2: label owner is missing")
	gk := schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}
	src.remove(gk, "", "owner")
	h.wantFindings("constraint deleted")
	src.apply(t, constraint("NeedLabel", "owner", "Pod", "owner", ""))
	h.wantFindings("constraint made again", "NeedLabel/owner Pod shop/bad fail: v2: label owner is missing")
	src.apply(t, strings.Replace(template("NeedLabel", "v3"), "msg := sprintf", "msg := := sprintf", 1))
	h.wantFindings("template broken")
	eventually(h, "rejection", v1alpha1.SummaryRejected, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	src.apply(t, template("NeedLabel", "v4"))
	h.wantFindings("template mended", "NeedLabel/owner Pod shop/bad fail: v4: label owner is missing")
}

func TestConstraintOfTheSameIdentityComesBack(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	want := "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing"
	h.wantFindings("first audit", want)
	gk := schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}
	src.mu.Lock()
	same := src.objects[gk][source.ObjectKey{Name: "owner"}].DeepCopy()
	src.mu.Unlock()
	src.remove(gk, "", "owner")
	h.wantFindings("constraint deleted")
	src.mu.Lock()
	src.objects[gk][source.ObjectKey{Name: "owner"}] = same
	src.send(gk, func(handler source.Handler) { handler.Upsert(same.DeepCopy()) })
	src.mu.Unlock()
	h.wantFindings("the very same constraint made again", want)
}

func TestResultsAreWhereTheirObjectsAre(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t,
		constraint("NeedLabel", "everything", `"*"`, "zone", ""),
		object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "system:node", "a: b"))
	h := newHarness(t, src)
	h.waitLoaded()
	eventually(h, "places", map[string]string{"Namespace/shop": "shop", "Pod/bad": "shop", "ClusterRole/system:node": ""}, func() map[string]string {
		places := map[string]string{}
		for _, r := range h.results() {
			if r.Constraint.Name == "everything" && r.Resource.Name != "good" && r.Resource.Kind != "ConstraintTemplate" && r.Resource.Kind != "NeedLabel" {
				places[r.Resource.Kind+"/"+r.Resource.Name] = r.Namespace
			}
		}
		return places
	})
}

func TestDeletedNamespaceTakesItsResultsAlong(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.wantFindings("first audit", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")
	src.remove(namespaceKind, "", "shop")
	h.wantFindings("namespace deleted")
}

func TestNamespaceLabelsAreFollowed(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "gold", "Pod", "gold", "namespaceSelector: {matchLabels: {tier: gold}}"),
		object("v1", "Namespace", "", "lab", "tier: tin"), pod("lab", "p", "owner: me"))
	h := newHarness(t, src)
	base := []string{
		"NeedLabel/gold Pod shop/bad fail: v1: label gold is missing",
		"NeedLabel/gold Pod shop/good fail: v1: label gold is missing",
		"NeedLabel/owner Pod shop/bad fail: v1: label owner is missing",
	}
	h.wantFindings("first audit", base...)
	src.apply(t, object("v1", "Namespace", "", "lab", "tier: gold"))
	h.wantFindings("namespace relabelled", append([]string{"NeedLabel/gold Pod lab/p fail: v1: label gold is missing"}, base...)...)

	// A Pod that is seen before its Namespace gets an error, and a verdict as soon as
	// the Namespace is there.
	src.apply(t, pod("new", "p", "owner: me"))
	eventually(h, "error", 1, func() int {
		n := 0
		for _, r := range h.results() {
			if r.Namespace == "new" && r.Result == v1alpha1.ResultError && r.Constraint.Name == "gold" {
				n++
			}
		}
		return n
	})
	src.apply(t, object("v1", "Namespace", "", "new", "tier: tin"))
	eventually(h, "verdict", 0, func() int {
		n := 0
		for _, r := range h.results() {
			if r.Namespace == "new" {
				n++
			}
		}
		return n
	})
}

func TestKindThatCannotBeListedIsVisible(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "maps", "ConfigMap", "owner", ""), object("v1", "ConfigMap", "shop", "m", "x: y"))
	h := newHarness(t, src)
	h.wantFindings("first audit",
		"NeedLabel/owner Pod shop/bad fail: v1: label owner is missing",
		"NeedLabel/maps ConfigMap shop/m fail: v1: label owner is missing")
	h.stop()
	src.fail(podKind, errForbidden)
	src.mu.Lock()
	delete(src.objects[podKind], source.ObjectKey{Namespace: "shop", Name: "bad"})
	src.mu.Unlock()
	h.start()
	eventually(h, "partial run", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	for _, k := range h.lastRun().Kinds {
		if k.Kind == "Pod" && !strings.Contains(k.Error, "forbidden") {
			t.Errorf("run says of Pods: %+v", k)
		}
	}
	eventually(h, "summary of Pods", v1alpha1.SummaryPartial, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
	eventually(h, "summary of ConfigMaps", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needlabel.maps").State })
	h.wantFindings("old findings are kept",
		"NeedLabel/owner Pod shop/bad fail: v1: label owner is missing",
		"NeedLabel/maps ConfigMap shop/m fail: v1: label owner is missing")
	src.fail(podKind, nil)
	h.wantFindings("the kind works again", "NeedLabel/maps ConfigMap shop/m fail: v1: label owner is missing")
	eventually(h, "complete run", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	eventually(h, "summary of Pods", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needlabel.owner").State })
}

func TestProblemsMakeARunPartial(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.waitLoaded()
	src.setProblems(source.Problem{Subject: "a.yaml", Message: "line 3: not YAML"})
	eventually(h, "problem", []v1alpha1.RunProblem{{Subject: "a.yaml", Message: "line 3: not YAML"}}, func() []v1alpha1.RunProblem { return h.lastRun().Problems })
	if phase := h.lastRun().Phase; phase != v1alpha1.RunPartial {
		t.Errorf("phase is %s, want Partial", phase)
	}
	src.setProblems()
	eventually(h, "complete run", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
}

func TestGroupWhoseDiscoveryFailsKeepsItsFindings(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.apply(t, constraint("NeedLabel", "roles", "ClusterRole", "owner", ""), object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "r", "x: y"))
	h := newHarness(t, src)
	want := []string{
		"NeedLabel/owner Pod shop/bad fail: v1: label owner is missing",
		"NeedLabel/roles ClusterRole /r fail: v1: label owner is missing",
	}
	h.wantFindings("first audit", want...)
	src.failGroup("rbac.authorization.k8s.io", fmt.Errorf("the server is currently unable to handle the request"))
	eventually(h, "problem", 1, func() int { return len(h.lastRun().Problems) })
	h.wantFindings("kept", want...)
	h.restart()
	eventually(h, "partial run", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	h.wantFindings("kept over a restart", want...)
	src.failGroup("rbac.authorization.k8s.io", nil)
	src.removeKind(schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"})
	h.wantFindings("the kind is gone", want[:1]...)
}

func TestRestartEvaluatesNothingAgain(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.wantFindings("first audit", "NeedLabel/owner Pod shop/bad fail: v1: label owner is missing")
	eventually(h, "complete run", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	before := h.results()
	h.stop()
	src.apply(t, pod("shop", "later", "x: y"))
	h.start()
	// Nothing but Namespaces is waited for.
	if err := h.a.Ready(rows.AuditResults); err != nil && !strings.Contains(err.Error(), "Namespaces") {
		t.Errorf("findings are not served right after a restart: %v", err)
	}
	eventually(h, "findings", true, func() bool { return h.a.Ready(rows.AuditResults) == nil })
	eventually(h, "second run", 2, func() int {
		n := 0
		for _, r := range h.runs() {
			if r.Phase == v1alpha1.RunComplete && r.Trigger == v1alpha1.TriggerStartup {
				n++
			}
		}
		return n
	})
	run := h.lastRun()
	if run.Listed != 3 || run.Evaluated != 1 || run.Unchanged != 2 {
		t.Errorf("listed %d, evaluated %d, unchanged %d; want 3, 1, 2", run.Listed, run.Evaluated, run.Unchanged)
	}
	for _, r := range h.results() {
		if r.Name == before[0].Name {
			if diff := cmp.Diff(before[0], r); diff != "" {
				t.Errorf("an old finding has changed (-before +after):\n%s", diff)
			}
		}
	}
}

func TestNothingIsServedBeforeTheFirstRunEnds(t *testing.T) {
	src := newFakeSource()
	h := newHarness(t, src)
	src.fail(templateKind, errForbidden)
	h.stop()
	h.start()
	eventually(h, "reason", true, func() bool {
		err := h.a.Ready(rows.AuditResults)
		return err != nil && strings.Contains(err.Error(), "ConstraintTemplate") || err == nil
	})
	if err := h.a.Ready(rows.AuditRuns); err != nil {
		t.Errorf("runs are not served: %v", err)
	}
}
