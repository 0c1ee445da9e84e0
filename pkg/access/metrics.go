package access

import (
	"errors"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// accessMetrics are the metrics of an Access.
type accessMetrics struct {
	views   *metrics.CounterVec
	reviews *metrics.CounterVec
	hits    *metrics.Counter
	watches *metrics.CounterVec
}

// processMetrics are the metrics of this process: a registry takes a metric only
// once.
var processMetrics = sync.OnceValue(func() *accessMetrics {
	m := &accessMetrics{
		views: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "access",
			Name:           "views_total",
			Help:           "Requests for findings and their summaries by what they were to show: unscoped, everything; scoped, what their user may see; unavailable, nothing, because the authorizer did not answer.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"scope"}),
		reviews: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "access",
			Name:           "reviews_total",
			Help:           "Questions to the authorizer whether a user may see findings, by result: allowed, denied or error.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
		hits: metrics.NewCounter(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "access",
			Name:           "cache_hits_total",
			Help:           "Questions whether a user may see findings that were answered without the authorizer.",
			StabilityLevel: metrics.ALPHA,
		}),
		watches: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace:      "policy_apiserver",
			Subsystem:      "access",
			Name:           "watches_ended_total",
			Help:           "Watches that were ended, by reason: changed if what the user may see has, unavailable if the authorizer did not answer.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"reason"}),
	}
	legacyregistry.MustRegister(m.views, m.reviews, m.hits, m.watches)
	return m
})

func (m *accessMetrics) viewed(v *View, err error) {
	scope := "scoped"
	switch {
	case errors.Is(err, ErrUnavailable):
		scope = "unavailable"
	case err != nil:
		return // not because of what may be seen
	case v.whole:
		scope = "unscoped"
	}
	m.views.WithLabelValues(scope).Inc()
}

func (m *accessMetrics) review(result string) { m.reviews.WithLabelValues(result).Inc() }

func (m *accessMetrics) ended(err error) { m.watches.WithLabelValues(reasonOf(err)).Inc() }
