// Package peer drives Gatekeeper's engine as Gatekeeper's audit does: each object
// goes through a file of its page cache, gets its Namespace and the source
// Original, and is reviewed for the enforcement point of audits, one after the
// other. ExpansionTemplates are applied in the same way.
//
// The package is a module of its own, and its go.mod has the versions with which
// Gatekeeper v3.23.1 is released. It is used in two ways:
//
//   - imported by test/differential, with the versions of Kubernetes and OPA of this
//     project, which go's version selection makes of both go.mod files. All but the
//     CEL driver compiles with these.
//   - as a process, peer/process, built in this module: the release as it is, with
//     its own versions, and the CEL driver first, as Gatekeeper registers it.
package peer
