package corpus

import "time"

const (
	podsOfReplicaSet = 10
	// heartbeatPercent is how many of the objects of Cluster are a Pod again.
	heartbeatPercent = 40
)

// Cluster returns n objects as an audit that follows a cluster meets them: most
// are Pods, ten of each ReplicaSet, which differ in name, uid, resourceVersion,
// node, addresses, status and the suffix of the token's volume; in between, Pods
// come again with nothing changed but status, resourceVersion and the times of
// managedFields.
func Cluster(seed uint64, n int) (*Objects, error) {
	g := newGenerator(seed)
	documents := g.namespaceDocuments()
	var pods []document
	add := func(d document) {
		documents = append(documents, d)
		for g.chance(heartbeatPercent) && len(pods) > 0 {
			at := g.IntN(len(pods))
			pods[at] = g.heartbeat(pods[at])
			documents = append(documents, pods[at])
		}
	}
	for len(documents) < n {
		rs := g.replicaSet()
		for range podsOfReplicaSet {
			pod := g.podOf(rs)
			pods = append(pods, pod)
			add(pod)
		}
		// What comes with a ReplicaSet.
		add(g.deployment())
		add(one(g, (*generator).service, (*generator).configMap, (*generator).ingress, (*generator).role)(g))
	}
	return g.objects(documents[:n])
}

// heartbeat returns a Pod as the kubelet has written it again.
func (g *generator) heartbeat(pod document) document {
	g.now = g.now.Add(time.Duration(1+g.IntN(20)) * time.Second)
	now := g.now.Format(time.RFC3339)
	old := pod["metadata"].(document)
	metadata := with(old, document{"resourceVersion": g.resourceVersion()})
	var entries list
	for _, e := range old["managedFields"].(list) {
		entry := e.(document)
		if entry["subresource"] == "status" {
			entry = with(entry, document{"time": now})
		}
		entries = append(entries, entry)
	}
	metadata["managedFields"] = entries
	status := with(pod["status"].(document), document{})
	var conditions list
	for _, c := range status["conditions"].(list) {
		condition := c.(document)
		if condition["type"] == "Ready" || condition["type"] == "ContainersReady" {
			condition = with(condition, document{"status": one(g, "True", "False"), "lastTransitionTime": now})
		}
		conditions = append(conditions, condition)
	}
	status["conditions"] = conditions
	return with(pod, document{"metadata": metadata, "status": status})
}
