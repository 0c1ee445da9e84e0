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
//     What is shared between requests, a stored row, is wrapped in types that only
//     Codec encodes (stream.go, event.go).
//   - As JSON of the stored version, lists and events are spliced from the stored text
//     (codec.go). Every other representation takes the ordinary way, by objects and
//     the plain encoder; what both write is the same.
//   - A list is in memory one page of rows at a time, and no transaction of the index
//     is open while a client reads. Tables, metadata, YAML and pretty JSON are whole in
//     memory: k8s.io/apiserver makes them from objects before an encoder sees them.
//   - What is not ready is 503 with Retry-After, and never an empty list.
//
// It may import the index, the feed and k8s.io/apiserver.
package readonly
