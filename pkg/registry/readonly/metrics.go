package readonly

import (
	"errors"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/pkg/index"
)

// feedMetrics are the metrics of those who follow the feed: the watches of all
// resources.
type feedMetrics struct {
	watchers  *metrics.GaugeVec
	delivered *metrics.CounterVec
	dropped   *metrics.CounterVec

	mu        sync.Mutex // protects following
	following map[*watcher]struct{}
}

// processMetrics are the metrics of this process: a registry takes a metric only once,
// however many resources and servers there are.
var processMetrics = sync.OnceValue(func() *feedMetrics {
	name := func(name string) (namespace, subsystem, of string) { return "policy_apiserver", "feed", name }
	counter := func(of, help string) *metrics.CounterVec {
		opts := &metrics.CounterOpts{Help: help, StabilityLevel: metrics.ALPHA}
		opts.Namespace, opts.Subsystem, opts.Name = name(of)
		return metrics.NewCounterVec(opts, []string{"resource"})
	}
	gauge := func(of, help string) *metrics.GaugeOpts {
		opts := &metrics.GaugeOpts{Help: help, StabilityLevel: metrics.ALPHA}
		opts.Namespace, opts.Subsystem, opts.Name = name(of)
		return opts
	}
	m := &feedMetrics{
		watchers:  metrics.NewGaugeVec(gauge("watchers", "Watches that are open, by resource."), []string{"resource"}),
		delivered: counter("changes_delivered_total", "Changes that watches have handed over to be sent, by resource; initial states are not counted."),
		dropped:   counter("watchers_dropped_total", "Watches that were ended because they had fallen behind the history window, by resource."),
		following: map[*watcher]struct{}{},
	}
	lag := metrics.NewGaugeFunc(gauge("max_lag_revisions", "How many revisions the watch that is furthest behind has still to read; 0 if all are up to date."), m.maxLag)
	legacyregistry.MustRegister(m.watchers, m.delivered, m.dropped)
	legacyregistry.RawMustRegister(lag)
	return m
})

// opened counts a watch until the function that it returns is called with the error
// that ended it.
func (m *feedMetrics) opened(w *watcher) (closed func(error)) {
	resource := string(w.rest.Table)
	m.watchers.WithLabelValues(resource).Inc()
	m.mu.Lock()
	m.following[w] = struct{}{}
	m.mu.Unlock()
	return func(err error) {
		m.watchers.WithLabelValues(resource).Dec()
		m.mu.Lock()
		delete(m.following, w)
		m.mu.Unlock()
		if errors.Is(err, index.ErrCompacted) && (w.follows || w.initial) {
			m.dropped.WithLabelValues(resource).Inc()
		}
	}
}

// maxLag returns how many revisions the slowest watch is behind.
func (m *feedMetrics) maxLag() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	most := uint64(0)
	for w := range m.following {
		position, now := w.position.Load(), w.rest.backend.Index.Revision()
		if position > 0 && position < now {
			most = max(most, now-position)
		}
	}
	return float64(most)
}
