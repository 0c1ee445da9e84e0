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
	matches, err := r.match.Matches(o.obj, o.namespace)
	switch {
	case err != nil:
		return failed(fmt.Errorf("match: %w", err))
	case !matches:
		return judgement{}
	}
	j := r.evaluator.evaluate(ctx, o)
	if j.outcome != Deferred && j.message != "" {
		j.message = fmt.Sprintf("template %s: %s", r.template.kind, j.message)
	}
	return j
}

// withTimeout bounds the time of one evaluation.
func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, evaluationTimeout, fmt.Errorf("it took longer than %v", evaluationTimeout))
}
