package audit

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// tracker knows how far the audit is: what was listed, evaluated and failed, by
// kind. Runs and summaries are made from it (report.go). It learns of operations
// after they are committed.
type tracker struct {
	clock clock.PassiveClock
	// quota of the index in bytes.
	quota int64
	// wake gets a value when there is something to report.
	wake chan struct{}

	mu       sync.Mutex // protects the fields below
	kinds    map[schema.GroupKind]*kindStatus
	policies policyStatus
	// digest and problems of the newest run.
	digest   string
	problems []source.Problem
	// behind is since when a change waits to be judged, zero if none has for long.
	behind time.Time
	// namespacesErr is why Namespaces cannot be followed at the moment.
	namespacesErr string
	// run is the active run, nil if there is none.
	run *run
	// lastRun is the name of the newest run that evaluates, newest that of the newest of
	// all.
	lastRun, newest string
	// sweep is the AuditRun of the sweep under way, nil if there is none.
	sweep *run
	// ended are runs that ended and are not reported yet.
	ended []*run
	// recovered are kinds that were listed outside of a run after they had failed.
	recovered map[schema.GroupKind]struct{}
	// completed is the last run that was complete for a constraint.
	completed map[policy.ConstraintID]completion
	summaries bool // summaries have to be reported
	reporting bool // a report is being made or written
	loaded    bool // a run has ended in this index
}

const (
	// maxRefused bounds the objects of a kind that are named because the index does
	// not take them.
	maxRefused = 100
	// maxProblemBytes bounds what is said about one problem.
	maxProblemBytes = 1024
	// maxNameBytes bounds the names in it.
	maxNameBytes = 100
	// maxProblems bounds the problems of a run.
	maxProblems = 100
)

// kindStatus is what is known of a kind.
type kindStatus struct {
	kind source.Kind
	// stream whose counts these are.
	stream *kindStream
	// err is why the kind cannot be listed or watched at the moment.
	err string
	// asOf is when it could be for the last time, zero if that is not known or it can be
	// now.
	asOf time.Time
	// refused are objects that the index does not take, and why.
	refused map[source.ObjectKey]string
	// full is true if there was no room for some objects since the last list began.
	full bool
	// listed are the digests of the constraints under which a list was completed.
	listed map[string]struct{}
	// resourceVersion of the last complete list.
	resourceVersion string
	// objects with a record.
	objects int64
	// of the last list:
	count listCount
}

type listCount struct {
	listed, evaluated, unchanged, failed int64
}

// run is an AuditRun in the making.
type run struct {
	name     string
	trigger  v1alpha1.RunTrigger
	phase    v1alpha1.RunPhase
	started  time.Time
	finished time.Time
	digest   string
	kinds    map[schema.GroupKind]*v1alpha1.KindRun
	problems []source.Problem
	// missed names the objects of which a sweep found that something was missed, by kind.
	missed []string
}

// completion of the kinds of a constraint.
type completion struct {
	run  string
	time time.Time
}

// policyStatus is the outcome of the last compilation.
type policyStatus struct {
	planned     bool
	constraints []constraintStatus
	rejections  []policy.Rejection
	// hidden are problems that keep objects of any kind from being seen.
	hidden []source.Problem
	// failedGroups are API groups whose discovery fails, with the errors.
	failedGroups map[string]error
}

// constraintStatus is a constraint and the kinds that it is audited on.
type constraintStatus struct {
	*policy.Constraint
	kinds []schema.GroupKind
	// unseen are kinds that it names and that are not audited, with the reasons.
	unseen []string
}

func newTracker(clk clock.PassiveClock) *tracker {
	return &tracker{
		clock:     clk,
		wake:      make(chan struct{}, 1),
		kinds:     map[schema.GroupKind]*kindStatus{},
		recovered: map[schema.GroupKind]struct{}{},
		completed: map[policy.ConstraintID]completion{},
	}
}

// notify has the report made soon. The caller holds mu or has just released it.
func (t *tracker) notify() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// pendingReport tells whether there is something that was not reported yet.
func (t *tracker) pendingReport() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.run != nil || len(t.ended) > 0 || t.summaries || t.reporting
}

// reported says that a report was written.
func (t *tracker) reported() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reporting = false
}

// currentRun returns the name of the newest run.
func (t *tracker) currentRun() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastRun
}

// running tells whether a run is under way.
func (t *tracker) running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.run != nil
}

// status of a kind; the caller holds mu.
func (t *tracker) status(gk schema.GroupKind) *kindStatus {
	k := t.kinds[gk]
	if k == nil {
		k = &kindStatus{}
		t.kinds[gk] = k
	}
	return k
}

