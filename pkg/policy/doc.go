// Package policy judges objects by constraints.
//
// Compile turns ConstraintTemplates and constraints, ValidatingAdmissionPolicies and
// their bindings into a Set, an immutable snapshot with a digest; what is wrong with
// them becomes Rejections of the Set and costs nothing else. Review judges one object
// by some of the Set's constraints.
//
// Invariants:
//
//   - A verdict is of exactly one constraint. An error while one is evaluated is
//     that constraint's, and is never shown as a violation.
//   - The same object, Namespace and constraint (by Digest) give the same verdict,
//     except for policies that read the clock or random numbers.
//   - A program is compiled once and shared by its constraints and by the Sets that
//     follow; an object is converted once for the constraints of a template.
//   - An evaluation ends: it has a deadline.
//
// A constraint is what a rule asks (engine.go): that of a ConstraintTemplate
// (gatekeeper.go), whose program is in Rego (engine_rego.go) or in CEL
// (engine_cel.go), or that of a ValidatingAdmissionPolicy by a binding
// (admission.go). Constraints of ConstraintTemplates also judge what ExpansionTemplates
// make of an object (expansion.go). Rego programs see what they read of an object and no
// more, and what they said of it is remembered, with placeholders for texts that they
// only show (memo.go); docs/engine.md tells why.
//
// The semantics are Gatekeeper's, except that an error of evaluation or of the
// match block is an Error and not a violation, and that constraints are evaluated
// one by one; those of ValidatingAdmissionPolicies are the kube-apiserver's.
//
// The package knows nothing of servers, storage and HTTP.
package policy
