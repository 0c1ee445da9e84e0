package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// grants of one user.
type grants struct {
	everywhere []rbacv1.PolicyRule
	namespaced map[string][]rbacv1.PolicyRule
	namespaces []string // of namespaced, sorted
	digest     string
}

// May implements access.Grants.
func (g *grants) May(namespace, group, resource string) bool {
	grants := func(rule rbacv1.PolicyRule) bool { return covers(&rule, group, resource) }
	return slices.ContainsFunc(g.everywhere, grants) || slices.ContainsFunc(g.namespaced[namespace], grants)
}

// Namespaces implements access.Grants.
func (g *grants) Namespaces() []string { return g.namespaces }

// Digest implements access.Grants.
func (g *grants) Digest() string { return g.digest }

// covers tells whether a rule is about a resource, as RBAC's authorizer does: * stands
// for everything, and */subresource for that of any resource.
func covers(rule *rbacv1.PolicyRule, group, resource string) bool {
	if !hasAny(rule.APIGroups, group) {
		return false
	}
	if hasAny(rule.Resources, resource) {
		return true
	}
	_, subresource, ok := strings.Cut(resource, "/")
	return ok && slices.Contains(rule.Resources, "*/"+subresource)
}

// hasAny tells whether a list has a value or *.
func hasAny(list []string, value string) bool {
	return slices.Contains(list, value) || slices.Contains(list, "*")
}