// beginRun starts a run over kinds that are about to be listed. A run that is
// still active is aborted and what is left of it becomes part of the new one.
// Kinds that do not work at the moment are part of every run.
func (t *tracker) beginRun(trigger v1alpha1.RunTrigger, kinds []source.Kind, digest string, problems []source.Problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin(trigger, kinds, digest, problems)
	t.finishIfDone()
}

func (t *tracker) begin(trigger v1alpha1.RunTrigger, kinds []source.Kind, digest string, problems []source.Problem) {
	now := t.clock.Now()
	next := &run{
		name:     t.runName(now),
		trigger:  trigger,
		phase:    v1alpha1.RunRunning,
		started:  now,
		digest:   digest,
		kinds:    map[schema.GroupKind]*v1alpha1.KindRun{},
		problems: problems,
	}
	add := func(kind source.Kind, phase v1alpha1.RunPhase, err string) {
		next.kinds[kind.GroupKind()] = &v1alpha1.KindRun{Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Phase: phase, Error: err}
	}
	for gk, k := range t.kinds {
		if k.err != "" {
			add(withGroupKind(k.kind, gk), v1alpha1.RunPartial, k.failure())
		}
	}
	if t.run != nil {
		for gk, k := range t.run.kinds {
			if k.Phase == v1alpha1.RunRunning {
				add(withGroupKind(t.status(gk).kind, gk), v1alpha1.RunRunning, "")
			}
		}
		t.end(v1alpha1.RunAborted)
	}
	for _, kind := range kinds {
		t.status(kind.GroupKind()).kind = kind
		t.status(kind.GroupKind()).count = listCount{}
		add(kind, v1alpha1.RunRunning, "")
	}
	t.run, t.lastRun, t.newest, t.digest, t.problems = next, next.name, next.name, digest, problems
	t.summaries = true
	t.notify()
}

func withGroupKind(kind source.Kind, gk schema.GroupKind) source.Kind {
	kind.Group, kind.Kind = gk.Group, gk.Kind
	return kind
}

// runName is the time, in a form that sorts, and unique.
func (t *tracker) runName(now time.Time) string {
	const layout = "20060102-150405.000"
	for {
		if name := "run-" + now.UTC().Format(layout); name > t.newest {
			return name
		}
		now = now.Add(time.Millisecond)
	}
}

// end ends the active run; the caller holds mu.
func (t *tracker) end(phase v1alpha1.RunPhase) {
	t.run.phase = phase
	t.run.finished = t.clock.Now()
	for gk := range t.run.kinds {
		t.fill(t.run, gk)
	}
	t.ended = append(t.ended, t.run)
	t.run = nil
	t.summaries = true
	t.notify()
}

// fill copies the counts of a kind into a run; the caller holds mu.
func (t *tracker) fill(r *run, gk schema.GroupKind) {
	entry, k := r.kinds[gk], t.status(gk)
	entry.Listed, entry.Evaluated, entry.Unchanged, entry.Failed = k.count.listed, k.count.evaluated, k.count.unchanged, k.count.failed
	if entry.Phase == v1alpha1.RunComplete {
		entry.ResourceVersion = k.resourceVersion
	}
}

// finishIfDone ends the active run if none of its kinds is being listed any more;
// the caller holds mu.
func (t *tracker) finishIfDone() {
	if t.run == nil {
		return
	}
	phase := v1alpha1.RunComplete
	if len(t.run.problems) > 0 {
		phase = v1alpha1.RunPartial
	}
	for _, k := range t.run.kinds {
		switch k.Phase {
		case v1alpha1.RunRunning:
			return
		case v1alpha1.RunPartial:
			phase = v1alpha1.RunPartial
		}
	}
	ended := t.run
	t.end(phase)
	for i := range t.policies.constraints {
		c := &t.policies.constraints[i]
		if !slices.ContainsFunc(c.kinds, func(gk schema.GroupKind) bool { return ended.kinds[gk] != nil }) {
			continue
		}
		if state, _ := t.constraintState(c); state == v1alpha1.SummaryCurrent || state == v1alpha1.SummaryDeferred {
			t.completed[c.ID] = completion{run: ended.name, time: t.clock.Now()}
		}
	}
}

// setPolicies says what the summaries are about.
func (t *tracker) setPolicies(p policyStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.policies = p
	t.summaries = true
	t.notify()
}

// namespacesFailed says that Namespaces cannot be followed, or nil that they can.
func (t *tracker) namespacesFailed(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.namespacesErr != text {
		t.namespacesErr = text
		t.summaries = true
		t.notify()
	}
}

