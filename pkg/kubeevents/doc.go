// Package kubeevents makes Kubernetes Events of findings that open.
//
// It follows the log of changes in the index as a watch does, and holds nobody up: when
// there are more than it may write, for longer than the history window, the rest is
// counted and dropped. It is the one part of the server that writes to the cluster
// because of findings, and is off unless it is asked for.
//
// It may import the API types, the index and its rows, and client-go.
package kubeevents
