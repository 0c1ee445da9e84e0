// Package source defines where an audit gets its objects and policies from. The
// implementations are the packages below it: cluster, over the API of a
// Kubernetes cluster, and directory, over a folder of manifests.
//
// A source streams: an object is handed to the handler, which owns it from then on.
// The cluster source keeps no objects, so its memory does not grow with their
// number. The directory source keeps the text of the manifests, because what a file
// said last must survive the moment in which it is half-written.
//
// The package imports only k8s.io/apimachinery.
package source
