// Package version tells the version of the program.
package version

// version is set by the linker. It is not that of component-base, from which
// k8s.io/apiserver derives which Kubernetes version it emulates.
var version = "v0.1.0-dev"

// Get returns the version.
func Get() string { return version }
