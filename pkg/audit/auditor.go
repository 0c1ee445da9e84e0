package audit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
)

// Config of an Auditor.
type Config struct {
	// Source of objects and policies.
	Source source.Source
	// SourceID tells sources apart. What the index has of another one is dropped.
	SourceID string
	// Index that the findings are kept in. The Auditor is its only writer.
	Index *index.DB
	// Workers is the number of objects evaluated at the same time. 0 means one for
	// each core.
	Workers int
	// RegoAllowNet are the hosts that policies in Rego may reach, * for all.
	RegoAllowNet []string
	// SweepInterval is the time between sweeps, about; 0 means none but those that Sweep
	// asks for.
	SweepInterval time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker
	// EnsureConstraintKind makes sure that constraints of a template can be created,
	// where that takes more than the template. nil if it never does.
	EnsureConstraintKind func(ctx context.Context, template *unstructured.Unstructured) error
	// ChangeRetention is how long it is kept which findings opened and were resolved. 0
	// means DefaultChangeRetention.
	ChangeRetention time.Duration

	metrics *auditMetrics // those of the process if nil
}

// Auditor keeps the findings of an index in step with a source.
type Auditor struct {
	source  source.Source
	index   *index.DB
	clock   clock.WithTicker
	workers int
	// allowNet are the hosts that policies may reach.
	allowNet []string
	ensure   func(ctx context.Context, template *unstructured.Unstructured) error

	sets    *setRegistry
	changes *changeLog
	// roomInterval and refillInterval are the constants of these names.
	roomInterval, refillInterval time.Duration

	tracker  *tracker
	writer   *writer
	planner  *planner
	sweeper  *sweeper
	policies atomic.Pointer[Policies] // of the last plan, nil before the first
	metrics  *auditMetrics
	firstRun chan struct{}
	onFirst  sync.Once

	runCtx context.Context // of Run: operations are submitted until it is done
}

// New returns an Auditor. It reads what an earlier process left in the index.
func New(cfg Config) (*Auditor, error) {
	if cfg.Source == nil || cfg.Index == nil {
		return nil, errors.New("an audit needs a source and an index")
	}
	if cfg.ChangeRetention < 0 {
		return nil, fmt.Errorf("changes are kept for %v; it must not be negative", cfg.ChangeRetention)
	}
	if cfg.SweepInterval < 0 {
		return nil, fmt.Errorf("the interval of sweeps is %v; it must not be negative", cfg.SweepInterval)
	}
	if cfg.Workers < 0 {
		return nil, fmt.Errorf("the number of audit workers is %d; it must not be negative", cfg.Workers)
	}
	a := &Auditor{
		source:   cfg.Source,
		index:    cfg.Index,
		clock:    cfg.Clock,
		workers:  cfg.Workers,
		allowNet: cfg.RegoAllowNet,
		ensure:   cfg.EnsureConstraintKind,
		sets:     newSetRegistry(),
		metrics:  cfg.metrics,

		roomInterval:   roomInterval,
		refillInterval: refillInterval,
		firstRun:       make(chan struct{}),
	}
	if a.metrics == nil {
		a.metrics = processMetrics()
	}
	if a.clock == nil {
		a.clock = clock.RealClock{}
	}
	if a.workers == 0 {
		a.workers = runtime.GOMAXPROCS(0)
	}
	if cfg.ChangeRetention == 0 {
		cfg.ChangeRetention = DefaultChangeRetention
	}
	a.changes = &changeLog{clock: a.clock, retention: cfg.ChangeRetention, limit: defaultMaxChanges, paused: func() bool { return a.index.Level() >= index.LevelLow }}
	a.tracker = newTracker(a.clock)
	a.tracker.quota = a.index.Space().Quota
	a.writer = newWriter(a.index, a.clock, a.metrics)
	a.planner = newPlanner(a)
	a.sweeper = &sweeper{a: a, interval: cfg.SweepInterval, grace: sweepGrace, demand: make(chan struct{}, 1)}
	if err := a.ownIndex(cfg.SourceID); err != nil {
		return nil, fmt.Errorf("drop what is of another source: %w", err)
	}
	if err := a.load(); err != nil {
		return nil, fmt.Errorf("read the state of the audit: %w", err)
	}
	return a, nil
}

// ownIndex drops what the index has of another source.
func (a *Auditor) ownIndex(id string) error {
	ctx := context.Background()
	same := false
	err := a.index.View(func(tx *index.ReadTx) error {
		same = string(tx.State(bucketMeta).Get(metaSource)) == id
		return nil
	})
	if err != nil || same {
		return err
	}
	_, err = a.index.Update(ctx, func(tx *index.Tx) error {
		meta := tx.State(bucketMeta)
		if before := meta.Get(metaSource); len(before) > 0 {
			klog.FromContext(ctx).Info("The index is of another source; its findings are dropped", "before", string(before), "now", id)
			if err := dropAll(ctx, tx); err != nil {
				return err
			}
		}
		return meta.Put(metaSource, []byte(id))
	})
	return err
}

// dropAll removes all rows, and what is known of objects. The numbers of constraint sets
// go on.
func dropAll(ctx context.Context, tx *index.Tx) error {
	for _, schema := range rows.Schemas() {
		page, err := tx.List(ctx, index.Query{Table: schema.Table})
		if err != nil {
			return err
		}
		for _, row := range page.Rows {
			if err := tx.Delete(schema.Table, row.Key); err != nil {
				return err
			}
		}
	}
	for _, bucket := range []string{bucketObjects, bucketSets, bucketPlan, bucketListed, bucketNamespaces} {
		if err := clearPrefix(tx.State(bucket), ""); err != nil {
			return err
		}
	}
	return tx.State(bucketMeta).Delete(metaLoaded)
}

