package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/source"
)

// A sweep lists every kind once more, one after the other, beside the streams, and
// compares what is listed with the records and the caches. It evaluates nothing and writes
// nothing but its AuditRun. What the stream of a kind hands over meanwhile is not
// compared, and a difference counts only if the stream does not clear it up within
// sweepGrace. The kind is listed again then by its stream, which mends everything.

const (
	// sweepJitter spreads sweeps of several servers: an interval is up to this part longer.
	sweepJitter = 0.2
	// sweepGrace is how long a stream may be behind a list without having missed anything.
	sweepGrace = 15 * time.Second
	// sweepTick is how often differences are compared with the stream meanwhile.
	sweepTick = 250 * time.Millisecond
	// maxNamedDifferences bounds the objects that are named.
	maxNamedDifferences = 10
)

// sweeper makes sweeps.
type sweeper struct {
	a        *Auditor
	interval time.Duration // 0 for none
	grace    time.Duration
	// demand gets a value when a sweep is asked for.
	demand chan struct{}
}

// Sweep asks for a sweep as soon as no run is under way. It does not wait for it; a sweep
// that is asked for already stands for both.
func (a *Auditor) Sweep() {
	select {
	case a.sweeper.demand <- struct{}{}:
	default:
	}
}

// run sweeps until ctx is done.
func (s *sweeper) run(ctx context.Context) {
	select {
	case <-s.a.firstRun:
	case <-ctx.Done():
		return
	}
	for {
		var due <-chan time.Time
		if s.interval > 0 {
			due = s.a.clock.After(wait.Jitter(s.interval, sweepJitter))
		}
		select {
		case <-due:
		case <-s.demand:
		case <-ctx.Done():
			return
		}
		for s.a.tracker.running() {
			if !s.sleep(ctx, sweepTick) {
				return
			}
		}
		s.sweep(ctx)
	}
}

func (s *sweeper) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-s.a.clock.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// sweep goes through all kinds.
func (s *sweeper) sweep(ctx context.Context) {
	streams := s.a.planner.currentStreams()
	s.a.tracker.sweepStarted(streams)
	var repairs []*kindStream
	for _, stream := range streams {
		outcome := s.sweepKind(ctx, stream)
		if ctx.Err() != nil {
			return // the next process says that the run was aborted
		}
		s.a.metrics.differences.Add(float64(len(outcome.differences)))
		if len(outcome.differences) > 0 {
			repairs = append(repairs, stream)
			klog.FromContext(ctx).Info("A sweep found differences; the kind is listed again", "kind", stream.kind.GroupVersionKind,
				"differences", len(outcome.differences), "objects", outcome.named())
		}
		s.a.tracker.sweptKind(stream.kind, outcome)
	}
	s.a.tracker.sweepEnded()
	s.a.metrics.sweeps.Inc()
	if len(repairs) > 0 {
		s.a.planner.repair(repairs)
	}
}

// kindOutcome is what a sweep found of a kind.
type kindOutcome struct {
	listed          int64
	resourceVersion string
	// differences are the objects of which something was missed.
	differences map[source.ObjectKey]struct{}
	// gone is how many of them are not listed.
	gone int64
	// skipped says why nothing is known of the kind, "" if something is.
	skipped string
}

// named returns some of the objects that differ.
func (o *kindOutcome) named() string {
	var names []string
	for key := range o.differences {
		name, _ := truncate(strings.TrimPrefix(key.Namespace+"/"+key.Name, "/"), maxNameBytes)
		names = append(names, name)
	}
	slices.Sort(names)
	if more := len(names) - maxNamedDifferences; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamedDifferences], ", "), more)
	}
	return strings.Join(names, ", ")
}

// sweepKind compares a kind with its stream.
func (s *sweeper) sweepKind(ctx context.Context, stream *kindStream) kindOutcome {
	if reason := stream.beginSweep(); reason != "" {
		return kindOutcome{skipped: reason}
	}
	defer stream.endSweep()
	// What was handed over before is in the records after this.
	if !s.a.settle(ctx) {
		return kindOutcome{}
	}
	out := kindOutcome{differences: map[source.ObjectKey]struct{}{}}
	seen := seenSet{}
	var err error
	out.resourceVersion, err = stream.source.List(ctx, stream.kind, func(obj *unstructured.Unstructured) error {
		out.listed++
		seen.add(obj.GetNamespace(), obj.GetName())
		same, err := s.a.knows(stream, obj)
		if !same {
			out.differences[source.ObjectKey{Namespace: obj.GetNamespace(), Name: obj.GetName()}] = struct{}{}
		}
		return err
	})
	if err == nil {
		err = s.a.forgotten(stream, seen, func(key source.ObjectKey) { out.differences[key] = struct{}{} })
	}
	if err != nil {
		return kindOutcome{skipped: err.Error()}
	}
	for waited := time.Duration(0); ; waited += sweepTick {
		if !stream.takeTouched(out.differences) {
			// It is being listed by its stream, or has failed.
			return kindOutcome{listed: out.listed, skipped: "its stream began to list it anew meanwhile"}
		}
		if len(out.differences) == 0 || waited >= s.grace || !s.sleep(ctx, sweepTick) {
			for key := range out.differences {
				if !seen.has(key.Namespace, key.Name) {
					out.gone++
				}
			}
			return out
		}
	}
}

