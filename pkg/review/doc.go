// Package review answers reviews: it judges the objects of a ReviewSpec by a snapshot
// of policies, for the API (pkg/registry/review) and for the command line.
//
// An object is judged as that of an admission request, as Gatekeeper's webhook and the
// kube-apiserver do, and, if it is a workload, its Pods as well (workload.go).
//
// Candidates are policies of a review only (candidates.go): with what of the installed ones
// they need they make a Set of their own, and what they read is checked against the rights
// of who asks (params.go). A scope is judged as the audit does: its lists (scope.go) are
// read a page ahead of those who judge, and only counts and the first findings are kept
// (impact.go).
//
// Invariants:
//
//   - What cannot be judged is an error, of the request as a whole if it cannot be told
//     what is meant, and of a verdict otherwise. It never looks clean.
//   - A review has no effect, takes no lock while it judges, and ends with its context.
//   - The answer is bounded, and what was cut is marked.
//   - Candidates find over a scope what the audit finds once they are installed, or say
//     that they cannot tell.
//   - Candidates are shown nothing that who asks may not read.
//
// Who may ask what is for the caller to decide. The package imports the API types and
// pkg/policy, and nothing that serves.
package review
