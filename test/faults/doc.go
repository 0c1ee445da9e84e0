// Package faults tests that the audit converges whatever fails on the way.
//
// Between the server and a real kube-apiserver stands a proxy that answers lists and
// watches with errors, cuts them off, stalls them or cuts bodies short, as a seed says.
// Meanwhile objects and policies change, and the server is killed, loses its data or has
// its index damaged. In all that time each finding that it serves must have been true at
// some time. When the faults end, its findings become what the objects and policies say,
// and what a fresh audit finds.
//
//	make faults SEEDS=200
package faults
