package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

const (
	templateGroup   = "templates.gatekeeper.sh"
	constraintGroup = "constraints.gatekeeper.sh"
	admissionGroup  = "admissionregistration.k8s.io"

	// planDelay collects changes of policies and kinds before a new plan is made.
	planDelay = 200 * time.Millisecond
	// inventoryRetry is the wait after the source's inventory could not be had.
	inventoryRetry = 2 * time.Second
)

// Kinds of policies, besides those of constraints.
var (
	templateKind         = schema.GroupKind{Group: templateGroup, Kind: "ConstraintTemplate"}
	admissionPolicyKind  = schema.GroupKind{Group: admissionGroup, Kind: "ValidatingAdmissionPolicy"}
	admissionBindingKind = schema.GroupKind{Group: admissionGroup, Kind: "ValidatingAdmissionPolicyBinding"}
)

// isPolicyKind tells whether objects of a kind are policies.
func isPolicyKind(gk schema.GroupKind) bool {
	return gk == templateKind || gk.Group == constraintGroup || gk == admissionPolicyKind || gk == admissionBindingKind
}

// planner decides which kinds are streamed and audited by which constraints. Its
// methods are called by its own goroutine, except where noted.
type planner struct {
	a *Auditor
	// wake gets a value when the plan may have to change.
	wake chan struct{}

	inventory *source.Inventory
	set       *policy.Set
	planned   map[schema.GroupKind]plannedKind
	streams   map[schema.GroupKind]*kindStream
	// policyCaches are the caches of templates and constraints, by kind.
	policyCaches map[schema.GroupKind]*objectCache
	// paramCaches are those of kinds that policies take their params from.
	paramCaches  map[schema.GroupKind]*objectCache
	namespaces   *objectCache
	started      bool              // the first run has begun
	problems     []source.Problem  // of the last run
	runDigest    string            // of the policies of the last run
	ensuredKinds map[string]string // digest of the template, by its name

	mu        sync.Mutex // protects the fields below, which others use too
	waiting   string
	nsKinds   []schema.GroupKind
	nsMissing map[string]struct{} // Namespaces that were needed and not known
	// nsDropped are Namespaces that are gone and that took records along.
	nsDropped map[string]droppedRecords
	pending   pendingChanges
}

// pendingChanges are reasons to list kinds again that the next plan takes up.
type pendingChanges struct {
	// namespaces is true if a Namespace that objects were judged with has changed.
	namespaces bool
	// kinds of which records were dropped that may be of objects that are there.
	kinds map[schema.GroupKind]struct{}
}

func newPlanner(a *Auditor) *planner {
	p := &planner{
		a:            a,
		wake:         make(chan struct{}, 1),
		planned:      map[schema.GroupKind]plannedKind{},
		streams:      map[schema.GroupKind]*kindStream{},
		policyCaches: map[schema.GroupKind]*objectCache{},
		paramCaches:  map[schema.GroupKind]*objectCache{},
		waiting:      "the kinds of the source are not known yet",
		nsMissing:    map[string]struct{}{},
		nsDropped:    map[string]droppedRecords{},
		ensuredKinds: map[string]string{},
	}
	p.namespaces = newObjectCache(p.namespaceChanged)
	return p
}

// load reads the plan of an earlier process.
func (p *planner) load(state stateReader) error {
	return state.Ascend("", func(_ string, value []byte) error {
		var kind plannedKind
		if err := json.Unmarshal(value, &kind); err != nil {
			return fmt.Errorf("decode plan: %w", err)
		}
		p.planned[kind.source().GroupKind()] = kind
		p.nsKinds = append(p.nsKinds, kind.source().GroupKind())
		return nil
	})
}

