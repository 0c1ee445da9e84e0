// Package review answers reviews: it judges the objects of a ReviewSpec by a snapshot
// of policies, for the API (pkg/registry/review) and for the command line.
//
// An object is judged as that of an admission request, as Gatekeeper's webhook and the
// kube-apiserver do, and, if it is a workload, its Pods as well (workload.go).
//
// Invariants:
//
//   - What cannot be judged is an error, of the request as a whole if it cannot be told
//     what is meant, and of a verdict otherwise. It never looks clean.
//   - A review has no effect, takes no lock while it judges, and ends with its context.
//   - The answer is bounded, and what was cut is marked.
//
// Who may ask what is for the caller to decide. The package imports the API types and
// pkg/policy, and nothing that serves.
package review
