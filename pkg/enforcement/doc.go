// Package enforcement answers admission reviews: the policy engine as a validating
// admission webhook, which takes the part of Gatekeeper's (validation.gatekeeper.sh).
//
// ValidatingAdmissionPolicies are left to the kube-apiserver, which enforces them itself.
//
// Invariants:
//
//   - A request that cannot be judged, because the policies or what they need are not
//     loaded or because its time is over, gets an HTTP error and no AdmissionReview: the
//     failurePolicy of the webhook decides about it then, and only then.
//   - A denial names each constraint that denies. An error of a constraint is treated as
//     a violation of it, as Gatekeeper does, and says that it is an error.
//   - A request has no effect besides metrics and logs, whether it is a dry run or not.
//   - Messages are bounded both ways.
//
// The package is given its policies and imports nothing that loads or keeps them.
package enforcement