// run plans until ctx is done, and then waits for all streams to end.
func (p *planner) run(ctx context.Context) {
	defer func() {
		for _, stream := range p.streams {
			stream.stop()
		}
	}()
	refresh := true
	for {
		if refresh {
			refresh = !p.refreshInventory(ctx)
		}
		if p.inventory != nil {
			p.plan(ctx)
		}
		var retry <-chan time.Time
		if refresh {
			retry = p.a.clock.After(inventoryRetry)
		}
		select {
		case <-p.a.source.Changed():
			refresh = true
		case <-retry:
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		select {
		case <-p.a.clock.After(planDelay):
		case <-ctx.Done():
			return
		}
	}
}

func (p *planner) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// refreshInventory asks the source for its kinds and tells whether that worked.
func (p *planner) refreshInventory(ctx context.Context) bool {
	inventory, err := p.a.source.Inventory(ctx)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The kinds of the source cannot be had; trying again")
			if p.inventory == nil {
				p.wait("the kinds of the source cannot be had: " + err.Error())
			}
		}
		return false
	}
	p.inventory = inventory
	return true
}

// wait says why there is no plan yet; "" if there is one.
func (p *planner) wait(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = reason
}

// waitingFor says why there is no plan yet; "" if there is one. It may be called
// by anyone.
func (p *planner) waitingFor() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// namespaceMissing says that an object was judged without its Namespace. It may
// be called by anyone.
func (p *planner) namespaceMissing(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nsMissing[name] = struct{}{}
}

// namespaceChanged is called by the cache of Namespaces. Objects are judged again
// if the Namespace that they were judged with has changed, or was not there.
func (p *planner) namespaceChanged(old, new *cachedObject) {
	if new != nil {
		p.mu.Lock()
		if _, missing := p.nsMissing[new.GetName()]; missing || old != nil {
			delete(p.nsMissing, new.GetName())
			p.pending.namespaces = true
		}
		p.mu.Unlock()
		p.namespaceBack(new.GetName())
	}
	p.notify()
}

// takePending returns the reasons to list kinds again.
func (p *planner) takePending() pendingChanges {
	p.mu.Lock()
	defer p.mu.Unlock()
	pending := p.pending
	p.pending = pendingChanges{}
	return pending
}

// namespacedKinds returns the kinds that may have objects in namespaces. It may
// be called by anyone.
func (p *planner) namespacedKinds() []schema.GroupKind {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nsKinds
}

// plan makes the plan that inventory and policies ask for, and carries it out.
func (p *planner) plan(ctx context.Context) {
	inputs, problems, ok := p.collectPolicies(ctx)
	if !ok {
		return
	}
	previous := p.set
	set := policy.Compile(ctx, inputs.Inputs, previous)
	paramProblems, ok := p.followParams(ctx, set, &inputs.Inputs)
	if !ok {
		p.wait("params of policies are being listed")
		return
	}
	problems = someProblems(append(problems, paramProblems...))
	if len(inputs.Params) > 0 || len(inputs.ParamKinds) > 0 {
		set = policy.Compile(ctx, inputs.Inputs, set)
	}
	p.set = set
	p.publish(inputs.unknownKinds)
	logRejections(ctx, previous, p.set)
	desired := p.desiredKinds()
	pending := p.takePending()
	p.mu.Lock()
	p.nsKinds = nil
	for gk, d := range desired {
		if d.kind.Namespaced {
			p.nsKinds = append(p.nsKinds, gk)
		}
	}
	p.mu.Unlock()

	p.dropKinds(desired, inputs.unknownKinds)
	var restart []*desiredKind
	for gk, d := range desired {
		if p.adopt(gk, d, inputs.unknownKinds, pending) {
			restart = append(restart, d)
		}
	}
	p.report(desired)
	p.beginRun(restart, problems, pending)
	for _, d := range restart {
		gk := d.kind.GroupKind()
		p.streams[gk] = p.a.startStream(ctx, d.kind, p.cacheOf(gk), d.set)
	}
	p.wait("")
}

// desiredKind is a kind that constraints select.
type desiredKind struct {
	kind        source.Kind
	constraints []*policy.Constraint
	set         *constraintSet
}

// desiredKinds returns the kinds to audit. Kinds of API groups whose discovery
// fails are taken from the plan before.
func (p *planner) desiredKinds() map[schema.GroupKind]*desiredKind {
	desired := map[schema.GroupKind]*desiredKind{}
	add := func(kind source.Kind) {
		gk := kind.GroupKind()
		if constraints := p.set.ForKind(policy.Kind(kind)); len(constraints) > 0 && desired[gk] == nil {
			desired[gk] = &desiredKind{kind: kind, constraints: constraints}
		}
	}
	for _, kind := range p.inventory.Kinds {
		add(kind)
	}
	for gk, old := range p.planned {
		if p.inventory.FailedGroups[gk.Group] != nil {
			add(old.source())
		}
	}
	return desired
}

