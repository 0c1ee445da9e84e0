// Package feed tells what changed in an index after a revision.
//
// Readers pull. A reader that is slow costs nobody anything: it reads further
// behind, first from a ring of recent changes in memory and then from the index,
// until it falls behind the history window and gets index.ErrCompacted.
//
// Changes that a feed hands out are shared between readers and must not be
// modified.
//
// The package imports only the index's types.
package feed
