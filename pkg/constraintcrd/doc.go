// Package constraintcrd makes the CustomResourceDefinitions of constraints from
// their ConstraintTemplates, in clusters where no Gatekeeper does.
//
// Invariants:
//
//   - The first writer wins: a definition without the label
//     app.kubernetes.io/managed-by=policy-apiserver belongs to somebody else and is
//     never changed.
//   - A definition of ours is owned by its template, so Kubernetes' garbage
//     collection removes it, and the constraints with it, when the template is gone.
//   - Nothing is written unless it differs from what is there.
//
// The package imports pkg/policy and the client of k8s.io/apiextensions-apiserver.
package constraintcrd
