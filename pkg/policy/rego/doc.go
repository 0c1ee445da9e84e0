// Package rego compiles and evaluates the Rego programs of ConstraintTemplates.
//
// A program has one template module, which defines the rule violation, and any
// number of library modules below data.lib. It is compiled once; evaluations
// share the compiled query and are independent of each other.
//
// It imports OPA and nothing of Kubernetes.
package rego
