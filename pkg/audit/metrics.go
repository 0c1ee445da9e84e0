package audit

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// auditMetrics are the metrics of an Auditor.
type auditMetrics struct {
	evaluations *metrics.CounterVec
	objects     *metrics.CounterVec
	lag         *metrics.Histogram
	queue       *metrics.Gauge
}

// processMetrics are the metrics of this process: a registry takes a metric only
// once, however many Auditors there are.
var processMetrics = sync.OnceValue(func() *auditMetrics {
	m := &auditMetrics{
		evaluations: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "audit",
			Name:           "evaluations_total",
			Help:           "Evaluations of one constraint on one object, by result.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
		objects: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "audit",
			Name:           "objects_total",
			Help:           "Objects handed over by the source, by whether anything about them had to be evaluated: evaluated or unchanged.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"outcome"}),
	}
	m.lag = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace:      "policy_apiserver",
		Subsystem:      "audit",
		Name:           "lag_seconds",
		Help:           "Time from the arrival of a change until its findings can be seen.",
		Buckets:        metrics.ExponentialBuckets(0.005, 2, 15), // to 82 s
		StabilityLevel: metrics.ALPHA,
	})
	m.queue = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace:      "policy_apiserver",
		Subsystem:      "audit",
		Name:           "queue_length",
		Help:           "Changes that wait for their evaluation or for being written, when the last transaction began.",
		StabilityLevel: metrics.ALPHA,
	})
	legacyregistry.MustRegister(m.evaluations, m.objects, m.lag, m.queue)
	return m
})

var outcomeLabels = map[policy.Outcome]string{
	policy.NotMatched: "not_matched",
	policy.Pass:       "pass",
	policy.Fail:       "fail",
	policy.Error:      "error",
	policy.Deferred:   "deferred",
}

func (m *auditMetrics) evaluated(outcome policy.Outcome) {
	m.evaluations.WithLabelValues(outcomeLabels[outcome]).Inc()
}

func (m *auditMetrics) object(evaluated bool) {
	outcome := "unchanged"
	if evaluated {
		outcome = "evaluated"
	}
	m.objects.WithLabelValues(outcome).Inc()
}
