// Package source defines where an audit gets its objects and policies from. The
// implementations are the packages below it: cluster, over the API of a
// Kubernetes cluster, and directory, over a folder of manifests.
//
// A source streams: an object is handed to the handler and forgotten. Its memory
// does not grow with the number of objects.
//
// The package imports only k8s.io/apimachinery.
package source