// settle returns after everything that was submitted before was written. It returns false
// if ctx is done.
func (a *Auditor) settle(ctx context.Context) bool {
	done := make(chan struct{})
	a.submit(&barrier{done: done})
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// barrier tells when what was submitted before it was written.
type barrier struct{ done chan struct{} }

func (b *barrier) prepare(context.Context)                { /* nothing */ }
func (b *barrier) apply(context.Context, *index.Tx) error { return nil }
func (b *barrier) idle(*index.ReadTx) bool                { return true }
func (b *barrier) committed()                             { close(b.done) }

// knows tells whether records and caches have an object as it is.
func (a *Auditor) knows(stream *kindStream, obj *unstructured.Unstructured) (bool, error) {
	for _, cache := range stream.all() {
		if same, err := cache.has(obj); err != nil || !same {
			return false, err
		}
	}
	set := stream.currentSet()
	if set.empty() {
		return true, nil
	}
	u := &upsert{a: a, stream: stream, set: set, obj: obj}
	var old *record
	err := a.index.View(func(tx *index.ReadTx) error {
		var err error
		old, err = decodeRecord(tx.State(bucketObjects).Get(u.key()))
		return err
	})
	if err != nil || old == nil || old.UID != obj.GetUID() {
		return false, err
	}
	known := a.sets.known(stream.kind.GroupKind(), old.Set)
	// Whatever the record is judged again for, it is not that a change was missed.
	return known == nil || old.ResourceVersion == obj.GetResourceVersion() || old.Read != "" && old.Read == known.view.Object(obj), nil
}

// forgotten calls missed for each object that records or caches have and a list does not.
func (a *Auditor) forgotten(stream *kindStream, seen seenSet, missed func(key source.ObjectKey)) error {
	for _, cache := range stream.all() {
		for _, key := range cache.keys() {
			if !seen.has(key.Namespace, key.Name) {
				missed(key)
			}
		}
	}
	if !stream.audited() {
		return nil
	}
	gk := stream.kind.GroupKind()
	return a.index.View(func(tx *index.ReadTx) error {
		return tx.State(bucketObjects).Ascend(kindStateKey(gk), func(key string, _ []byte) error {
			if namespace, name := splitObjectStateKey(gk, key); !seen.has(namespace, name) {
				missed(source.ObjectKey{Namespace: namespace, Name: name})
			}
			return nil
		})
	})
}

// streamSweep is what a sweep has to know of a stream.
type streamSweep struct {
	mu sync.Mutex // protects the fields below
	// touched are the objects that the stream has handed over since the sweep of its kind
	// began, nil if there is none.
	touched map[source.ObjectKey]struct{}
	// relisted is true if it has begun a list or failed since then.
	relisted bool
	// complete is true if the stream has listed and follows changes.
	complete bool
	// err is why it does not.
	err string
}

func (s *streamSweep) touch(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.touched != nil {
		s.touched[source.ObjectKey{Namespace: namespace, Name: name}] = struct{}{}
	}
}

// follows says whether the stream follows changes, and if not, why.
func (s *streamSweep) follows(complete bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete, s.err = complete, ""
	if !complete {
		s.relisted = true
	}
	if err != nil {
		s.err = err.Error()
	}
}

// beginSweep begins to collect what the stream hands over. It returns why the kind cannot
// be swept, "" if it can.
func (s *streamSweep) beginSweep() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != "":
		return s.err
	case !s.complete:
		return "it is being listed by its stream"
	}
	s.touched, s.relisted = map[source.ObjectKey]struct{}{}, false
	return ""
}

func (s *streamSweep) endSweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touched = nil
}

// takeTouched removes from keys what the stream has handed over. It returns false if the
// stream has begun to list or failed.
func (s *streamSweep) takeTouched(keys map[source.ObjectKey]struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(keys, func(key source.ObjectKey, _ struct{}) bool {
		_, ok := s.touched[key]
		return ok
	})
	return !s.relisted
}

// currentStreams returns the streams of the last plan, sorted by kind, Namespaces and
// policies first. It may be called by anyone.
func (p *planner) currentStreams() []*kindStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.swept)
}

