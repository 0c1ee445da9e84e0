package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// readiness of an audit.
type readiness struct{ ready, stalled error }

func (r readiness) Ready(index.Table) error { return r.ready }
func (r readiness) Stalled() error          { return r.stalled }

func put(t *testing.T, db *index.DB, objects ...metav1.Object) {
	t.Helper()
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for _, object := range objects {
			row, err := rows.Encode(object)
			if err != nil {
				return err
			}
			if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func summary(kind, name, action string, state v1alpha1.SummaryState, totals v1alpha1.SummaryTotals) *v1alpha1.ConstraintSummary {
	return &v1alpha1.ConstraintSummary{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(kind) + "." + name},
		Constraint: v1alpha1.ConstraintReference{Kind: kind, Name: name}, EnforcementAction: action, State: state, Totals: totals,
	}
}

// TestObservePolicies has metrics of summaries and runs, bounded, and none of what is
// gone.
func TestObservePolicies(t *testing.T) {
	db := indextest.MustOpen(t, rows.Schemas())
	ended := func(s int64) *metav1.Time { return &metav1.Time{Time: time.Unix(s, 0)} }
	put(t, db,
		summary("Labels", "owner", "deny", v1alpha1.SummaryCurrent, v1alpha1.SummaryTotals{Fail: 3, Error: 1}),
		summary("Images", "pinned", "warn", v1alpha1.SummaryPartial, v1alpha1.SummaryTotals{Fail: 2}),
		summary("Broken", "one", "deny", v1alpha1.SummaryRejected, v1alpha1.SummaryTotals{}),
		&v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-1"}, Phase: v1alpha1.RunComplete, Finished: ended(100)},
		&v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-2"}, Phase: v1alpha1.RunComplete, Finished: ended(200)},
		&v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-3"}, Phase: v1alpha1.RunPartial, Finished: ended(300), Problems: []v1alpha1.RunProblem{{}}, Kinds: []v1alpha1.KindRun{{Error: "x"}, {}}},
		&v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-4"}, Phase: v1alpha1.RunAborted, Finished: ended(400)},
		&v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-5"}, Phase: v1alpha1.RunRunning},
	)
	names := []string{
		"policy_apiserver_constraints", "policy_apiserver_findings", "policy_apiserver_audit_run_ended_timestamp_seconds",
		"policy_apiserver_audit_problems", "policy_apiserver_audit_ready", "policy_apiserver_audit_stalled",
	}
	check := func(want string) {
		t.Helper()
		var text strings.Builder
		for line := range strings.Lines(want) {
			text.WriteString(strings.TrimSpace(line) + "\n")
		}
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(text.String()), names...); err != nil {
			t.Error(err)
		}
	}
	help := `
		# HELP policy_apiserver_audit_problems [ALPHA] What the last audit run that has ended could not look at: kinds that could not be listed, and other problems.
		# TYPE policy_apiserver_audit_problems gauge
		policy_apiserver_audit_problems 2
		# HELP policy_apiserver_audit_ready [ALPHA] 1 if findings can be served, 0 before the first audit has ended.
		# TYPE policy_apiserver_audit_ready gauge
		policy_apiserver_audit_ready 1
		# HELP policy_apiserver_audit_run_ended_timestamp_seconds [ALPHA] When the last audit run of a phase ended, in seconds since 1970.
		# TYPE policy_apiserver_audit_run_ended_timestamp_seconds gauge
		policy_apiserver_audit_run_ended_timestamp_seconds{phase="Aborted"} 400
		policy_apiserver_audit_run_ended_timestamp_seconds{phase="Complete"} 200
		policy_apiserver_audit_run_ended_timestamp_seconds{phase="Partial"} 300
		# HELP policy_apiserver_audit_stalled [ALPHA] 1 if findings are not kept up at the moment, because nothing can be written to the index.
		# TYPE policy_apiserver_audit_stalled gauge
		policy_apiserver_audit_stalled 0
		# HELP policy_apiserver_constraints [ALPHA] Constraints, by state.
		# TYPE policy_apiserver_constraints gauge
		policy_apiserver_constraints{state="Current"} 1
		policy_apiserver_constraints{state="Deferred"} 0
		policy_apiserver_constraints{state="NotYetAudited"} 0
		policy_apiserver_constraints{state="Partial"} 1
		policy_apiserver_constraints{state="Rejected"} 1
		# HELP policy_apiserver_findings [ALPHA] Objects that do not comply with a constraint or could not be judged by it, by constraint, action and result. Of constraints beyond the 200 with the most findings it is the sum, without kind and name.
		# TYPE policy_apiserver_findings gauge
		`
	observePolicies(t.Context(), db, readiness{}, processPolicyMetrics())
	check(help + `policy_apiserver_findings{constraint_kind="Broken",constraint_name="one",enforcement_action="deny",result="deferred"} 0
		policy_apiserver_findings{constraint_kind="Broken",constraint_name="one",enforcement_action="deny",result="error"} 0
		policy_apiserver_findings{constraint_kind="Broken",constraint_name="one",enforcement_action="deny",result="fail"} 0
		policy_apiserver_findings{constraint_kind="Images",constraint_name="pinned",enforcement_action="warn",result="deferred"} 0
		policy_apiserver_findings{constraint_kind="Images",constraint_name="pinned",enforcement_action="warn",result="error"} 0
		policy_apiserver_findings{constraint_kind="Images",constraint_name="pinned",enforcement_action="warn",result="fail"} 2
		policy_apiserver_findings{constraint_kind="Labels",constraint_name="owner",enforcement_action="deny",result="deferred"} 0
		policy_apiserver_findings{constraint_kind="Labels",constraint_name="owner",enforcement_action="deny",result="error"} 1
		policy_apiserver_findings{constraint_kind="Labels",constraint_name="owner",enforcement_action="deny",result="fail"} 3
		`)

	// More constraints than are named: the largest are.
	many := indextest.MustOpen(t, rows.Schemas())
	for i := range maxConstraints + 5 {
		put(t, many, summary("Many", fmt.Sprintf("c-%d", i), "deny", v1alpha1.SummaryCurrent, v1alpha1.SummaryTotals{Fail: int64(i + 1)}))
	}
	observePolicies(t.Context(), many, readiness{ready: errors.New("not yet"), stalled: errors.New("disk full")}, processPolicyMetrics())
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		switch family.GetName() {
		case "policy_apiserver_findings":
			if n := len(family.GetMetric()); n != 3*(maxConstraints+1) {
				t.Errorf("there are %d series", n)
			}
			for _, metric := range family.GetMetric() {
				labels := map[string]string{}
				for _, label := range metric.GetLabel() {
					labels[label.GetName()] = label.GetValue()
				}
				switch {
				case labels["constraint_kind"] == "Labels":
					t.Errorf("a constraint that is gone: %v", labels)
				case labels["constraint_kind"] == "" && labels["result"] == "fail" && metric.GetGauge().GetValue() != 1+2+3+4+5:
					t.Errorf("the others have %v", metric.GetGauge().GetValue())
				}
			}
		case "policy_apiserver_audit_ready":
			if family.GetMetric()[0].GetGauge().GetValue() != 0 {
				t.Error("it is ready")
			}
		case "policy_apiserver_audit_stalled":
			if family.GetMetric()[0].GetGauge().GetValue() != 1 {
				t.Error("it is not stalled")
			}
		}
	}
}
