// Package differential compares this project's engine with Gatekeeper v3.23.1.
//
// It is a module of its own, so that nothing of Gatekeeper gets into the product's
// go.mod. There are three modules:
//
//   - the product, with its versions of Kubernetes (v0.37) and OPA (v1.22).
//   - this one, which has both engines in one process. Version selection gives
//     Gatekeeper's client, Rego driver and target the product's versions, so that a
//     benchmark compares engines and not versions of OPA. Gatekeeper's CEL driver
//     (pkg/drivers/k8scel) does not compile with Kubernetes v0.37: its
//     transform/request.go uses admission.VersionedAttributes as it was before.
//   - peer, with the versions of Gatekeeper's release (Kubernetes v0.36.2, OPA
//     v1.17.1). Its package is imported here, and its command peer/process is built
//     by the tests and is Gatekeeper's engine as it is released, with CEL.
//
// Nothing is replaced or excluded, and no code of Gatekeeper is changed.
//
// The tests ask the same questions of both engines; TestCases asks the process, and
// TestMatch, which is random, the package. What may differ is in one table, with
// reasons: see differences_test.go.
package differential
