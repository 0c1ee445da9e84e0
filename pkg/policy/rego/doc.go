// Package rego compiles and evaluates the Rego programs of ConstraintTemplates.
//
// A program has one template module, which defines the rule violation, and any
// number of library modules below data.lib. It is compiled once; evaluations
// share the compiled query and are independent of each other.
//
// What a program reads of its input is found out when it is compiled (reads.go), so
// that it can be evaluated on a projection of it. Texts that it only shows can be
// replaced by placeholders, which Show replaces in messages (shown.go).
//
// It imports OPA, the package paths, and nothing of Kubernetes.
package rego
