// Package cel compiles and evaluates the CEL validations of ConstraintTemplates
// and of ValidatingAdmissionPolicies.
//
// Expressions are compiled and evaluated by the code of the kube-apiserver, in its
// environment for stored expressions, which knows everything that any version of
// Kubernetes accepts.
//
// Invariants:
//
//   - Whatever does not compile is an error of Compile, not of each object.
//   - An error of evaluation is never a violation, and costs no violation that
//     another validation found.
//   - A Program is immutable and may be evaluated by any number of goroutines.
//     Objects are read as they are: neither copied nor modified.
//   - An evaluation ends: when its budget is spent, or with its context.
//
// A message is made for violations only, and a variable is evaluated at most once
// for all of an object's validations, messages and annotations. So an evaluation
// costs less of its budget than in the kube-apiserver, and a policy that is close
// to the limit there may pass here.
//
// It imports k8s.io/apiserver and cel-go, and nothing of this module.
package cel
