package review

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
)

var podKind = policy.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true}

// implied is an object that a controller will make of another one.
type implied struct {
	object *unstructured.Unstructured
	// by names the other one, for messages.
	by string
	// creator is who will create the object.
	creator policy.User
}

// workload says where a kind has the template of its Pods, and which service account of
// the controller manager creates these.
type workload struct {
	template   []string
	controller string
}

// workloads are the kinds that make Pods, in any version.
func workloads(gk schema.GroupKind) (workload, bool) {
	template := []string{"spec", "template"}
	w, ok := map[schema.GroupKind]workload{
		{Group: "apps", Kind: "Deployment"}:        {template, "replicaset-controller"},
		{Group: "apps", Kind: "ReplicaSet"}:        {template, "replicaset-controller"},
		{Group: "apps", Kind: "StatefulSet"}:       {template, "statefulset-controller"},
		{Group: "apps", Kind: "DaemonSet"}:         {template, "daemon-set-controller"},
		{Group: "", Kind: "ReplicationController"}: {template, "replication-controller"},
		{Group: "batch", Kind: "Job"}:              {template, "job-controller"},
		{Group: "batch", Kind: "CronJob"}:          {[]string{"spec", "jobTemplate", "spec", "template"}, "job-controller"},
	}[gk]
	return w, ok
}

// impliedPods returns the Pod that a workload makes, one for all its replicas, as it is
// in the template. obj is not modified.
func impliedPods(obj *unstructured.Unstructured) []implied {
	w, ok := workloads(obj.GroupVersionKind().GroupKind())
	if !ok {
		return nil
	}
	template, _, err := unstructured.NestedMap(obj.Object, w.template...) // a copy
	if err != nil || template == nil {
		return nil // no cluster takes such a workload
	}
	pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod"}}
	for _, part := range []string{"metadata", "spec"} {
		if content, ok := template[part].(map[string]any); ok {
			pod.Object[part] = content
		}
	}
	name := obj.GetName()
	if name == "" {
		name = obj.GetGenerateName()
	}
	pod.SetNamespace(obj.GetNamespace())
	pod.SetGenerateName(name + "-")
	pod.SetName(name + "-pod")
	owner := map[string]any{"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "name": name, "uid": string(obj.GetUID()), "controller": true}
	if metadata, ok := pod.Object["metadata"].(map[string]any); ok {
		metadata["ownerReferences"] = []any{owner}
	}
	return []implied{{
		object: pod,
		by:     fmt.Sprintf("%s %s", obj.GetKind(), name),
		creator: policy.User{
			Name:   "system:serviceaccount:kube-system:" + w.controller,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
		},
	}}
}
