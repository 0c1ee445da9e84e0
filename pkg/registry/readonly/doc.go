// Package readonly serves a table of the index as an API resource with the verbs
// get, list and watch.
//
// The semantics are those of a resource that kube-apiserver keeps in etcd: see
// list.go for resourceVersion, limit and continue, and watch.go for watches,
// initial events and bookmarks.
//
// Invariants:
//
//   - A resource has no other verbs: the type implements neither Creater nor
//     Updater nor any kind of deleter, so garbage collection, quota and the deletion
//     of namespaces have nothing to do with it.
//   - An object that is handed out belongs to the request: the encoder writes to it.
//   - What is not ready is 503 with Retry-After, and never an empty list.
//
// It may import the index, the feed and k8s.io/apiserver.
package readonly
