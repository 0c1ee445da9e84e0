// Package access decides which findings a user may see.
//
// Whoever may get the object of a finding, by its API group, resource and
// namespace, sees the finding. Whoever may get auditresults/unscoped sees all of
// them: in a namespace, or, cluster-wide, everywhere. An AuditSummary counts findings on
// one kind of objects in one namespace, so the same decides about it: whoever sees it may
// see all that it counts. The same holds for the changes of a finding. Other tables are not
// narrowed.
//
// A View is what one request may see. It reads from the index only the groups of
// findings that its user may see, so that limits count visible rows, and asks for
// decisions only as far as the request gets: first whether all is visible, then which
// kinds are visible everywhere, then namespace by namespace in the order of the list.
//
// Invariants:
//
//   - The server's authorizer decides. A Narrower can only keep questions from being
//     asked, and what is not asked about is hidden.
//   - What cannot be decided is an error of the request, never a shorter list. A kind
//     whose resource is not known is hidden.
//   - Answers are used for as long as Config.TTL. When one changes, the watches of its
//     user end with ErrChanged and lists under way cannot be continued. A client can
//     resume a watch only from a revision since which no answer has changed.
//
// It may import the index, its rows, and k8s.io/apiserver.
package access
