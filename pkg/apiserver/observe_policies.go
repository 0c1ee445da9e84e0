package apiserver

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// maxConstraints bounds the constraints that the metric of findings has by name. Of the
// others, which have the fewest findings, it has the sum, without a name.
const maxConstraints = 200

// policyMetrics are the metrics of policies and runs, as summaries and runs have them.
type policyMetrics struct {
	constraints, findings, ended *metrics.GaugeVec
	problems, ready, stalled     *metrics.Gauge

	mu sync.Mutex // protects the field below
	// shown are the series of findings.
	shown map[series]float64
}

// series are the labels of a series of the metric of findings.
type series struct{ kind, name, action, result string }

// processPolicyMetrics are the metrics of this process.
var processPolicyMetrics = sync.OnceValue(func() *policyMetrics {
	opts := func(subsystem, name, help string) *metrics.GaugeOpts {
		return &metrics.GaugeOpts{Namespace: "policy_apiserver", Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}
	}
	m := &policyMetrics{
		constraints: metrics.NewGaugeVec(opts("", "constraints", "Constraints, by state."), []string{"state"}),
		findings: metrics.NewGaugeVec(opts("", "findings", "Objects that do not comply with a constraint or could not be judged by it, by constraint, action and result. Of constraints beyond the 200 with the most findings it is the sum, without kind and name."),
			[]string{"constraint_kind", "constraint_name", "enforcement_action", "result"}),
		ended:    metrics.NewGaugeVec(opts("audit", "run_ended_timestamp_seconds", "When the last audit run of a phase ended, in seconds since 1970."), []string{"phase"}),
		problems: metrics.NewGauge(opts("audit", "problems", "What the last audit run that has ended could not look at: kinds that could not be listed, and other problems.")),
		ready:    metrics.NewGauge(opts("audit", "ready", "1 if findings can be served, 0 before the first audit has ended.")),
		stalled:  metrics.NewGauge(opts("audit", "stalled", "1 if findings are not kept up at the moment, because nothing can be written to the index.")),
	}
	legacyregistry.MustRegister(m.constraints, m.findings, m.ended, m.problems, m.ready, m.stalled)
	return m
})

// observePolicies looks at the summaries and runs once. What cannot be read keeps its
// last value.
func observePolicies(ctx context.Context, observed Observed, readiness readonly.Readiness, m *policyMetrics) {
	m.ready.Set(oneIf(readiness.Ready(rows.AuditResults) == nil))
	m.stalled.Set(oneIf(readiness.Stalled() != nil))
	if summaries, err := all[v1alpha1.ConstraintSummary](ctx, observed, rows.ConstraintSummaries); err == nil {
		m.setConstraints(summaries)
	}
	if runs, err := all[v1alpha1.AuditRun](ctx, observed, rows.AuditRuns); err == nil {
		m.setRuns(runs)
	}
}

// all decodes a small table.
func all[T any](ctx context.Context, observed Observed, table index.Table) ([]T, error) {
	page, err := observed.List(ctx, index.Query{Table: table, WithoutAttrs: true})
	if err != nil {
		return nil, err
	}
	out := make([]T, len(page.Rows))
	for i, row := range page.Rows {
		object, ok := any(&out[i]).(metav1.Object)
		if !ok {
			continue
		}
		if err := rows.Decode(row, object); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *policyMetrics) setConstraints(summaries []v1alpha1.ConstraintSummary) {
	states := map[v1alpha1.SummaryState]int{
		v1alpha1.SummaryNotYetAudited: 0, v1alpha1.SummaryCurrent: 0, v1alpha1.SummaryPartial: 0, v1alpha1.SummaryRejected: 0, v1alpha1.SummaryDeferred: 0,
	}
	total := func(s v1alpha1.ConstraintSummary) int64 { return s.Totals.Fail + s.Totals.Error + s.Totals.Deferred }
	slices.SortStableFunc(summaries, func(a, b v1alpha1.ConstraintSummary) int { return cmp.Compare(total(b), total(a)) })
	current := map[series]float64{}
	for i, summary := range summaries {
		states[summary.State]++
		kind, name := summary.Constraint.Kind, summary.Constraint.Name
		if i >= maxConstraints {
			kind, name = "", ""
		}
		for result, n := range map[v1alpha1.Result]int64{
			v1alpha1.ResultFail: summary.Totals.Fail, v1alpha1.ResultError: summary.Totals.Error, v1alpha1.ResultDeferred: summary.Totals.Deferred,
		} {
			current[series{kind, name, summary.EnforcementAction, string(result)}] += float64(n)
		}
	}
	for state, n := range states {
		m.constraints.WithLabelValues(string(state)).Set(float64(n))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, n := range current {
		m.findings.WithLabelValues(key.kind, key.name, key.action, key.result).Set(n)
	}
	// What is gone goes from the metric as well, and nothing else does meanwhile.
	for key := range m.shown {
		if _, ok := current[key]; !ok {
			m.findings.DeleteLabelValues(key.kind, key.name, key.action, key.result)
		}
	}
	m.shown = current
}

// setRuns is given the runs from the oldest to the newest, as their names sort.
func (m *policyMetrics) setRuns(runs []v1alpha1.AuditRun) {
	for _, run := range runs {
		if run.Finished == nil {
			continue
		}
		m.ended.WithLabelValues(string(run.Phase)).Set(float64(run.Finished.UnixMilli()) / float64(time.Second/time.Millisecond))
		if run.Phase == v1alpha1.RunAborted {
			continue
		}
		problems := len(run.Problems)
		for _, kind := range run.Kinds {
			if kind.Error != "" {
				problems++
			}
		}
		m.problems.Set(float64(problems))
	}
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}
