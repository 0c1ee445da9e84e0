package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// Policies read objects in data.inventory. What they read of them is kept, fed by the
// streams of their kinds. A change of it changes the constraints that read it, so that
// the kinds these select are listed and judged again: some time after the first of
// several changes, and not while a run is under way.

// referenceDelay is how long changes of data.inventory are collected.
const referenceDelay = 5 * time.Second

// reference is a kind whose objects policies read in data.inventory.
type reference struct {
	view  *policy.InventoryView
	cache *objectCache
	// stream of a version that is not the preferred one, nil otherwise: the kind's own
	// stream feeds the cache.
	stream *kindStream
	// taken is what policies are judged with, nil if that is nothing yet.
	taken *policy.InventoryObjects
}

// newReference returns a reference whose cache is empty.
func (p *planner) newReference(view *policy.InventoryView) *reference {
	cache := newObjectCache(func(old, new *cachedObject) {
		if old == nil && new == nil {
			p.notify() // it is complete, or its state has changed
			return
		}
		select {
		case p.referenced <- struct{}{}:
		default:
		}
	})
	cache.keep = keepItem(view)
	return &reference{view: view, cache: cache}
}

// inventoryViews returns what the policies of a set read in data.inventory. Kinds of API
// groups whose discovery fails are those that are followed already.
func (p *planner) inventoryViews(set *policy.Set) []*policy.InventoryView {
	var preferred, others []policy.Kind
	for _, kind := range p.inventory.Kinds {
		preferred = append(preferred, policy.Kind(kind))
	}
	for _, kind := range p.inventory.OtherVersions {
		others = append(others, policy.Kind(kind))
	}
	for gk, r := range p.references {
		if p.inventory.FailedGroups[gk.Group] != nil {
			preferred = append(preferred, r.view.Kind)
		}
	}
	for gvk, r := range p.otherReferences {
		if p.inventory.FailedGroups[gvk.Group] != nil {
			others = append(others, r.view.Kind)
		}
	}
	views := set.InventoryViews(preferred, others)
	slices.SortFunc(views, func(a, b *policy.InventoryView) int { return strings.Compare(a.Digest, b.Digest) })
	return views
}

// followReferences streams the kinds whose objects policies read in data.inventory, and
// enters these into inputs. ok is false while some of them are being listed.
func (p *planner) followReferences(ctx context.Context, views []*policy.InventoryView, inputs *policy.Inputs) (problems []source.Problem, ok bool) {
	ok = true
	refresh := p.refreshReferences
	var objects []policy.InventoryObjects
	for _, view := range views {
		r := p.follow(ctx, view)
		synced, err := r.cache.state()
		if err != nil {
			problems = append(problems, source.Problem{
				Subject: view.Kind.GroupKind().String(),
				Message: fmt.Sprintf("objects of data.inventory of this kind cannot be followed, what is known of them stays in force: %v", err),
			})
		}
		switch {
		case !synced && err == nil:
			ok = false
			continue
		case !synced:
			objects = append(objects, policy.InventoryObjects{View: view, Err: err})
			continue
		case refresh || r.taken == nil:
			r.taken = &policy.InventoryObjects{View: r.view, Items: r.cache.items()}
		}
		objects = append(objects, *r.taken)
	}
	if ok {
		p.refreshReferences = false
	}
	unlisted := map[policy.Kind]string{}
	for _, u := range p.inventory.Unstreamed {
		unlisted[policy.Kind(u.Kind)] = u.Reason
	}
	inputs.Inventory = policy.NewInventory(objects, p.inventory.FailedGroups).Without(unlisted)
	return problems, ok
}

// follow returns the reference of a view, with a stream that feeds it.
func (p *planner) follow(ctx context.Context, view *policy.InventoryView) *reference {
	gvk, kind := view.Kind.GroupVersionKind, source.Kind(view.Kind)
	if p.isOtherVersion(kind) {
		if r := p.otherReferences[gvk]; r != nil && r.view.Digest == view.Digest {
			return r
		}
		r := p.newReference(view)
		p.dropOtherReference(gvk)
		p.otherReferences[gvk] = r
		r.stream = p.a.startStream(ctx, kind, kindCaches{inventory: r.cache}, nil)
		return r
	}
	gk := gvk.GroupKind()
	if r := p.references[gk]; r != nil && r.view.Digest == view.Digest {
		return r
	}
	r := p.newReference(view)
	p.references[gk] = r
	p.restartStream(ctx, kind)
	return r
}

// isOtherVersion tells whether a kind is followed besides the preferred version of it.
// While the discovery of its group fails, that stays as it is.
func (p *planner) isOtherVersion(kind source.Kind) bool {
	if p.inventory.FailedGroups[kind.Group] != nil {
		return p.otherReferences[kind.GroupVersionKind] != nil
	}
	return slices.Contains(p.inventory.OtherVersions, kind)
}

// dropReferences ends what followReferences has begun for views that are not wanted any
// more, or not of that version: which one is preferred may have changed.
func (p *planner) dropReferences(wanted []*policy.InventoryView) {
	preferred, others := map[string]struct{}{}, map[string]struct{}{}
	for _, view := range wanted {
		if p.isOtherVersion(source.Kind(view.Kind)) {
			others[view.Digest] = struct{}{}
		} else {
			preferred[view.Digest] = struct{}{}
		}
	}
	for gk, r := range p.references {
		if _, ok := preferred[r.view.Digest]; !ok {
			delete(p.references, gk)
			p.releaseStream(gk)
		}
	}
	for gvk, r := range p.otherReferences {
		if _, ok := others[r.view.Digest]; !ok {
			p.dropOtherReference(gvk)
		}
	}
}

func (p *planner) dropOtherReference(gvk schema.GroupVersionKind) {
	if r := p.otherReferences[gvk]; r != nil {
		r.stream.stop()
		delete(p.otherReferences, gvk)
	}
}

// wants are the objects besides Namespaces that the policies of a set are judged with.
type wants struct {
	params []schema.GroupVersionKind
	views  []*policy.InventoryView
}

// wantsOf returns what a set wants; of none that is nothing.
func (p *planner) wantsOf(set *policy.Set) wants {
	if set == nil {
		return wants{}
	}
	return wants{set.ParamKinds(), p.inventoryViews(set)}
}

func (w wants) equal(other wants) bool {
	return slices.Equal(w.params, other.params) && slices.EqualFunc(w.views, other.views, func(a, b *policy.InventoryView) bool {
		return a.Digest == b.Digest
	})
}

// compile makes a set of policies, with the objects that they are judged with. ok is
// false while some of these are being listed: the next call goes on with what this one
// has begun.
func (p *planner) compile(ctx context.Context, inputs *policy.Inputs) (set *policy.Set, problems []source.Problem, ok bool) {
	set = p.awaited
	if set == nil {
		set = p.set
	}
	wanted := p.wantsOf(set)
	for {
		paramProblems, paramsOK := p.followParams(ctx, wanted.params, inputs)
		referenceProblems, referencesOK := p.followReferences(ctx, wanted.views, inputs)
		set = policy.Compile(ctx, *inputs, set)
		// What policies want does not depend on what they get.
		if now := p.wantsOf(set); !now.equal(wanted) {
			wanted = now
			continue
		}
		p.dropParams(wanted.params)
		p.dropReferences(wanted.views)
		if !paramsOK || !referencesOK {
			p.awaited = set
			return nil, nil, false
		}
		p.awaited = nil
		return set, append(paramProblems, referenceProblems...), true
	}
}
