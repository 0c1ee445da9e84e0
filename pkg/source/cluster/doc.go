// Package cluster is the source of objects and policies over the API of a
// Kubernetes cluster.
//
// # Inventory
//
// Discovery tells the kinds: those that can be listed and watched, each in its
// preferred version. A group whose discovery fails is reported as failed and never
// taken for gone. Run follows changes: a metadata-only watch on
// CustomResourceDefinitions and APIServices says that discovery is about to change,
// and discovery, which lags behind by an unknown time, is then read at growing
// intervals.
//
// # Stream
//
// client-go's reflector decides when to list, to watch, to resume, to back off and
// to start anew. It is made for filling a store, though, and this package must not
// keep objects, so it never gets to see one: a ListerWatcher that stands between
// the reflector and the API hands each object to the handler and passes on only
// what the reflector steers by, which are resource versions. See listWatch.
//
// # Invariants
//
//   - The handler is called by one goroutine at a time, in the order of the stream,
//     and never after Stream has returned.
//   - No object is kept: neither by a list, of which one page is in memory, nor by
//     the initial events of a watch.
//   - A watch that ends because its time is up resumes where it ended.
//   - Every error that leaves the handler's picture incomplete is a Failed, and a
//     new list follows it.
//
// The package imports k8s.io/apimachinery and k8s.io/client-go.
package cluster