// dropKinds ends the audit of kinds that are not desired any more. A kind that
// constraints of an unknown kind were applied to may still be.
func (p *planner) dropKinds(desired map[schema.GroupKind]*desiredKind, unknownKinds map[string]struct{}) {
	for gk, old := range p.planned {
		if desired[gk] != nil || len(constraintsOf(old, unknownKinds)) > 0 {
			continue
		}
		if stream := p.streams[gk]; stream != nil {
			if p.cacheOf(gk) == nil {
				stream.stop()
				delete(p.streams, gk)
			} else {
				stream.narrow(nil, &dropKind{a: p.a, gk: gk})
				delete(p.planned, gk)
				continue
			}
		}
		p.a.submit(&dropKind{a: p.a, gk: gk})
		delete(p.planned, gk)
	}
}

// adopt makes the constraint set of a kind current and tells whether the kind has
// to be listed anew for it.
func (p *planner) adopt(gk schema.GroupKind, d *desiredKind, unknownKinds map[string]struct{}, pending pendingChanges) bool {
	old := p.planned[gk]
	stream := p.streams[gk]
	d.set = p.a.sets.allocate(gk, d.constraints)
	d.set.unknownKinds = unknownKinds
	op := &savePlan{a: p.a, gk: gk, plan: newPlannedKind(d), dropped: droppedConstraints(old, d, unknownKinds)}
	op.plan.Constraints = append(op.plan.Constraints, constraintsOf(old, unknownKinds)...)
	p.planned[gk] = op.plan
	listAgain := stream == nil || stream.set.empty() || stream.kind != d.kind || p.cacheOf(gk) != nil && stream.cache != p.cacheOf(gk) ||
		!stream.set.contains(d.set) || pending.namespaces && d.set.needsNamespace
	if _, ok := pending.kinds[gk]; ok {
		listAgain = true
	}
	switch {
	case !listAgain && stream.set.id == d.set.id && d.set.contains(stream.set) && len(op.dropped) == 0:
		return false
	case !listAgain:
		stream.narrow(d.set, op)
		return false
	}
	if stream != nil {
		stream.stop()
		delete(p.streams, gk)
	}
	p.a.submit(op)
	return true
}

// report tells the tracker what the summaries are about.
func (p *planner) report(desired map[schema.GroupKind]*desiredKind) {
	kinds := map[policy.ConstraintID][]schema.GroupKind{}
	for gk, d := range desired {
		for _, c := range d.constraints {
			kinds[c.ID] = append(kinds[c.ID], gk)
		}
	}
	status := policyStatus{
		planned:      true,
		rejections:   p.set.Rejections(),
		hidden:       p.inventory.Problems,
		failedGroups: p.inventory.FailedGroups,
	}
	for _, c := range p.set.Constraints() {
		status.constraints = append(status.constraints, constraintStatus{Constraint: c, kinds: kinds[c.ID]})
	}
	p.a.tracker.setPolicies(status)
}

// beginRun starts a run over the kinds that are listed anew, or one without kinds
// if only the problems have changed.
func (p *planner) beginRun(restart []*desiredKind, problems []source.Problem, pending pendingChanges) {
	if p.started && len(restart) == 0 && equalProblems(p.problems, problems) {
		return
	}
	kinds := make([]source.Kind, 0, len(restart))
	for _, d := range restart {
		kinds = append(kinds, d.kind)
	}
	trigger := v1alpha1.TriggerPolicyChange
	switch {
	case !p.started:
		trigger = v1alpha1.TriggerStartup
	case len(restart) == 0:
		trigger = v1alpha1.TriggerProblemChange
	case !pending.namespaces && len(pending.kinds) == 0 && p.set.Digest() == p.runDigest:
		trigger = v1alpha1.TriggerKindChange
	}
	p.started, p.problems, p.runDigest = true, problems, p.set.Digest()
	p.a.tracker.beginRun(trigger, kinds, p.set.Digest(), problems)
}

func equalProblems(a, b []source.Problem) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
