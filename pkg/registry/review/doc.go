// Package review serves reviews and localreviews: create only, like
// SubjectAccessReview. It decides who may ask what, and leaves the answer to
// pkg/review.
//
// Invariants:
//
//   - Nothing is stored: there is no Getter, Lister, Updater or Deleter.
//   - A reference is read only after the requester's own right to get it was checked.
//     Another user takes the rights that impersonation takes.
//   - Candidates take the right to create the subresource candidates, and a scope those to
//     list what it reads. Both are bounded in number, for each user and for all together,
//     and end with their request (limit.go).
//   - Until the policies are loaded, the answer is 503 with Retry-After.
//
// It imports k8s.io/apiserver, pkg/review and pkg/policy, and no source: who wires the
// server gives it what it reads from.
package review