// publishStreams makes the streams of a plan what currentStreams returns.
func (p *planner) publishStreams() {
	streams := slices.Collect(maps.Values(p.streams))
	for _, r := range p.otherReferences {
		streams = append(streams, r.stream)
	}
	slices.SortFunc(streams, func(a, b *kindStream) int {
		return strings.Compare(sweepOrder(a), sweepOrder(b))
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swept = streams
}

func sweepOrder(s *kindStream) string {
	gk := s.kind.GroupKind()
	first := "b"
	if gk == namespaceKind || isPolicyKind(gk) {
		first = "a"
	}
	return strings.Join([]string{first, gk.Group, gk.Kind, s.kind.Version}, separator)
}

// repair has kinds listed again of which something was missed. It may be called by anyone.
func (p *planner) repair(streams []*kindStream) {
	p.mu.Lock()
	p.pending.repairs = append(p.pending.repairs, streams...)
	p.mu.Unlock()
	p.notify()
}

// restartRepaired starts the streams anew of which something was missed and that the plan
// does not list again: nothing of their kinds is audited.
func (p *planner) restartRepaired(ctx context.Context, repairs []*kindStream, desired map[schema.GroupKind]*desiredKind) {
	for _, stream := range repairs {
		gk := stream.kind.GroupKind()
		if p.streams[gk] == stream && desired[gk] == nil {
			p.restartStream(ctx, stream.kind)
		}
		if r := p.otherReferences[stream.kind.GroupVersionKind]; r != nil && r.stream == stream {
			stream.stop()
			r.stream = p.a.startStream(ctx, stream.kind, stream.kindCaches, nil)
		}
	}
}

// isRepaired tells whether something of a kind was missed.
func (c *pendingChanges) isRepaired(stream *kindStream) bool {
	return slices.Contains(c.repairs, stream)
}

// sweepStarted begins the AuditRun of a sweep.
func (t *tracker) sweepStarted(streams []*kindStream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	t.sweep = &run{
		name:    t.runName(now),
		trigger: v1alpha1.TriggerSweep,
		phase:   v1alpha1.RunRunning,
		started: now,
		digest:  t.digest,
		kinds:   map[schema.GroupKind]*v1alpha1.KindRun{},
	}
	t.newest = t.sweep.name
	for _, stream := range streams {
		kind := stream.kind
		t.sweep.kinds[kind.GroupKind()] = &v1alpha1.KindRun{Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Phase: v1alpha1.RunRunning}
	}
	t.notify()
}

// sweptKind enters what was found of a kind. Of a kind that is swept in several versions
// they are added up.
func (t *tracker) sweptKind(kind source.Kind, outcome kindOutcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entry := t.sweep.kinds[kind.GroupKind()]
	entry.Listed += outcome.listed
	entry.Differences += int64(len(outcome.differences))
	entry.Unchanged += outcome.listed - (int64(len(outcome.differences)) - outcome.gone)
	entry.ResourceVersion = outcome.resourceVersion
	switch {
	case outcome.skipped != "":
		entry.Phase, entry.Error, entry.ResourceVersion = v1alpha1.RunPartial, "skipped: "+outcome.skipped, ""
	case entry.Phase == v1alpha1.RunRunning:
		entry.Phase = v1alpha1.RunComplete
	}
	if len(outcome.differences) > 0 {
		t.sweep.missed = append(t.sweep.missed, fmt.Sprintf("%s: %s", kind.GroupKind(), outcome.named()))
	}
	t.notify()
}

// sweepEnded ends the AuditRun of a sweep. It stands for the constraints of which all
// kinds were swept to the end and nothing was missed.
func (t *tracker) sweepEnded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	swept := t.sweep
	t.sweep = nil
	swept.phase, swept.finished = v1alpha1.RunComplete, t.clock.Now()
	for _, k := range swept.kinds {
		if k.Phase == v1alpha1.RunPartial {
			swept.phase = v1alpha1.RunPartial
		}
	}
	t.ended = append(t.ended, swept)
	for i := range t.policies.constraints {
		c := &t.policies.constraints[i]
		state, _ := t.constraintState(c)
		if len(c.kinds) == 0 || state != v1alpha1.SummaryCurrent && state != v1alpha1.SummaryDeferred {
			continue
		}
		if !slices.ContainsFunc(c.kinds, func(gk schema.GroupKind) bool {
			k := swept.kinds[gk]
			return k == nil || k.Phase != v1alpha1.RunComplete || k.Differences > 0
		}) {
			t.completed[c.ID] = completion{run: swept.name, time: swept.finished}
		}
	}
	t.summaries = true
	t.notify()
}
