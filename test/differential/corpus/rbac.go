package corpus

import "fmt"

const rbac = "rbac.authorization.k8s.io"

func (g *generator) rules() list {
	var rules list
	for range 1 + g.IntN(5) {
		rules = append(rules, document{
			"apiGroups": one(g, list{""}, list{"apps"}, list{"", "batch"}, list{"*"}),
			"resources": one(g, list{"pods", "pods/log"}, list{"secrets"}, list{"deployments", "replicasets"}, list{"pods/exec"}, list{"roles", "rolebindings"}, list{"*"}),
			"verbs":     one(g, list{"get", "list", "watch"}, list{"get"}, list{"create", "patch"}, list{"bind", "escalate"}, list{"*"}),
		})
	}
	return rules
}

func (g *generator) role() document {
	a := g.app()
	metadata := g.metadata(a.name, a.namespace.name)
	metadata["labels"] = a.labels
	return managed(document{"apiVersion": rbac + "/v1", "kind": "Role", "metadata": metadata, "rules": g.rules()}, "helm", g.past())
}

func (g *generator) clusterRole() document {
	name := g.app().name
	if g.chance(40) {
		name = fmt.Sprintf("system:%s:%s", one(g, "controller", "node", "aggregate"), name)
	}
	metadata := g.metadata(name, "")
	if g.chance(30) {
		metadata["labels"] = document{rbac + "/aggregate-to-view": "true"}
	}
	return managed(document{"apiVersion": rbac + "/v1", "kind": "ClusterRole", "metadata": metadata, "rules": g.rules()}, "kubectl-create", g.past())
}

func (g *generator) roleBinding() document {
	a := g.app()
	metadata := g.metadata(a.name, a.namespace.name)
	metadata["labels"] = a.labels
	return managed(document{
		"apiVersion": rbac + "/v1", "kind": "RoleBinding", "metadata": metadata,
		"roleRef":  document{"apiGroup": rbac, "kind": "Role", "name": a.name},
		"subjects": list{document{"kind": "ServiceAccount", "name": a.name, "namespace": a.namespace.name}},
	}, "helm", g.past())
}
