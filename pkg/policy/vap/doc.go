// Package vap judges objects by ValidatingAdmissionPolicies and their bindings.
//
// An object that exists is judged as if it were created, or else updated, just as it
// is: by the rules of the kube-apiserver for what a policy and its binding match, which
// params there are, and what the failurePolicy means. What only a request has is
// not made up: a policy that reads the user, the old object or the authorizer is
// Deferred. The object of a request is judged with what the request has.
//
// Invariants:
//
//   - A policy or binding that the kube-apiserver would not accept is an error here,
//     with the fields and what is wrong with them. Defaults are applied as there.
//   - An error of evaluation is never a violation. A failurePolicy of Ignore makes
//     it a pass, as the kube-apiserver does, but not what is missing here: a
//     Namespace, or a kind of params that is not known.
//   - Policies and bindings are immutable and may be used by any number of
//     goroutines. Objects are not modified.
//
// An object is judged in the version it has. A rule for another version, with
// matchPolicy Equivalent, selects it without a conversion to that version.
//
// It imports k8s.io/apiserver for matching, and pkg/policy/cel.
package vap
