package corpus

import "fmt"

func (g *generator) deployment() document {
	a := g.app()
	metadata := g.metadata(a.name, a.namespace.name)
	metadata["labels"] = a.labels
	metadata["generation"] = 1 + g.IntN(20)
	metadata["annotations"] = document{"deployment.kubernetes.io/revision": fmt.Sprint(1 + g.IntN(20))}
	selector := document{"app.kubernetes.io/name": a.name}
	replicas := one(g, 0, 1, 1, 2, 2, 3, 5, 12, 40)
	at := g.past()
	d := managed(document{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
		"spec": document{
			"replicas": replicas, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
			"selector": document{"matchLabels": selector},
			"strategy": document{"type": "RollingUpdate", "rollingUpdate": document{"maxSurge": "25%", "maxUnavailable": "25%"}},
			"template": document{"metadata": document{"creationTimestamp": nil, "labels": a.labels}, "spec": g.podSpec(a)},
		},
	}, "helm", at)
	d["status"] = document{
		"observedGeneration": metadata["generation"], "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
		"conditions": list{
			document{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "Deployment has minimum availability.", "lastTransitionTime": at, "lastUpdateTime": at},
			document{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "ReplicaSet has successfully progressed.", "lastTransitionTime": at, "lastUpdateTime": at},
		},
	}
	return managedStatus(d, "kube-controller-manager", at)
}

func (g *generator) service() document {
	a := g.app()
	metadata := g.metadata(a.name, a.namespace.name)
	metadata["labels"] = a.labels
	address := fmt.Sprintf("10.96.%d.%d", g.IntN(256), g.IntN(256))
	spec := document{
		"type": one(g, "ClusterIP", "ClusterIP", "ClusterIP", "NodePort", "LoadBalancer"), "sessionAffinity": "None",
		"clusterIP": address, "clusterIPs": list{address}, "ipFamilies": list{"IPv4"}, "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
		"selector": document{"app.kubernetes.io/name": one(g, a.name, "shared")},
		"ports":    list{document{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}},
	}
	if g.chance(10) {
		spec["externalIPs"] = list{fmt.Sprintf("192.0.2.%d", g.IntN(256))}
	}
	if spec["type"] == "LoadBalancer" && g.chance(50) {
		spec["loadBalancerSourceRanges"] = list{"198.51.100.0/24"}
	}
	return managed(document{
		"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec,
		"status": document{"loadBalancer": document{}},
	}, "helm", g.past())
}

func (g *generator) ingress() document {
	a := g.app()
	metadata := g.metadata(a.name, a.namespace.name)
	metadata["labels"] = a.labels
	if g.chance(60) {
		metadata["annotations"] = document{"nginx.ingress.kubernetes.io/ssl-redirect": one(g, "true", "true", "false")}
	}
	var rules, hosts list
	for range 1 + g.IntN(3) {
		host := one(g, a.name, "shop", "status", "www") + one(g, ".example.com", ".apps.example.com")
		hosts = append(hosts, host)
		rule := document{"http": document{"paths": list{document{
			"path": "/", "pathType": "Prefix",
			"backend": document{"service": document{"name": a.name, "port": document{"name": "http"}}},
		}}}}
		if g.chance(95) {
			rule["host"] = host
		}
		rules = append(rules, rule)
	}
	spec := document{"ingressClassName": "nginx", "rules": rules}
	switch g.IntN(3) {
	case 0:
		spec["tls"] = list{document{"secretName": a.name, "hosts": hosts}}
	case 1:
		spec["tls"] = list{document{"secretName": "wildcard", "hosts": list{"*.example.com"}}}
	}
	return managed(document{
		"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec,
		"status": document{"loadBalancer": document{"ingress": list{document{"ip": "203.0.113.10"}}}},
	}, "argocd", g.past())
}

func (g *generator) configMap() document {
	a := g.app()
	metadata := g.metadata(a.name, a.namespace.name)
	metadata["labels"] = a.labels
	data := document{}
	for i := range 1 + g.IntN(6) {
		data[fmt.Sprintf("file-%d.yaml", i)] = fmt.Sprintf("listen: :%d\nsecret: %s\nlevel: %s\n", 8000+g.IntN(1000), g.text(hexDigits, 40+g.IntN(400)), one(g, "info", "debug"))
	}
	return managed(document{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}, "helm", g.past())
}