// load reads the private state that the index has.
func (a *Auditor) load() error {
	return a.index.View(func(tx *index.ReadTx) error {
		if err := a.sets.load(tx.State(bucketSets), tx.State(bucketMeta)); err != nil {
			return err
		}
		if err := a.planner.load(tx.State(bucketPlan)); err != nil {
			return err
		}
		for gk := range a.planner.planned {
			status := a.tracker.status(gk)
			status.kind = a.planner.planned[gk].source()
			// An unreadable time is not known.
			status.asOf, _ = time.Parse(time.RFC3339, string(tx.State(bucketListed).Get(kindStateKey(gk))))
			err := tx.State(bucketObjects).Ascend(kindStateKey(gk), func(string, []byte) error {
				status.objects++
				return nil
			})
			if err != nil {
				return err
			}
		}
		if len(tx.State(bucketMeta).Get(metaLoaded)) > 0 {
			a.tracker.loaded = true
			a.reported(true)
		}
		return nil
	})
}

// Run audits until ctx is done. It returns an error if the index cannot be
// written any more. It may be called once.
func (a *Auditor) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	a.runCtx = ctx
	group.Go(func() error { return a.writer.run(ctx) })
	for range a.workers {
		group.Go(func() error { a.writer.runWorker(ctx); return nil })
	}
	report := &reporter{a: a}
	if err := report.load(ctx); err != nil {
		if ctx.Err() == nil { // otherwise it ends before it has begun
			group.Go(func() error { return err })
		}
		return group.Wait()
	}
	group.Go(func() error { report.run(ctx); return nil })
	group.Go(func() error { a.planner.run(ctx); return nil })
	group.Go(func() error { a.expireChanges(ctx); return nil })
	group.Go(func() error { a.keepRoom(ctx); return nil })
	group.Go(func() error { a.sweeper.run(ctx); return nil })
	return group.Wait()
}

// FirstRun returns a channel that is closed when findings can be served: when
// the first run of the index has ended, in this process or in an earlier one.
func (a *Auditor) FirstRun() <-chan struct{} { return a.firstRun }

// Ready returns nil if the rows of a table can be served. Findings are served
// once a run has ended and, after a restart, Namespaces have been listed or cannot be, so
// that nobody sees the findings of a Namespace before theirs. Summaries are once the
// policies are known; before that a list would look clean. The error says what is being
// waited for.
func (a *Auditor) Ready(table index.Table) error {
	if table == rows.AuditRuns {
		return nil
	}
	if err := a.writer.stall(); err != nil && table == rows.ConstraintSummaries {
		return err // what they say the findings are worth is not so
	}
	select {
	case <-a.firstRun:
		if table != rows.ConstraintSummaries && !a.planner.namespacesKnown.Load() {
			return errors.New("findings wait for the list of Namespaces: they may be of some that are gone")
		}
		return nil
	default:
	}
	waiting := a.planner.waitingFor()
	if waiting != "" {
		return errors.New(waiting)
	}
	if table == rows.ConstraintSummaries {
		return nil
	}
	return errors.New(a.tracker.progress())
}

// Stalled returns why the findings are not kept up at the moment, nil if they are.
func (a *Auditor) Stalled() error { return a.writer.stall() }

// reported is called when a report is written; loaded is true once a run has
// ended.
func (a *Auditor) reported(loaded bool) {
	if loaded {
		a.onFirst.Do(func() { close(a.firstRun) })
	}
}

// Resource returns the resource of a kind that the source has, or had when it was
// audited.
func (a *Auditor) Resource(kind schema.GroupKind) (schema.GroupVersionResource, bool) {
	return a.planner.resource(kind)
}

func (a *Auditor) submit(op operation) { a.writer.submit(a.runCtx, op) }

// objectNamespace is what an object is judged with.
type objectNamespace struct {
	// object is nil if it is not known, or not needed.
	object *unstructured.Unstructured
	// unknown is true if it is needed and not known.
	unknown bool
}

// digest of what is read of the Namespace.
func (n objectNamespace) digest(view *policy.View) string {
	switch {
	case n.unknown:
		return "unknown"
	case n.object == nil:
		return ""
	}
	return view.Namespace(n.object)
}

// namespaceOf returns the Namespace that an object is judged with.
func (a *Auditor) namespaceOf(gk schema.GroupKind, obj *unstructured.Unstructured, needed bool) objectNamespace {
	name := obj.GetNamespace()
	if name == "" || gk == namespaceKind {
		return objectNamespace{}
	}
	namespace := a.planner.namespaces.get("", name)
	switch {
	case namespace == nil && needed:
		a.planner.namespaceMissing(name)
		return objectNamespace{unknown: true}
	case namespace == nil:
		return objectNamespace{}
	}
	return objectNamespace{object: namespace.Unstructured}
}

// namespaceGone removes the findings of everything in a namespace.
func (a *Auditor) namespaceGone(name string) {
	a.submit(&dropNamespace{a: a, namespace: name, kinds: a.planner.namespacedKinds()})
}

// namespaceIs says that a Namespace exists. If it is another one than the index knows, what
// was in that goes.
func (a *Auditor) namespaceIs(obj *unstructured.Unstructured) {
	a.submit(&dropNamespace{a: a, namespace: obj.GetName(), uid: obj.GetUID(), kinds: a.planner.namespacedKinds()})
}

// progress says how far the active run is.
func (t *tracker) progress() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.run == nil {
		return "the first audit has not started yet"
	}
	pending := 0
	for _, k := range t.run.kinds {
		if k.Phase == "Running" {
			pending++
		}
	}
	return fmt.Sprintf("the first audit is under way: %d of %d kinds are still being listed", pending, len(t.run.kinds))
}
