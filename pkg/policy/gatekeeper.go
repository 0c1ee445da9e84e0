package policy

import (
	"context"
	"fmt"

	"policy.example.io/policy-apiserver/pkg/policy/match"
)

// gatekeeperRule is what a constraint of a ConstraintTemplate asks.
type gatekeeperRule struct {
	template  *template
	match     *match.Matcher
	evaluator evaluator
}

func (r *gatekeeperRule) selectsKind(k Kind) bool {
	return r.match.SelectsKind(k.GroupKind(), k.Namespaced)
}

func (r *gatekeeperRule) selectsGroup(group string) bool { return r.match.SelectsGroup(group) }

func (r *gatekeeperRule) judge(ctx context.Context, o *Object) judgement {
	if o.request != nil && !r.template.handles(o.request.Operation) {
		return notMatched("operations of the template")
	}
	excludes, err := r.excludes(o)
	switch {
	case err != nil:
		return failed(fmt.Errorf("match: %w", err))
	case excludes != "":
		return notMatched(excludes)
	}
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	j := r.evaluator.evaluate(ctx, o)
	if j.outcome != Deferred && j.message != "" {
		j.message = fmt.Sprintf("template %s: %s", r.template.kind, j.message)
	}
	return j
}

// excludes returns the field that rules an object out, "" if none does. A request is
// matched if its object or the old one is.
func (r *gatekeeperRule) excludes(o *Object) (field string, err error) {
	if o.request == nil {
		return r.match.Excludes(o.obj, o.namespace, false)
	}
	field, err = r.match.Excludes(o.obj, o.namespace, o.request.Generated)
	if old := o.request.OldObject; field != "" && err == nil && old != nil && old != o.obj {
		if byOld, err := r.match.Excludes(old, o.namespace, o.request.Generated); byOld == "" {
			return "", err
		}
	}
	return field, err
}

// withTimeout bounds the time of one evaluation.
func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, evaluationTimeout, fmt.Errorf("it took longer than %v", evaluationTimeout))
}
