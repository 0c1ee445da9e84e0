package audit

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// auditMetrics are the metrics of an Auditor.
type auditMetrics struct {
	evaluations  *metrics.CounterVec
	objects      *metrics.CounterVec
	transactions *metrics.Counter
	sweeps       *metrics.Counter
	differences  *metrics.Counter
	lag          *metrics.Histogram
	queue        *metrics.Gauge
}

// processMetrics are the metrics of this process: a registry takes a metric only
// once, however many Auditors there are.
var processMetrics = sync.OnceValue(func() *auditMetrics { return newMetrics(legacyregistry.MustRegister) })

// newMetrics makes metrics and registers them.
func newMetrics(register func(...metrics.Registerable)) *auditMetrics {
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
		transactions: metrics.NewCounter(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "audit",
			Name:           "transactions_total",
			Help:           "Transactions in which the audit wrote to the index, or tried to.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	m.sweeps = metrics.NewCounter(&metrics.CounterOpts{
		Namespace:      "policy_apiserver",
		Subsystem:      "audit",
		Name:           "sweeps_total",
		Help:           "Sweeps that came to their end.",
		StabilityLevel: metrics.ALPHA,
	})
	m.differences = metrics.NewCounter(&metrics.CounterOpts{
		Namespace:      "policy_apiserver",
		Subsystem:      "audit",
		Name:           "sweep_differences_total",
		Help:           "Objects of which a sweep found that the audit had missed a change.",
		StabilityLevel: metrics.ALPHA,
	})
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
	register(m.evaluations, m.objects, m.transactions, m.sweeps, m.differences, m.lag, m.queue)
	return m
}

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
