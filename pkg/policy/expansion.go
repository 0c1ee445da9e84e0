package policy

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/expand"
	"policy.example.io/policy-apiserver/pkg/policy/match"
)

// kindExpansionTemplate is the kind in the ID of an ExpansionTemplate's Rejection.
const kindExpansionTemplate = "ExpansionTemplate"

// addExpansions compiles ExpansionTemplates into the set.
func (s *Set) addExpansions(objs []*unstructured.Unstructured, previous *Set) {
	objects := map[*expand.Template]*unstructured.Unstructured{}
	reject := func(obj *unstructured.Unstructured, err error) {
		s.rejections = append(s.rejections, Rejection{
			ID:         ConstraintID{Engine: EngineGatekeeper, Kind: kindExpansionTemplate, Name: obj.GetName()},
			UID:        obj.GetUID(),
			Generation: obj.GetGeneration(),
			Message:    fmt.Sprintf("ExpansionTemplate %s: %v", obj.GetName(), err),
		})
	}
	var templates []*expand.Template
	for _, obj := range objs {
		t, err := expand.Compile(obj)
		if err != nil {
			reject(obj, err)
			continue
		}
		templates = append(templates, t)
		objects[t] = obj
	}
	system, refused := expand.NewSystem(templates)
	for t, err := range refused {
		reject(objects[t], err)
	}
	s.expansion = system
	// Constraints that the sets share keep theirs then.
	if previous != nil && previous.expansion.Digest() == system.Digest() {
		s.expansion = previous.expansion
	}
}

// expansion is what a constraint has to do with ExpansionTemplates.
type expansion struct {
	system *expand.System
	// templates are those whose resultants the constraint can match, or what others
	// make of these. There is at least one.
	templates []*expand.Template
}

// addExpansion makes a new constraint see the resultants of a system.
func (c *Constraint) addExpansion(system *expand.System) {
	r := c.rule.(*gatekeeperRule)
	r.action = c.EnforcementAction
	if r.expansion = r.expansionBy(system); r.expansion == nil {
		return
	}
	parts := [][]byte{[]byte(c.Digest)}
	for _, t := range r.expansion.templates {
		parts = append(parts, []byte(t.Digest))
		if t.EnforcementAction != "" && !slices.Contains(knownActions, t.EnforcementAction) {
			c.Note = strings.TrimPrefix(fmt.Sprintf("%s; ExpansionTemplate %s: spec.enforcementAction is %q; Gatekeeper knows deny, dryrun, warn and scoped", c.Note, t.Name, t.EnforcementAction), "; ")
		}
	}
	c.Digest = digest(parts...)
}

// under returns a constraint of an earlier set as one of this set, in which audits see
// the same of ExpansionTemplates, exclusions and data.inventory. fresh is the same
// constraint of this set without what is remembered of it.
func (c *Constraint) under(s *Set, fresh *Constraint) *Constraint {
	r, ok := c.rule.(*gatekeeperRule)
	if !ok {
		return c
	}
	evaluator := r.evaluator.withInventory(fresh.rule.(*gatekeeperRule).evaluator)
	if evaluator == r.evaluator && r.exclusions == s.exclusions && (r.expansion == nil || r.expansion.system == s.expansion) {
		return c
	}
	rule, constraint := *r, *c
	rule.exclusions, rule.expansion, rule.evaluator = s.exclusions, r.expansionBy(s.expansion), evaluator
	constraint.rule = &rule
	return &constraint
}

func (r *gatekeeperRule) expansionBy(system *expand.System) *expansion {
	var templates []*expand.Template
	for _, t := range system.Templates() {
		if r.selectsMade(system.Makes(t), false) {
			templates = append(templates, t)
		}
	}
	if len(templates) == 0 {
		return nil
	}
	return &expansion{system: system, templates: templates}
}

// selectsMade tells whether resultants of some kinds can match. Those of an object in a
// namespace are in that; others may say that they are in one.
func (r *gatekeeperRule) selectsMade(kinds []schema.GroupVersionKind, inNamespace bool) bool {
	return slices.ContainsFunc(kinds, func(gvk schema.GroupVersionKind) bool {
		gk := gvk.GroupKind()
		return r.match.SelectsKind(gk, true, match.Generated) || !inNamespace && r.match.SelectsKind(gk, false, match.Generated)
	})
}

// selectsKind tells whether objects of a kind can have resultants that match.
func (e *expansion) selectsKind(k Kind, r *gatekeeperRule) bool {
	return e != nil && slices.ContainsFunc(e.templates, func(t *expand.Template) bool {
		return t.AppliesTo(k.GroupKind()) && r.selectsMade(e.system.Makes(t), k.Namespaced)
	})
}

// selectsGroup tells whether objects of some kind of a group can have resultants that
// match.
func (e *expansion) selectsGroup(group string) bool {
	return e != nil && slices.ContainsFunc(e.templates, func(t *expand.Template) bool { return t.AppliesToGroup(group) })
}

