package audit

import (
	"context"
	"fmt"
	"sort"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// collectedPolicies are the policies of the source.
type collectedPolicies struct {
	policy.Inputs
	// unknownKinds are kinds of constraints that cannot be listed at the moment and
	// never could be.
	unknownKinds map[string]struct{}
	// hidden is why resultants are not seen: ExpansionTemplates may not be listed.
	hidden []source.Problem
}

// collectPolicies streams the kinds that policies are made of, and Namespaces,
// and returns the policies once all of these have been listed. What keeps some of
// them from being listed is a problem.
func (p *planner) collectPolicies(ctx context.Context) (*collectedPolicies, []source.Problem, bool) {
	problems := append([]source.Problem(nil), p.inventory.Problems...)
	for group, err := range p.inventory.FailedGroups {
		problems = append(problems, source.Problem{Subject: "API group " + group, Message: "discovery failed: " + err.Error()})
	}
	p.streamCachedKinds(ctx)
	inputs := &collectedPolicies{unknownKinds: map[string]struct{}{}}

	if reason := p.waitForSync(); reason != "" {
		p.wait(reason)
		return nil, nil, false
	}
	for gk, cache := range p.policyCaches {
		synced, err := cache.state()
		if err != nil {
			problems = append(problems, source.Problem{
				Subject: gk.String(),
				Message: fmt.Sprintf("policies of this kind cannot be followed, what is known of them stays in force: %v", err),
			})
		}
		if !synced {
			inputs.unknownKinds[gk.Kind] = struct{}{}
			switch gk {
			case expansionTemplateKind:
				inputs.hidden = append(inputs.hidden, source.Problem{Subject: gk.String(), Message: fmt.Sprintf("what they make of objects is not seen: %v", err)})
			case syncSetKind, configKind:
				inputs.hidden = append(inputs.hidden, source.Problem{Subject: gk.String(), Message: fmt.Sprintf("which kinds they name for data.inventory is not known: %v", err)})
			}
		}
		switch gk {
		case templateKind:
			inputs.Templates = cache.all()
		case admissionPolicyKind:
			inputs.AdmissionPolicies = cache.all()
		case admissionBindingKind:
			inputs.AdmissionBindings = cache.all()
		case syncSetKind:
			inputs.SyncSets = cache.all()
		case configKind:
			inputs.Configs = cache.all()
		case expansionTemplateKind:
			inputs.ExpansionTemplates = cache.all()
		default:
			inputs.Constraints = append(inputs.Constraints, cache.all()...)
		}
	}
	if _, err := p.namespaces.state(); err != nil {
		problems = append(problems, source.Problem{
			Subject: namespaceKind.String(),
			Message: fmt.Sprintf("Namespaces cannot be followed, what is known of them stays in force: %v", err),
		})
	}
	problems = append(problems, p.ensureConstraintKinds(ctx)...)
	sort.Slice(problems, func(i, j int) bool {
		if problems[i].Subject != problems[j].Subject {
			return problems[i].Subject < problems[j].Subject
		}
		return problems[i].Message < problems[j].Message
	})
	return inputs, problems, true
}

// someProblems bounds the problems of a run.
func someProblems(problems []source.Problem) []source.Problem {
	for i := range problems {
		problems[i].Subject, _ = truncate(problems[i].Subject, maxProblemBytes)
		problems[i].Message, _ = truncate(problems[i].Message, maxProblemBytes)
	}
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems:maxProblems], source.Problem{Subject: "more", Message: fmt.Sprintf("%d more problems are not shown", more)})
	}
	return problems
}

