package enforcement

import (
	"slices"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// Results of requests.
const (
	resultAllowed = "allowed"
	resultWarned  = "warned" // allowed with warnings
	resultDenied  = "denied"
	resultExempt  = "exempt" // allowed unseen
	resultFailed  = "failed" // not judged; the failurePolicy decides
)

// verdictResults are the results of verdicts that are counted.
var verdictResults = map[policy.Outcome]string{policy.Fail: "fail", policy.Error: "error", policy.Deferred: "deferred"}

// other is what values of labels are counted as that a client or a policy made up.
const other = "other"

var (
	knownOperations = []string{policy.OperationCreate, policy.OperationUpdate, policy.OperationDelete, policy.OperationConnect}
	knownActions    = []string{actionDeny, actionWarn, "dryrun"}
)

// webhookMetrics are the metrics of a Webhook.
type webhookMetrics struct {
	requests *metrics.CounterVec
	duration *metrics.HistogramVec
	verdicts *metrics.CounterVec
}

// processMetrics are the metrics of this process: a registry takes a metric only once,
// however many webhooks there are.
var processMetrics = sync.OnceValue(func() *webhookMetrics {
	const namespace, subsystem = "policy_apiserver", "admission"
	m := &webhookMetrics{
		requests: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "requests_total", StabilityLevel: metrics.ALPHA,
			Help: "Admission requests, by operation and result: allowed, warned, denied, exempt, or failed if the failurePolicy of the webhook had to decide.",
		}, []string{"operation", "result"}),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "request_duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time to answer an admission request, from its header to its answer, by operation.",
			Buckets: []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, []string{"operation"}),
		verdicts: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "verdicts_total", StabilityLevel: metrics.ALPHA,
			Help: "Constraints that admission requests did not meet, by what is done about it and by result: fail, error or deferred.",
		}, []string{"action", "result"}),
	}
	legacyregistry.MustRegister(m.requests, m.duration, m.verdicts)
	return m
})

func (m *webhookMetrics) answered(operation, result string, duration time.Duration) {
	operation = knownOr(knownOperations, operation)
	m.requests.WithLabelValues(operation, result).Inc()
	m.duration.WithLabelValues(operation).Observe(duration.Seconds())
}

func (m *webhookMetrics) verdict(action, result string) {
	m.verdicts.WithLabelValues(knownOr(knownActions, action), result).Inc()
}

func knownOr(known []string, value string) string {
	if slices.Contains(known, value) {
		return value
	}
	return other
}
