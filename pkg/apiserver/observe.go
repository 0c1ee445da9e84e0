package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
)

// observeInterval is how often the index is looked at. Counts that are three minutes
// old are stale for priority and fairness.
const observeInterval = 15 * time.Second

// objectSize is about how many bytes an object has. Priority and fairness estimates
// with it how much memory a list takes.
const objectSize = 1 << 10

// Observed is what is observed of an index.
type Observed interface {
	// List returns the rows that a query asks for.
	List(ctx context.Context, q index.Query) (*index.Page, error)
	// Count returns the number of rows of a table.
	Count(t index.Table, terms ...index.Term) (int64, error)
	// Revision returns the last revision, Compacted the oldest one that can be read.
	Revision() uint64
	Compacted() uint64
	// Size returns the size of the file in bytes.
	Size() (int64, error)
}

// indexMetrics are the metrics of an index.
type indexMetrics struct {
	rows                           *metrics.GaugeVec
	revision, compacted, sizeBytes *metrics.Gauge
}

// processMetrics are the metrics of this process: a registry takes a metric only
// once, however many servers there are.
var processMetrics = sync.OnceValue(func() *indexMetrics {
	opts := func(name, help string) *metrics.GaugeOpts {
		return &metrics.GaugeOpts{Namespace: "policy_apiserver", Subsystem: "index", Name: name, Help: help, StabilityLevel: metrics.ALPHA}
	}
	m := &indexMetrics{
		rows:      metrics.NewGaugeVec(opts("rows", "Objects in the index, by resource."), []string{"resource"}),
		revision:  metrics.NewGauge(opts("revision", "Last revision of the index: the resourceVersion of a list now.")),
		compacted: metrics.NewGauge(opts("compacted_revision", "Oldest revision that can be listed or watched from.")),
		sizeBytes: metrics.NewGauge(opts("size_bytes", "Size of the file of the index.")),
	}
	legacyregistry.MustRegister(m.rows, m.revision, m.compacted, m.sizeBytes)
	return m
})

// addObserver adds a hook that keeps up the metrics of the index and the numbers of
// objects from which priority and fairness estimates how much work a list is.
func addObserver(generic *genericapiserver.GenericAPIServer, tracker flowcontrolrequest.StorageObjectCountTracker, observed Observed, readiness readonly.Readiness) error {
	err := generic.AddPostStartHook("observe-index", func(hook genericapiserver.PostStartHookContext) error {
		go wait.UntilWithContext(hook, func(ctx context.Context) {
			observe(observed, tracker, processMetrics())
			observePolicies(ctx, observed, readiness, processPolicyMetrics())
		}, observeInterval)
		return nil
	})
	if err != nil {
		return fmt.Errorf("add a hook: %w", err)
	}
	return nil
}

// observe looks at the index once. What cannot be read keeps its last value; the
// health check named index says why.
func observe(observed Observed, tracker flowcontrolrequest.StorageObjectCountTracker, m *indexMetrics) {
	for _, resource := range Resources() {
		n, err := observed.Count(resource.Table)
		if err != nil {
			continue
		}
		m.rows.WithLabelValues(string(resource.Table)).Set(float64(n))
		if tracker != nil {
			tracker.Set(v1alpha1.Resource(string(resource.Table)).String(), storage.Stats{ObjectCount: n, EstimatedAverageObjectSizeBytes: objectSize})
		}
	}
	m.revision.Set(float64(observed.Revision()))
	m.compacted.Set(float64(observed.Compacted()))
	if size, err := observed.Size(); err == nil {
		m.sizeBytes.Set(float64(size))
	}
}