// sortBySize sorts kinds by the number of objects that they are known to have, the most
// first.
func (t *tracker) sortBySize(kinds []*desiredKind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(kinds, func(a, b *desiredKind) int {
		return cmp.Or(cmp.Compare(t.status(b.kind.GroupKind()).objects, t.status(a.kind.GroupKind()).objects), strings.Compare(a.kind.GroupKind().String(), b.kind.GroupKind().String()))
	})
}

// setBehind says since when a change waits to be judged, and tells whether summaries
// change by that.
func (t *tracker) setBehind(since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since = since.Truncate(time.Second)
	if t.behind.Equal(since) {
		return false
	}
	t.behind, t.summaries = since, true
	return true
}

func (t *tracker) markSummaries() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.summaries = true
	t.notify()
}

func (t *tracker) listStarted(s *kindStream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.status(s.kind.GroupKind())
	if k.full {
		k.listed = nil // it lacks objects until it is listed to the end
	}
	k.kind, k.stream, k.count, k.refused, k.full = s.kind, s, listCount{}, nil, false
}

func (t *tracker) objectDone(u *upsert) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.status(u.stream.kind.GroupKind())
	_, refused := k.refused[keyOf(u.obj)]
	if u.after == nil && !u.listed && !refused {
		return // there is nothing to report
	}
	if !u.known {
		k.objects++
	}
	delete(k.refused, keyOf(u.obj))
	if u.listed && k.stream == u.stream {
		k.count.listed++
		if u.evaluated {
			k.count.evaluated++
		} else {
			k.count.unchanged++
		}
		if u.failed {
			k.count.failed++
		}
	}
	t.summaries = true
	t.notify()
}

// objectRefused says that the index does not take an object.
func (t *tracker) objectRefused(u *upsert, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.status(u.stream.kind.GroupKind())
	if k.refused == nil {
		k.refused = map[source.ObjectKey]string{}
	}
	if len(k.refused) < maxRefused {
		k.refused[keyOf(u.obj)], _ = truncate(err.Error(), maxProblemBytes)
	}
	t.summaries = true
	t.notify()
}

// objectRemoved forgets that the index does not take an object.
func (t *tracker) objectRemoved(gk schema.GroupKind, key source.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.status(gk); k.refused != nil {
		delete(k.refused, key)
		t.summaries = true
		t.notify()
	}
}

func (t *tracker) objectsGone(gk schema.GroupKind, n int64) {
	if n == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status(gk).objects -= n
	t.summaries = true
	t.notify()
}

func (t *tracker) listDone(s *kindStream, set *constraintSet, resourceVersion string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gk := s.kind.GroupKind()
	k := t.status(gk)
	if k.stream != s {
		return
	}
	failed := k.err != ""
	k.err, k.asOf, k.listed, k.resourceVersion = "", time.Time{}, set.digests, resourceVersion
	if t.run != nil && t.run.kinds[gk] != nil {
		t.run.kinds[gk].Phase, t.run.kinds[gk].Error = v1alpha1.RunComplete, ""
		if text := t.missing(k); text != "" {
			t.run.kinds[gk].Phase, t.run.kinds[gk].Error = v1alpha1.RunPartial, text
		}
		t.finishIfDone()
	} else if failed {
		t.recovered[gk] = struct{}{}
	}
	t.summaries = true
	t.notify()
}

func (t *tracker) streamFailed(s *kindStream, err error) {
	if !s.audited() {
		return
	}
	t.kindFailed(s.kind, err)
}

// kindFailed says that a kind cannot be listed or watched at the moment.
func (t *tracker) kindFailed(kind source.Kind, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gk := kind.GroupKind()
	k := t.status(gk)
	if k.err == "" && len(k.listed) > 0 {
		k.asOf = t.clock.Now()
	}
	k.kind, k.err = kind, err.Error()
	if t.run != nil {
		if entry := t.run.kinds[gk]; entry != nil {
			entry.Phase, entry.Error = v1alpha1.RunPartial, k.failure()
			t.finishIfDone()
		}
	}
	t.summaries = true
	t.notify()
}

// kindGone says that a kind is not audited any more. If it has ceased to exist while it
// was listed, the run says so.
func (t *tracker) kindGone(gk schema.GroupKind, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.kinds, gk)
	delete(t.recovered, gk)
	if t.run != nil {
		if entry := t.run.kinds[gk]; entry != nil && entry.Phase == v1alpha1.RunRunning && gone {
			entry.Phase, entry.Error = v1alpha1.RunPartial, "the kind went while it was listed"
		} else {
			delete(t.run.kinds, gk)
		}
		t.finishIfDone()
	}
	t.summaries = true
	t.notify()
}

func timeOrNil(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	mt := metav1.NewTime(t)
	return &mt
}