// streamCachedKinds starts and ends the streams of kinds that have a cache.
func (p *planner) streamCachedKinds(ctx context.Context) {
	present := map[schema.GroupKind]struct{}{}
	for _, kind := range p.inventory.Kinds {
		gk := kind.GroupKind()
		if gk != namespaceKind && !isPolicyKind(gk) {
			continue
		}
		present[gk] = struct{}{}
		if gk != namespaceKind && p.policyCaches[gk] == nil {
			p.policyCaches[gk] = newObjectCache(func(_, _ *cachedObject) { p.notify() })
		}
		switch stream := p.streams[gk]; {
		case stream == nil:
			p.streams[gk] = p.a.startStream(ctx, kind, p.cachesOf(gk), nil)
		case stream.kind != kind && !stream.audited():
			p.restartStream(ctx, kind) // in the version that is preferred by now; adopt does it for those that are audited
		}
	}
	if _, ok := present[namespaceKind]; !ok {
		p.namespacesKnown.Store(true) // there are none
	}
	for gk := range p.policyCaches {
		if _, ok := present[gk]; ok || p.inventory.FailedGroups[gk.Group] != nil {
			continue
		}
		delete(p.policyCaches, gk)
		if stream := p.streams[gk]; stream != nil {
			stream.stop()
			delete(p.streams, gk)
		}
	}
}

// cachesOf returns the caches of a kind.
func (p *planner) cachesOf(gk schema.GroupKind) kindCaches {
	caches := kindCaches{cache: p.cacheOf(gk)}
	if r := p.references[gk]; r != nil {
		caches.inventory = r.cache
	}
	return caches
}

// cacheOf returns the cache of a kind, nil if its objects are not kept.
func (p *planner) cacheOf(gk schema.GroupKind) *objectCache {
	if gk == namespaceKind {
		return p.namespaces
	}
	if cache := p.policyCaches[gk]; cache != nil {
		return cache
	}
	return p.paramCaches[gk]
}

// waitForSync says what has to be listed before a plan can be made. Templates and
// Namespaces are indispensable, and so are ExpansionTemplates unless they are withheld:
// without them, findings that they imply would go. Constraints of a kind that cannot be
// listed cost only themselves.
func (p *planner) waitForSync() string {
	for _, group := range policyGroups {
		if err := p.inventory.FailedGroups[group]; err != nil && p.set == nil {
			return fmt.Sprintf("discovery of the API group %s fails: %v", group, err)
		}
	}
	if p.streams[namespaceKind] != nil {
		if synced, err := p.namespaces.state(); !synced && err == nil {
			return "Namespaces are being listed"
		}
	}
	for gk, cache := range p.policyCaches {
		switch synced, err := cache.state(); {
		case synced:
		case err == nil:
			return gk.String() + " objects are being listed"
		case gk == templateKind || gk == expansionTemplateKind && !apierrors.IsForbidden(err):
			return fmt.Sprintf("%s objects cannot be listed: %v", gk, err)
		}
	}
	return ""
}

// ensureConstraintKinds sees to it that constraints can be created for each
// template that is new or has changed.
func (p *planner) ensureConstraintKinds(ctx context.Context) []source.Problem {
	cache := p.policyCaches[templateKind]
	if p.a.ensure == nil || cache == nil {
		return nil
	}
	var problems []source.Problem
	for _, template := range cache.all() {
		name := template.GetName()
		entry := cache.get("", name)
		if entry == nil || p.ensuredKinds[name] == entry.digest {
			continue
		}
		if err := p.a.ensure(ctx, template); err != nil {
			klog.FromContext(ctx).Error(err, "The kind of a template's constraints cannot be made", "template", name)
			problems = append(problems, source.Problem{Subject: "ConstraintTemplate " + name, Message: "the kind of its constraints cannot be made: " + err.Error()})
			continue
		}
		p.ensuredKinds[name] = entry.digest
	}
	return problems
}

// logRejections logs the policies that are rejected and were not before, or not for
// the same reason.
func logRejections(ctx context.Context, before, now *policy.Set) {
	known := map[policy.Rejection]struct{}{}
	if before != nil {
		for _, r := range before.Rejections() {
			known[r] = struct{}{}
		}
	}
	for _, r := range now.Rejections() {
		if _, ok := known[r]; !ok {
			message, _ := truncate(r.Message, maxProblemBytes)
			klog.FromContext(ctx).Info("Policy rejected", "kind", r.ID.Kind, "name", r.ID.Name, "reason", message)
		}
	}
}
