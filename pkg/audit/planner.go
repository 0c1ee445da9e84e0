package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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
	syncSetGroup    = "syncset.gatekeeper.sh"
	configGroup     = "config.gatekeeper.sh"
	expansionGroup  = "expansion.gatekeeper.sh"

	// planDelay collects changes of policies and kinds before a new plan is made.
	planDelay = 200 * time.Millisecond
	// inventoryRetry is the wait after the source's inventory could not be had.
	inventoryRetry = 2 * time.Second
)

// Kinds of policies, besides those of constraints.
var (
	templateKind          = schema.GroupKind{Group: templateGroup, Kind: "ConstraintTemplate"}
	admissionPolicyKind   = schema.GroupKind{Group: admissionGroup, Kind: "ValidatingAdmissionPolicy"}
	admissionBindingKind  = schema.GroupKind{Group: admissionGroup, Kind: "ValidatingAdmissionPolicyBinding"}
	expansionTemplateKind = schema.GroupKind{Group: expansionGroup, Kind: "ExpansionTemplate"}
	syncSetKind           = schema.GroupKind{Group: syncSetGroup, Kind: "SyncSet"}
	configKind            = schema.GroupKind{Group: configGroup, Kind: "Config"}
)

// policyGroups are the API groups of policies.
var policyGroups = []string{templateGroup, constraintGroup, admissionGroup, expansionGroup, syncSetGroup, configGroup}

// isPolicyKind tells whether objects of a kind are policies.
func isPolicyKind(gk schema.GroupKind) bool {
	switch gk {
	case templateKind, admissionPolicyKind, admissionBindingKind, expansionTemplateKind, syncSetKind, configKind:
		return true
	}
	return gk.Group == constraintGroup
}

// planner decides which kinds are streamed and audited by which constraints. Its
// methods are called by its own goroutine, except where noted.
type planner struct {
	a *Auditor
	// wake gets a value when the plan may have to change.
	wake chan struct{}
	// referenced gets a value when objects of data.inventory have changed, and settled
	// some time after that.
	referenced chan struct{}
	settled    <-chan time.Time
	// refreshReferences is true if the next plan is to take their changes up.
	refreshReferences bool
	referenceDelay    time.Duration

	inventory *source.Inventory
	set       *policy.Set
	// awaited is a set whose objects are being listed, nil if there is none.
	awaited *policy.Set
	planned map[schema.GroupKind]plannedKind
	streams map[schema.GroupKind]*kindStream
	// policyCaches are the caches of templates and constraints, by kind.
	policyCaches map[schema.GroupKind]*objectCache
	// paramCaches are those of kinds that policies take their params from.
	paramCaches map[schema.GroupKind]*objectCache
	// references are what policies read in data.inventory of kinds in their preferred
	// version, and otherReferences in other versions.
	references      map[schema.GroupKind]*reference
	otherReferences map[schema.GroupVersionKind]*reference
	namespaces      *objectCache
	// namespacesKnown is true once they have been listed, or could not be.
	namespacesKnown atomic.Bool
	// namespaceView is what constraints read of Namespaces, nil before the first plan.
	namespaceView atomic.Pointer[policy.View]
	started       bool              // the first run has begun
	problems      []source.Problem  // of the last run
	runDigest     string            // of the policies of the last run
	ensuredKinds  map[string]string // digest of the template, by its name

	mu      sync.Mutex // protects the fields below, which others use too
	waiting string
	nsKinds []schema.GroupKind
	// swept are the streams of the last plan.
	swept []*kindStream
	// resources of all kinds that have been seen, also of those that are gone: there may
	// be findings of them for a while.
	resources map[schema.GroupKind]schema.GroupVersionResource
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
	// repairs are streams that have missed something.
	repairs []*kindStream
}

func newPlanner(a *Auditor) *planner {
	p := &planner{
		a:               a,
		wake:            make(chan struct{}, 1),
		referenced:      make(chan struct{}, 1),
		referenceDelay:  referenceDelay,
		planned:         map[schema.GroupKind]plannedKind{},
		streams:         map[schema.GroupKind]*kindStream{},
		policyCaches:    map[schema.GroupKind]*objectCache{},
		paramCaches:     map[schema.GroupKind]*objectCache{},
		references:      map[schema.GroupKind]*reference{},
		otherReferences: map[schema.GroupVersionKind]*reference{},
		waiting:         "the kinds of the source are not known yet",
		nsMissing:       map[string]struct{}{},
		nsDropped:       map[string]droppedRecords{},
		ensuredKinds:    map[string]string{},
		resources:       map[schema.GroupKind]schema.GroupVersionResource{},
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
		p.learn(kind.source())
		return nil
	})
}

