package audit

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// followParams streams the kinds that policies take their params from, and enters
// these into inputs. ok is false while some of them are being listed.
func (p *planner) followParams(ctx context.Context, params []schema.GroupVersionKind, inputs *policy.Inputs) (problems []source.Problem, ok bool) {
	ok = true
	inputs.ParamKinds, inputs.Params = nil, nil
	for _, gvk := range params {
		kind, found := p.kindOf(gvk)
		if !found {
			if known, ok := builtInParamKind(gvk); ok {
				inputs.ParamKinds = append(inputs.ParamKinds, known)
			}
			continue // of another kind, the policy says in its verdicts that there is none
		}
		gk := gvk.GroupKind()
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
	return problems, ok
}

// dropParams ends what followParams has begun for kinds that are not wanted any more.
func (p *planner) dropParams(wanted []schema.GroupVersionKind) {
	for gk := range p.paramCaches {
		if !slices.ContainsFunc(wanted, func(gvk schema.GroupVersionKind) bool { return gvk.GroupKind() == gk }) {
			delete(p.paramCaches, gk)
			p.releaseStream(gk)
		}
	}
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
	p.restartStream(ctx, kind)
}

// restartStream has the objects of a kind handed over from the beginning, to the caches
// that it has now.
func (p *planner) restartStream(ctx context.Context, kind source.Kind) {
	gk := kind.GroupKind()
	var set *constraintSet
	if stream := p.streams[gk]; stream != nil {
		stream.stop()
		set = stream.set
	}
	p.streams[gk] = p.a.startStream(ctx, kind, p.cachesOf(gk), set)
}

// releaseStream ends the stream of a kind if nobody needs it.
func (p *planner) releaseStream(gk schema.GroupKind) {
	if stream := p.streams[gk]; stream != nil && p.cachesOf(gk).none() && !stream.audited() {
		stream.stop()
		delete(p.streams, gk)
	}
}
