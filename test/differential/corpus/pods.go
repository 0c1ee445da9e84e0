package corpus

import (
	"fmt"
	"strings"
)

// pod returns a Pod of a ReplicaSet.
func (g *generator) pod() document { return g.podOf(g.replicaSet()) }

// replicaSet is what the Pods of a ReplicaSet have in common.
type replicaSet struct {
	app
	hash, uid  string
	labels     document
	annotation document
	spec       document // without what admission and the scheduler add
	created    string
}

func (g *generator) replicaSet() *replicaSet {
	a := g.app()
	rs := &replicaSet{app: a, hash: g.text(suffixLetters, 10), uid: g.uid(), created: g.past()}
	rs.labels = with(a.labels, document{"pod-template-hash": rs.hash})
	rs.annotation = document{"checksum/config": g.text(hexDigits, 64)}
	if g.chance(40) {
		rs.annotation["prometheus.io/scrape"] = "true"
		rs.annotation["prometheus.io/port"] = "9090"
	}
	rs.spec = g.podSpec(a)
	return rs
}

// podOf returns another Pod of a ReplicaSet.
func (g *generator) podOf(rs *replicaSet) document {
	name := fmt.Sprintf("%s-%s-%s", rs.name, rs.hash, g.text(suffixLetters, 5))
	metadata := g.metadata(name, rs.app.namespace.name)
	metadata["creationTimestamp"] = rs.created
	metadata["generateName"] = strings.TrimSuffix(name, name[len(name)-5:])
	metadata["labels"] = rs.labels
	metadata["annotations"] = rs.annotation
	metadata["ownerReferences"] = list{document{
		"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": rs.name + "-" + rs.hash, "uid": rs.uid,
		"controller": true, "blockOwnerDeletion": true,
	}}
	pod := document{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": rs.spec}
	managed(pod, "kube-controller-manager", rs.created)

	node := fmt.Sprintf("node-%02d", g.IntN(40))
	spec := with(rs.spec, document{
		"nodeName": node, "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "enableServiceLinks": true,
		"tolerations": list{
			document{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
			document{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
		},
	})
	g.mountToken(spec)
	pod["spec"] = spec
	pod["status"] = g.podStatus(spec, node, rs.created)
	return managedStatus(pod, "kubelet", rs.created)
}

// mountToken does what the ServiceAccount admission plugin does.
func (g *generator) mountToken(spec document) {
	if spec["automountServiceAccountToken"] == false {
		return
	}
	volume := "kube-api-access-" + g.text(suffixLetters, 5)
	volumes, _ := spec["volumes"].(list)
	spec["volumes"] = append(append(list{}, volumes...), document{"name": volume, "projected": document{
		"defaultMode": 420,
		"sources": list{
			document{"serviceAccountToken": document{"expirationSeconds": 3607, "path": "token"}},
			document{"configMap": document{"name": "kube-root-ca.crt", "items": list{document{"key": "ca.crt", "path": "ca.crt"}}}},
			document{"downwardAPI": document{"items": list{document{"path": "namespace", "fieldRef": document{"apiVersion": "v1", "fieldPath": "metadata.namespace"}}}}},
		},
	}})
	for _, field := range []string{"containers", "initContainers"} {
		containers, ok := spec[field].(list)
		if !ok {
			continue
		}
		mounted := make(list, len(containers))
		for i, c := range containers {
			container := c.(document)
			mounts, _ := container["volumeMounts"].(list)
			mounted[i] = with(container, document{"volumeMounts": append(append(list{}, mounts...),
				document{"name": volume, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true})})
		}
		spec[field] = mounted
	}
}

func (g *generator) podStatus(spec document, node, since string) document {
	address := fmt.Sprintf("10.%d.%d.%d", 1+g.IntN(4), g.IntN(256), 1+g.IntN(254))
	host := "192.168.10." + strings.TrimPrefix(strings.TrimPrefix(node, "node-"), "0")
	var conditions, statuses list
	for _, kind := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		conditions = append(conditions, document{"type": kind, "status": "True", "lastProbeTime": nil, "lastTransitionTime": since})
	}
	for _, c := range spec["containers"].(list) {
		container := c.(document)
		statuses = append(statuses, document{
			"name": container["name"], "image": container["image"],
			"imageID":     fmt.Sprintf("%s@sha256:%s", strings.SplitN(container["image"].(string), "@", 2)[0], g.text(hexDigits, 64)),
			"containerID": "containerd://" + g.text(hexDigits, 64),
			"ready":       true, "started": true, "restartCount": g.IntN(4),
			"lastState": document{}, "state": document{"running": document{"startedAt": since}},
		})
	}
	return document{
		"phase": "Running", "qosClass": "Burstable", "startTime": since,
		"conditions": conditions, "containerStatuses": statuses,
		"hostIP": host, "hostIPs": list{document{"ip": host}},
		"podIP": address, "podIPs": list{document{"ip": address}},
	}
}

// podSpec is what a template of Pods says, with the defaults of the API.
func (g *generator) podSpec(a app) document {
	spec := document{
		"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
		"terminationGracePeriodSeconds": one(g, 10, 30, 30, 60), "securityContext": g.podSecurityContext(),
		"volumes": list{
			document{"name": "config", "configMap": document{"name": a.name, "defaultMode": 420}},
			document{"name": "tmp", "emptyDir": document{}},
		},
	}
	account := one(g, "default", "default", a.name, a.name, "node-exporter")
	spec["serviceAccountName"], spec["serviceAccount"] = account, account
	if g.chance(30) {
		spec["automountServiceAccountToken"] = false
	}
	for _, field := range []string{"hostPID", "hostIPC", "hostNetwork"} {
		if g.chance(3) {
			spec[field] = true
		}
	}
	if g.chance(5) {
		spec["volumes"] = append(spec["volumes"].(list), document{"name": "host", "hostPath": document{"path": "/var/log", "type": ""}})
	}
	if g.chance(30) {
		spec["affinity"] = document{"podAntiAffinity": document{"preferredDuringSchedulingIgnoredDuringExecution": list{document{
			"weight": 100, "podAffinityTerm": document{
				"topologyKey":   "kubernetes.io/hostname",
				"labelSelector": document{"matchLabels": document{"app.kubernetes.io/name": a.name}},
			},
		}}}}
	}
	var containers list
	for i := range 1 + g.IntN(4) {
		name := a.name
		if i > 0 {
			name = []string{"metrics", "istio-proxy", "log-shipper"}[i-1]
		}
		containers = append(containers, g.container(name, i))
	}
	spec["containers"] = containers
	if g.chance(25) {
		container := g.container("migrate", 0)
		delete(container, "readinessProbe")
		delete(container, "livenessProbe")
		spec["initContainers"] = list{container}
	}
	return spec
}

func (g *generator) podSecurityContext() document {
	context := document{}
	if g.chance(40) {
		context["runAsNonRoot"] = true
	}
	if g.chance(40) {
		context["runAsUser"] = one(g, 0, 65, 1000, 10001, 65532)
	}
	if g.chance(40) {
		context["fsGroup"] = one(g, 100, 1000, 65532)
	}
	if g.chance(50) {
		context["seccompProfile"] = document{"type": "RuntimeDefault"}
	}
	return context
}
