package export

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// exportMetrics are the metrics of an Exporter.
type exportMetrics struct {
	lines           *metrics.CounterVec
	dropped, errors *metrics.Counter
}

// processMetrics are the metrics of this process: a registry takes a metric only once,
// however many Exporters there are.
var processMetrics = sync.OnceValue(func() *exportMetrics {
	opts := func(name, help string) *metrics.CounterOpts {
		return &metrics.CounterOpts{Namespace: "policy_apiserver", Subsystem: "export", Name: name, Help: help, StabilityLevel: metrics.ALPHA}
	}
	m := &exportMetrics{
		lines:   metrics.NewCounterVec(opts("lines_total", "Lines exported, by event type; the frame around all findings has none."), []string{"event_type"}),
		dropped: metrics.NewCounter(opts("dropped_changes_total", "Changes of the index, at most, that were not exported because the lines were not read in time.")),
		errors:  metrics.NewCounter(opts("errors_total", "Failures to export, each of which is tried again.")),
	}
	legacyregistry.MustRegister(m.lines, m.dropped, m.errors)
	return m
})
