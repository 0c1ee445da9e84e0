package policy

import (
	"k8s.io/apimachinery/pkg/types"
)

// Engine is the family of policies that a constraint belongs to.
type Engine string

const (
	// EngineGatekeeper evaluates ConstraintTemplates and their constraints.
	EngineGatekeeper Engine = "Gatekeeper"
	// EngineValidatingAdmissionPolicy evaluates ValidatingAdmissionPolicies and
	// their bindings.
	EngineValidatingAdmissionPolicy Engine = "ValidatingAdmissionPolicy"
)

// ConstraintID identifies a constraint.
type ConstraintID struct {
	Engine Engine
	Kind   string
	Name   string
}

// Outcome of judging one object by one constraint.
type Outcome int

const (
	// NotMatched means that the constraint's match block rules the object out.
	NotMatched Outcome = iota
	// Pass means that the object complies.
	Pass
	// Fail means that the object violates the constraint.
	Fail
	// Error means that the object could not be evaluated.
	Error
	// Deferred means that the evaluation needs data that is not there yet.
	Deferred
)

// Violation is one thing that a policy says is wrong with an object.
type Violation struct {
	// Message as the policy wrote it.
	Message string
	// Details as JSON, nil if the policy gave none or an empty object.
	Details []byte
}

// Verdict is what one constraint says of one object and, where ExpansionTemplates make
// others of it, of these: its resultants. As in Gatekeeper's audit, what is said of a
// resultant begins with "[Implied by <ExpansionTemplate>] ".
type Verdict struct {
	Constraint *Constraint
	// Outcome is the first that the object or one of its resultants has, of: Fail,
	// Error, Deferred, Pass, NotMatched. A resultant that cannot be made is an Error of
	// the constraints that might have applied to it.
	Outcome Outcome
	// Violations, sorted by message then details, without duplicates. Empty unless
	// Outcome is Fail.
	Violations []Violation
	// Message says why the outcome is Error or Deferred, with the place in the
	// policy where there is one, and beside violations what could not be evaluated.
	Message string
	// EnforcementAction is the constraint's, or instead the one of the ExpansionTemplate
	// for what is said of its resultants, if it has one. Where actions differ, it is the
	// strongest of those with this Outcome: deny, scoped, warn, dryrun, others. If it is
	// not the Constraint's, the Constraint's EnforcementActions do not speak of it.
	EnforcementAction string
	// Reason says what rules the object out if the outcome is NotMatched.
	Reason string
}

// Rejection is a template, constraint or ExpansionTemplate that cannot be evaluated
// because it is wrong.
type Rejection struct {
	// ID of the constraint. Name is empty if the template itself is rejected; each
	// constraint of a rejected template has a Rejection of its own as well. Of an
	// ExpansionTemplate it is that kind and its name.
	ID                ConstraintID
	UID               types.UID
	Generation        int64
	EnforcementAction string
	// Message names the object, the place in it and what to do.
	Message string
}