// run plans until ctx is done, and then waits for all streams to end.
func (p *planner) run(ctx context.Context) {
	defer func() {
		for _, stream := range p.streams {
			stream.stop()
		}
		for gvk := range p.otherReferences {
			p.dropOtherReference(gvk)
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
		if !p.waitForNews(ctx, &refresh) {
			return
		}
	}
}

// waitForNews returns when the plan may have to change. refresh becomes true if the
// inventory may have changed. It returns false when ctx is done.
func (p *planner) waitForNews(ctx context.Context, refresh *bool) bool {
	var retry <-chan time.Time
	if *refresh {
		retry = p.a.clock.After(inventoryRetry)
	}
	for news := false; !news; {
		select {
		case <-p.a.source.Changed():
			*refresh, news = true, true
		case <-retry:
			news = true
		case <-p.wake:
			news = true
		case <-p.referenced:
			if p.settled == nil {
				p.settled = p.a.clock.After(p.referenceDelay)
			}
		case <-p.settled:
			p.settled = nil
			if p.a.tracker.running() {
				p.settled = p.a.clock.After(p.referenceDelay)
			} else {
				p.refreshReferences, news = true, true
			}
		case <-ctx.Done():
			return false
		}
	}
	select {
	case <-p.a.clock.After(planDelay):
		return true
	case <-ctx.Done():
		return false
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
		p.namespacesKnown.Store(true) // they cannot be
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The kinds of the source cannot be had; trying again")
			if p.inventory == nil {
				p.wait("the kinds of the source cannot be had: " + err.Error())
			}
		}
		return false
	}
	p.inventory = inventory
	p.learn(inventory.Kinds...)
	return true
}

// learn takes note of the resources of kinds.
func (p *planner) learn(kinds ...source.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range kinds {
		p.resources[kind.GroupKind()] = kind.GroupVersionResource()
	}
}

// resource of a kind, if it is known. It may be called by anyone.
func (p *planner) resource(gk schema.GroupKind) (schema.GroupVersionResource, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gvr, ok := p.resources[gk]
	return gvr, ok
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
	if old != nil && new != nil && !p.readsChange(old, new) {
		return
	}
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

// readsChange tells whether constraints can read what is different between two states of a
// Namespace.
func (p *planner) readsChange(old, new *cachedObject) bool {
	view := p.namespaceView.Load()
	return view == nil || view.Namespace(old.Unstructured) != view.Namespace(new.Unstructured)
}

// readNamespaces takes note of what the constraints of a plan read of Namespaces.
func (p *planner) readNamespaces(desired map[schema.GroupKind]*desiredKind) {
	var views []*policy.View
	for _, d := range desired {
		views = append(views, d.set.view)
	}
	p.namespaceView.Store(policy.Union(views))
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
	inputs.AllowNet = p.a.allowNet
	previous := p.set
	set, moreProblems, ok := p.compile(ctx, &inputs.Inputs)
	if !ok {
		p.wait("params of policies, or objects of data.inventory, are being listed")
		return
	}
	p.set = set
	problems = someProblems(slices.Concat(problems, moreProblems, p.unseenKinds()))
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
	p.restartRepaired(ctx, pending.repairs, desired)
	var restart []*desiredKind
	for gk, d := range desired {
		if p.adopt(gk, d, inputs.unknownKinds, pending) {
			restart = append(restart, d)
		}
	}
	p.readNamespaces(desired)
	p.report(desired, inputs.hidden)
	p.beginRun(restart, problems, pending)
	// The largest first: they take longest.
	p.a.tracker.sortBySize(restart)
	for _, d := range restart {
		gk := d.kind.GroupKind()
		p.streams[gk] = p.a.startStream(ctx, d.kind, p.cachesOf(gk), d.set)
	}
	p.publishStreams()
	p.wait("")
}

// report tells the tracker what the summaries are about. hidden are problems besides
// those of the source that keep objects from being seen.
func (p *planner) report(desired map[schema.GroupKind]*desiredKind, hidden []source.Problem) {
	kinds := map[policy.ConstraintID][]schema.GroupKind{}
	for gk, d := range desired {
		for _, c := range d.constraints {
			kinds[c.ID] = append(kinds[c.ID], gk)
		}
	}
	status := policyStatus{
		planned:      true,
		rejections:   p.set.Rejections(),
		hidden:       slices.Concat(p.inventory.Problems, hidden),
		failedGroups: p.inventory.FailedGroups,
	}
	for _, c := range p.set.Constraints() {
		s := constraintStatus{Constraint: c, kinds: kinds[c.ID]}
		for _, u := range p.inventory.Unstreamed {
			if c.Names(policy.Kind(u.Kind)) {
				s.unseen = append(s.unseen, u.GroupKind().String()+": "+u.Reason)
			}
		}
		status.constraints = append(status.constraints, s)
	}
	p.a.tracker.setPolicies(status)
}

// unseenKinds are kinds that constraints name and that cannot be streamed.
func (p *planner) unseenKinds() []source.Problem {
	var out []source.Problem
	for _, u := range p.inventory.Unstreamed {
		if slices.ContainsFunc(p.set.Constraints(), func(c *policy.Constraint) bool { return c.Names(policy.Kind(u.Kind)) }) {
			out = append(out, source.Problem{Subject: u.GroupKind().String(), Message: "constraints name the kind, and it is not audited: " + u.Reason})
		}
	}
	return out
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
	case pending.namespaces || len(pending.kinds) > 0 || p.set.Digest() != p.runDigest:
	case len(pending.repairs) > 0:
		trigger = v1alpha1.TriggerRepair
	default:
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
