// Package audit keeps the findings of the index in step with a source.
//
// Data flows one way. Streams of the source (stream.go) hand objects over as
// operations (operation.go); workers prepare them, that is evaluate them, in
// parallel; one writer (writer.go) applies them to the index in the order in
// which they were handed over. The planner (planner.go) decides which kinds are
// streamed and under which constraints, from the kinds of the source and the
// policies among its objects.
//
// Invariants:
//
//   - Objects are not kept. Of each object the index has a record (record.go):
//     uid, resourceVersion, a digest of what constraints can read of it, the
//     constraints it was judged by and the findings it has. Namespaces, templates and constraints are the exception: they are
//     what objects are judged with.
//   - An object whose record has its uid, and its resourceVersion or the digest of
//     what constraints can read of it, is judged only by constraints that the record
//     does not cover, also after a restart. If there are none, nothing is written.
//   - A sweep (sweeper.go) compares and evaluates nothing; what was missed is mended by
//     the kind's stream, which lists again.
//   - Rows of an object go when the object is deleted, when a complete list of its
//     kind lacks it, when its kind or its namespace goes, or when the constraint
//     goes. A kind that cannot be listed keeps its rows.
//   - A record and the rows it speaks of are written in one transaction, by the
//     one writer. An operation that was prepared from a record that has changed
//     since is prepared again.
//   - All rows of findings are written through the log of changes (changes.go), so that
//     what opens and is resolved is logged in the same transaction.
//   - What there is no room for is named, and looked at again when there is (room.go).
//   - What could not be looked at is in the AuditRun and the ConstraintSummaries
//     concerned.
//
// It may import the index, the rows, the policy engine and the source interface,
// and no serving code.
package audit
