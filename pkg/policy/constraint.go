package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"policy.example.io/policy-apiserver/pkg/policy/match"
)

// Enforcement actions.
const (
	actionDeny   = "deny"
	actionDryRun = "dryrun"
	actionWarn   = "warn"
	actionAudit  = "audit"
	actionScoped = "scoped"
)

// knownActions are those that Gatekeeper's webhook accepts.
var knownActions = []string{actionDeny, actionDryRun, actionWarn, actionScoped}

// Constraint is a constraint that can be evaluated. It is immutable.
type Constraint struct {
	ID         ConstraintID
	UID        types.UID
	Generation int64
	// EnforcementAction as written: deny unless it is given.
	EnforcementAction string
	// EnforcementActions of a scoped constraint for audits, sorted.
	EnforcementActions []string
	// Note says what an administrator should know about a constraint that is audited
	// all the same. It is empty if there is nothing.
	Note string
	// Digest identifies everything that a verdict depends on besides the object and
	// its Namespace.
	Digest string
	// NeedsNamespace is true if a verdict may depend on the object's Namespace.
	NeedsNamespace bool

	// scoped actions, of a scoped constraint.
	scoped []scopedAction
	rule   rule
}

// SelectsKind tells whether objects of a kind, or resultants of such objects, can match
// the constraint.
func (c *Constraint) SelectsKind(k Kind) bool { return c.rule.selectsKind(k) }

// Names tells whether objects of a kind can match the constraint and it names the kind: it
// is not a wildcard that selects it.
func (c *Constraint) Names(k Kind) bool { return c.rule.names(k) }

// SelectsGroup tells whether objects of some kind of an API group, or resultants of such
// objects, can match the constraint.
func (c *Constraint) SelectsGroup(group string) bool { return c.rule.selectsGroup(group) }

// newConstraint checks a constraint against its template and compiles it. audited
// is false if the constraint is not meant for audits.
func newConstraint(ctx context.Context, id ConstraintID, obj *unstructured.Unstructured, t *template, set *Set, inventory *Inventory) (c *Constraint, audited bool, err error) {
	content, err := t.schema.admit(ctx, obj)
	if err != nil {
		return nil, false, err
	}
	c = &Constraint{
		ID:                id,
		UID:               obj.GetUID(),
		Generation:        obj.GetGeneration(),
		EnforcementAction: enforcementAction(content),
	}
	r := &gatekeeperRule{template: t, exclusions: set.exclusions}
	c.rule = r
	var notes []string
	if !slices.Contains(knownActions, c.EnforcementAction) {
		notes = append(notes, fmt.Sprintf("enforcementAction is %q; Gatekeeper knows deny, dryrun, warn and scoped", c.EnforcementAction))
	}
	for _, note := range t.program.notes() {
		notes = append(notes, fmt.Sprintf("template %s: %s", strings.ToLower(t.kind), note))
	}
	matchContent, _, err := unstructured.NestedMap(content, "spec", "match")
	if err != nil {
		return nil, false, err
	}
	if r.match, err = match.Compile(matchContent); err != nil {
		return nil, false, err
	}
	if scope := r.match.UnknownScope(); scope != "" {
		notes = append(notes, fmt.Sprintf("spec.match.scope is %q, which selects everything; it is Cluster, Namespaced or *", scope))
	}
	c.Note = strings.Join(notes, "; ")
	// Parameters may be of any type that the schema allows.
	parameters, _, err := unstructured.NestedFieldNoCopy(content, "spec", "parameters")
	if err != nil {
		return nil, false, err
	}
	var loaded *programInventory
	if p, ok := t.program.(*regoProgram); ok && p.inventory != nil {
		loaded = set.inventoryOf(p, inventory)
	}
	if r.evaluator, err = t.program.bind(parameters, set.memo, loaded); err != nil {
		return nil, false, fmt.Errorf("spec.parameters: %w", err)
	}
	audited = true
	if c.EnforcementAction == actionScoped {
		if c.scoped, err = scopedActions(content); err != nil {
			return nil, false, err
		}
		c.EnforcementActions = actionsAt(c.scoped, PointAudit)
		audited = len(c.EnforcementActions) > 0
	}
	c.NeedsNamespace = r.match.NeedsNamespace() || t.program.readsNamespace()
	parts := []any{engineVersion, t.digest, id, c.UID, c.Generation, c.EnforcementAction, c.EnforcementActions, matchContent, parameters}
	if loaded != nil {
		parts = append(parts, "inventory", loaded.digest)
	}
	if patterns := set.exclusions.patterns(processAudit); len(patterns) > 0 {
		parts = append(parts, "exclusions", patterns)
	}
	if len(c.scoped) > 0 {
		parts = append(parts, c.scoped)
	}
	identity, err := json.Marshal(parts)
	if err != nil {
		return nil, false, fmt.Errorf("digest of the constraint: %w", err)
	}
	c.Digest = digest(identity)
	return c, audited, nil
}

// enforcementAction of a constraint, also of one that is rejected.
func enforcementAction(content map[string]any) string {
	if action, _, err := unstructured.NestedString(content, "spec", "enforcementAction"); err == nil && action != "" {
		return action
	}
	return actionDeny
}

// scopedActions returns the actions of a scoped constraint, each with its point.
func scopedActions(content map[string]any) ([]scopedAction, error) {
	entries, found, err := unstructured.NestedSlice(content, "spec", "scopedEnforcementActions")
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, errors.New("spec.enforcementAction is scoped and spec.scopedEnforcementActions is missing; say there what to do where, or choose another action")
	}
	var actions []scopedAction
	for i := range entries {
		entry, ok := entries[i].(map[string]any)
		if !ok {
			continue
		}
		action, _, _ := unstructured.NestedString(entry, "action")
		points, _, _ := unstructured.NestedSlice(entry, "enforcementPoints")
		for _, point := range points {
			p, ok := point.(map[string]any)
			if !ok {
				continue
			}
			if name, ok := p["name"].(string); ok {
				actions = append(actions, scopedAction{Point: name, Action: action})
			}
		}
	}
	return actions, nil
}
