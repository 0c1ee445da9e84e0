// Package expand says which objects a controller would make of another: the Pod of a
// Deployment, the Job and the Pod of a CronJob. Gatekeeper's ExpansionTemplates
// describe how; what comes out of one are resultants.
//
// Invariants:
//
//   - A System is immutable, and an expansion depends on it and on the object only.
//   - The object is not modified. Resultants share its content, and are not modified
//     either.
//   - What is wrong with a template, or with an object for a template, costs nothing
//     that other templates say.
//   - An expansion ends, and is of bounded size: templates in a circle, in too long a
//     chain, or that multiply too much are refused beforehand.
//
// The semantics are those of Gatekeeper's audit, but for what is refused, and that its
// mutators (Assign, AssignMetadata and the like) are not applied to resultants.
//
// The package imports k8s.io/apimachinery only.
package expand
