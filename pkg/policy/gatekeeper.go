package policy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/match"
	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// gatekeeperRule is what a constraint of a ConstraintTemplate asks.
type gatekeeperRule struct {
	template  *template
	match     *match.Matcher
	evaluator evaluator
	// exclusions are those of Gatekeeper's Config.
	exclusions *exclusions
	// action is the constraint's enforcementAction.
	action string
	// expansion is nil if no ExpansionTemplate makes what the constraint can match.
	expansion *expansion
}

func (r *gatekeeperRule) selectsKind(k Kind) bool {
	return r.match.SelectsKind(k.GroupKind(), k.Namespaced, match.Original) || r.expansion.selectsKind(k, r)
}

func (r *gatekeeperRule) selectsGroup(group string) bool {
	return r.match.SelectsGroup(group, match.Original) || r.expansion.selectsGroup(group)
}

func (r *gatekeeperRule) names(k Kind) bool {
	return r.match.SelectsKind(k.GroupKind(), k.Namespaced, match.Original) && r.match.NamesKind(k.GroupKind())
}

func (r *gatekeeperRule) reads(k Kind, object, namespace *paths.Tree) {
	r.readsOne(k.GroupKind() == namespaceKind, object, namespace)
	if r.expansion != nil {
		for _, source := range r.expansion.system.Sources(k.GroupKind()) {
			field := object
			for _, name := range source {
				field = field.Field(name)
			}
			field.ReadAll() // resultants are made of it
		}
	}
}

// readsOne adds what judgeOne reads.
func (r *gatekeeperRule) readsOne(isNamespace bool, object, namespace *paths.Tree) {
	if r.match.ReadsLabels() || isNamespace && r.match.NeedsNamespace() {
		readLabels(object)
	}
	if r.match.NeedsNamespace() {
		readLabels(namespace)
	}
	if r.match.ReadsGenerateName() {
		object.Field("metadata").Field("generateName").ReadAll()
	}
	r.template.program.reads(object, namespace)
}

func (r *gatekeeperRule) judge(ctx context.Context, o *Object) judgement {
	if o.request != nil && !r.template.handles(o.request.Operation) {
		return notMatched("operations of the template")
	}
	if r.exclusions.excludesIn(o.process(), o.obj, o.namespaceName()) {
		return notMatched("spec.match of Gatekeeper's Config, which excludes the namespace")
	}
	// What goes makes nothing any more.
	if r.expansion != nil && o.operation() != OperationDelete {
		if e := o.expand(r.expansion.system); e != nil {
			return r.judgeAll(ctx, o, e)
		}
	}
	return r.judgeOne(ctx, o, match.Original)
}

// judgeOne judges an object, or a resultant, by itself.
func (r *gatekeeperRule) judgeOne(ctx context.Context, o *Object, source match.Source) judgement {
	excludes, err := r.excludes(o, source)
	switch {
	case err != nil:
		return failed(fmt.Errorf("match: %w", err))
	case excludes != "":
		return notMatched(excludes)
	}
	j := r.evaluator.evaluate(ctx, o)
	if j.outcome != Deferred && j.message != "" {
		j.message = fmt.Sprintf("template %s: %s", r.template.kind, j.message)
	}
	return j
}

// excludes returns the field that rules an object out, "" if none does. A request is
// matched if its object or the old one is.
func (r *gatekeeperRule) excludes(o *Object, source match.Source) (field string, err error) {
	field, err = r.match.Excludes(o.obj, o.namespace, source)
	if field == "" || err != nil || o.request == nil || o.request.OldObject == nil || o.request.OldObject == o.obj {
		return field, err
	}
	if byOld, err := r.match.Excludes(o.request.OldObject, o.namespace, source); byOld == "" {
		return "", err
	}
	return field, nil
}

// withTimeout bounds the time of one evaluation.
func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, evaluationTimeout, fmt.Errorf("it took longer than %v", evaluationTimeout))
}
