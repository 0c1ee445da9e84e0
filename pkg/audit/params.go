package audit

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// followParams streams the kinds that policies take their params from, and enters
// these into inputs. ok is false while some of them are being listed.
func (p *planner) followParams(ctx context.Context, set *policy.Set, inputs *policy.Inputs) (problems []source.Problem, ok bool) {
	ok = true
	wanted := map[schema.GroupKind]struct{}{}
	for _, gvk := range set.ParamKinds() {
		kind, found := p.kindOf(gvk)
		if !found {
			if known, ok := builtInParamKind(gvk); ok {
				inputs.ParamKinds = append(inputs.ParamKinds, known)
			}
			continue // of another kind, the policy says in its verdicts that there is none
		}
		gk := gvk.GroupKind()
		wanted[gk] = struct{}{}
		p.cacheParams(ctx, kind)
		synced, err := p.cacheOf(gk).state()
		if err != nil {
			problems = append(problems, source.Problem{
				Subject: gk.String(),
				Message: fmt.Sprintf("params of policies of this kind cannot be followed, what is known of them stays in force: %v", err),
			})
		}
		if !synced {
			ok = ok && err != nil
			continue
		}
		inputs.ParamKinds = append(inputs.ParamKinds, policy.Kind(kind))
		inputs.Params = append(inputs.Params, p.cacheOf(gk).all()...)
	}
	for gk := range p.paramCaches {
		if _, ok := wanted[gk]; ok {
			continue
		}
		delete(p.paramCaches, gk)
		if stream := p.streams[gk]; stream != nil && p.cacheOf(gk) == nil && !stream.audited() {
			stream.stop()
			delete(p.streams, gk)
		}
	}
	return problems, ok
}

// builtInParamKind returns a kind that every cluster has, and that a directory may have
// no object of.
func builtInParamKind(gvk schema.GroupVersionKind) (policy.Kind, bool) {
	resource, ok := map[schema.GroupVersionKind]string{
		{Version: "v1", Kind: "ConfigMap"}: "configmaps",
		{Version: "v1", Kind: "Secret"}:    "secrets",
	}[gvk]
	return policy.Kind{GroupVersionKind: gvk, Resource: resource, Namespaced: true}, ok
}

// kindOf returns the kind of the source that has a version.
func (p *planner) kindOf(gvk schema.GroupVersionKind) (source.Kind, bool) {
	for _, kind := range p.inventory.Kinds {
		if kind.GroupVersionKind == gvk {
			return kind, true
		}
	}
	return source.Kind{}, false
}

// cacheParams sees to it that a kind has a cache.
func (p *planner) cacheParams(ctx context.Context, kind source.Kind) {
	gk := kind.GroupKind()
	if p.cacheOf(gk) != nil {
		return
	}
	p.paramCaches[gk] = newObjectCache(func(_, _ *cachedObject) { p.notify() })
	var set *constraintSet
	if stream := p.streams[gk]; stream != nil {
		// It has been handing objects over without a cache.
		stream.stop()
		set = stream.set
	}
	p.streams[gk] = p.a.startStream(ctx, kind, p.paramCaches[gk], set)
}
