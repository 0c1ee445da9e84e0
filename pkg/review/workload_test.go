package review

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWorkloads are judged with their Pods, once for all replicas, as the controller
// makes them.
func TestWorkloads(t *testing.T) {
	const pod = "template: {metadata: {labels: {owner: me}}, spec: {containers: [{name: c, privileged: true}]}}"
	for _, test := range []struct{ apiVersion, kind, spec, controller string }{
		{"apps/v1", "Deployment", "replicas: 3, " + pod, "replicaset-controller"},
		{"apps/v1", "ReplicaSet", pod, "replicaset-controller"},
		{"apps/v1", "StatefulSet", pod, "statefulset-controller"},
		{"apps/v1", "DaemonSet", pod, "daemon-set-controller"},
		{"v1", "ReplicationController", pod, "replication-controller"},
		{"batch/v1", "Job", pod, "job-controller"},
		{"batch/v1", "CronJob", "jobTemplate: {spec: {" + pod + "}}", "job-controller"},
	} {
		object := fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: web, namespace: shop}, spec: {%s}}", test.apiVersion, test.kind, test.spec)
		got := evaluate(t, newWorld(t), Request{Spec: spec(t, "enforcementPoint: validation.gatekeeper.sh\nobject: "+object)})
		want := []string{
			"allowed=false 3 2 0 0",
			fmt.Sprintf("0 %s shop/web owner [warn] fail no owner", test.kind),
			fmt.Sprintf("0 %s shop/web owner web-pod [warn] pass", test.kind),
			fmt.Sprintf("0 %[1]s shop/web privileged web-pod [deny] fail [Implied by %[1]s web] c is privileged in web-pod of gold by system:serviceaccount:kube-system:%[2]s", test.kind, test.controller),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.kind, diff)
		}
		// When it goes, no Pods are made.
		got = evaluate(t, newWorld(t), Request{Spec: spec(t, "operation: DELETE\nenforcementPoint: validation.gatekeeper.sh\noldObject: "+object)})
		if len(got) != 2 {
			t.Errorf("%s, deleted: %v", test.kind, got)
		}
	}
}

// TestImpliedPod is what the template says, with name, namespace and owner.
func TestImpliedPod(t *testing.T) {
	deployment := parse(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {generateName: web-, namespace: shop, uid: u}, spec: {template: {metadata: {namespace: x, annotations: {a: b}}, spec: {hostNetwork: true}}}}`)
	before := deployment.DeepCopy()
	pods := impliedPods(deployment)
	if len(pods) != 1 {
		t.Fatalf("%d Pods", len(pods))
	}
	want := parse(t, `{apiVersion: v1, kind: Pod, spec: {hostNetwork: true}, metadata: {name: web--pod, generateName: web--, namespace: shop, annotations: {a: b},
		ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web-, uid: u, controller: true}]}}`)
	if diff := cmp.Diff(want.Object, pods[0].object.Object); diff != "" {
		t.Errorf("Pod (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Object, deployment.Object); diff != "" {
		t.Errorf("the Deployment has changed (-before +after):\n%s", diff)
	}
	for _, spec := range []string{"{}", "{template: 7}", "{template: null}"} {
		if pods := impliedPods(parse(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: "+spec+"}")); pods != nil {
			t.Errorf("%s: %v", spec, pods)
		}
	}
}
