// Package rbac tells what users may have been granted by RBAC, so that only that is
// asked of the authorizer: of thousands of namespaces, those in which a RoleBinding
// names the user.
//
// It follows the bindings and roles of a cluster by informers. It grants nothing: what
// it takes to be granted, the authorizer is asked about, and it may err on that side.
// It must not miss a grant. Rules with resourceNames are none: they grant to get single
// objects, and findings are shown by namespace.
//
// It may import client-go and pkg/access.
package rbac
