// Package index keeps rows in a local bbolt file, at revisions.
//
// # Basics
//
// A DB has tables of rows. Each change of a row takes a revision of its own, from
// one sequence for all tables, which never repeats and never goes back; a new
// file starts at the wall clock in microseconds, which is above anything that an
// earlier file of the same place has issued. Rows can be read as they were at any
// revision within the history window, so that the pages of one list agree, and
// the changes since such a revision can be read, so that a watch can resume.
//
// There is one writer at a time (Update); readers never wait for it. The writer
// has private state beside the rows (Tx.State), which is written in the same
// transactions and has no revisions.
//
// Rows are selected by equality on fields and labels through postings that are
// kept in memory and built when the file is opened. So are the counts of rows by
// namespace and by the values of some fields, by which a query with a Scope of a few
// namespaces looks at their rows only.
//
// # Caveats
//
// The index is a cache: a file that is damaged, that has other tables, or that
// was in use when damage was found, is set aside when it is opened, and an empty
// one takes its place (DB.Recovered). Each entry has a checksum, all of them are
// verified by Open, and what is found damaged later is never served: from then on
// every operation returns ErrDamaged.
//
// bbolt panics, and the memory map faults, on damaged pages. Every access is
// guarded and turns that into ErrDamaged.
//
// A read transaction that stays open makes the file grow, so none outlives a
// call. Rows are copied out of the file.
//
// A file never gets smaller by itself. When more than half of it is free, its content
// is copied to a new file that takes its place (shrink.go). Options.Quota bounds what is
// in use (space.go): the index keeps less history when room is short, and says so to
// callers, who decide what they do without.
//
// The package imports no Kubernetes code.
package index
