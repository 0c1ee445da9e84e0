// Package policy judges objects by constraints.
//
// Compile turns ConstraintTemplates and constraints into a Set, an immutable
// snapshot with a digest; what is wrong with them becomes Rejections of the Set
// and costs nothing else. Review judges one object by some of the Set's
// constraints.
//
// Invariants:
//
//   - A verdict is of exactly one constraint. An error while one is evaluated is
//     that constraint's, and is never shown as a violation.
//   - The same object, Namespace and constraint (by Digest) give the same verdict,
//     except for policies that read the clock or random numbers.
//   - A program is compiled once and shared by its constraints and by the Sets that
//     follow; an object is converted once for all constraints.
//   - An evaluation ends: it has a deadline.
//
// The semantics are Gatekeeper's, except that an error of evaluation or of the
// match block is an Error and not a violation, and that constraints are evaluated
// one by one.
//
// The package knows nothing of servers, storage and HTTP.
package policy