// SelectsResultants tells whether the constraint judges resultants of a kind along with
// objects of exactly another kind.
func (c *Constraint) SelectsResultants(of schema.GroupVersionKind, resultant schema.GroupKind) bool {
	r, ok := c.rule.(*gatekeeperRule)
	if !ok || r.expansion == nil || !r.match.SelectsKind(resultant, true, match.Generated) {
		return false
	}
	return slices.ContainsFunc(r.expansion.system.MadeOf(of), func(made schema.GroupVersionKind) bool { return made.GroupKind() == resultant })
}

// expanded is what an object expands to, to be judged.
type expanded struct {
	resultants []resultant
	failures   []expand.Failure
}

type resultant struct {
	template *expand.Template
	object   *Object
}

// expand returns what the object expands to, nil if it does not. It is made once.
func (o *Object) expand(system *expand.System) *expanded {
	if o.expandedBy == system {
		return o.expanded
	}
	o.expandedBy, o.expanded = system, nil
	e := system.Expand(o.obj)
	if e == nil {
		return nil
	}
	o.expanded = &expanded{failures: e.Failures}
	for _, r := range e.Resultants {
		kind := Kind{GroupVersionKind: r.Template.Generates, Namespaced: r.Object.GetNamespace() != ""}
		made := NewObject(kind, r.Object, o.namespace)
		made.madeBy = o.operation()
		o.expanded.resultants = append(o.expanded.resultants, resultant{r.Template, made})
	}
	return o.expanded
}

// judgeAll judges an object and what it expands to, all in the time of one evaluation.
func (r *gatekeeperRule) judgeAll(ctx context.Context, o *Object, e *expanded) judgement {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	own := r.judgeOne(ctx, o, match.Original)
	own.action = r.action
	parts := []judgement{own}
	for i := range e.resultants {
		made := &e.resultants[i]
		parts = append(parts, implied(made.template, r.judgeOne(ctx, made.object, match.Generated), r.action))
	}
	for i := range e.failures {
		if f := &e.failures[i]; r.canMatch(f, o) {
			parts = append(parts, implied(f.Template, failed(f.Err), r.action))
		}
	}
	return merge(parts)
}

// canMatch tells whether the constraint might apply to what could not be made.
func (r *gatekeeperRule) canMatch(f *expand.Failure, o *Object) bool {
	return slices.ContainsFunc(f.Kinds, func(gvk schema.GroupVersionKind) bool {
		return r.match.CanMatch(gvk, o.obj.GetNamespace(), o.namespace, match.Generated)
	})
}

// implied marks what is said of a resultant as Gatekeeper does. action is the
// constraint's.
func implied(t *expand.Template, j judgement, action string) judgement {
	prefix := "[Implied by " + t.Name + "] "
	// Others have these violations too.
	j.violations = slices.Clone(j.violations)
	for i := range j.violations {
		j.violations[i].Message = prefix + j.violations[i].Message
	}
	if j.message != "" {
		j.message = prefix + j.message
	}
	j.action = cmp.Or(t.EnforcementAction, action)
	return j
}

// outcomesByWeight has the outcomes, each of which hides those before it.
var outcomesByWeight = []Outcome{NotMatched, Pass, Deferred, Error, Fail}

// merge makes one judgement of several. The weightiest outcome is shown, with all
// violations and messages; the action is the strongest of those of this outcome.
func merge(parts []judgement) judgement {
	var merged judgement
	var messages []string
	for _, part := range parts {
		if slices.Index(outcomesByWeight, part.outcome) > slices.Index(outcomesByWeight, merged.outcome) {
			merged.outcome = part.outcome
		}
		merged.violations = append(merged.violations, part.violations...)
		if part.message != "" && !slices.Contains(messages, part.message) {
			messages = append(messages, part.message)
		}
	}
	var actions []string
	for _, part := range parts {
		if part.outcome == merged.outcome {
			actions = append(actions, part.action)
		}
	}
	merged.action = strongestAction(actions)
	merged.message = strings.Join(messages, "; ")
	if merged.outcome == NotMatched {
		merged.reason = parts[0].reason
	}
	slices.SortFunc(merged.violations, compareViolations)
	merged.violations = slices.CompactFunc(merged.violations, func(a, b Violation) bool { return compareViolations(a, b) == 0 })
	return merged
}

func compareViolations(a, b Violation) int {
	return cmp.Or(cmp.Compare(a.Message, b.Message), bytes.Compare(a.Details, b.Details))
}

// strongestAction returns the enforcementAction of several that does the most; those
// that Gatekeeper does not know come last.
func strongestAction(actions []string) string {
	order := []string{actionDeny, actionScoped, actionWarn, actionDryRun}
	rank := func(action string) int {
		if i := slices.Index(order, action); i >= 0 {
			return i
		}
		return len(order)
	}
	return slices.MinFunc(actions, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
}
