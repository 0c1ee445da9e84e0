package review

import (
	"fmt"
	"strings"
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
// TestExpansionTemplates judge Pods of workloads instead, where they do; those of
// constraints that want no resultants are judged as before.
func TestExpansionTemplates(t *testing.T) {
	expansion := func(kind, version string) string {
		return fmt.Sprintf("{apiVersion: expansion.gatekeeper.sh/v1beta1, kind: ExpansionTemplate, metadata: {name: t}, spec: {applyTo: [{groups: [apps], versions: [%s], kinds: [%s]}], templateSource: spec.template, generatedGVK: {version: v1, kind: Pod}, enforcementAction: warn}}", version, kind)
	}
	const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, labels: {owner: a}}, spec: {template: {metadata: {labels: {owner: a}}, spec: {containers: [{name: c, privileged: true}]}}}}`
	plain := template("Plain", `input.review.object.spec.containers[_].privileged; msg := sprintf("%v is privileged", [input.review.object.metadata.name])`)
	pods := constraint("Plain", "pods", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}`)
	const builtIn = "0 Deployment shop/web pods web-pod [deny] fail [Implied by Deployment web] web-pod is privileged"
	config := func(process string) string {
		return "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: [{processes: [" + process + "], excludedNamespaces: [sh*]}]}}"
	}
	for _, test := range []struct {
		name string
		more []string
		want []string
	}{
		{"of another kind", []string{pods, expansion("StatefulSet", "v1")}, []string{"allowed=false 1 1 0 0", builtIn}},
		{"of another version", []string{pods, expansion("Deployment", "v1beta1")}, []string{"allowed=false 1 1 0 0", builtIn}},
		{"of this kind", []string{pods, expansion("Deployment", "v1")}, []string{"allowed=true 1 1 0 0", "0 Deployment shop/web pods [warn] fail [Implied by t] web-pod is privileged"}},
		{"not for the constraint", []string{
			constraint("Plain", "pods", `match: {source: Original, kinds: [{apiGroups: [""], kinds: [Pod]}]}`), expansion("Deployment", "v1"),
		}, []string{"allowed=false 1 1 0 0", builtIn}},
		{"in a namespace that the Config leaves out", []string{pods, config("webhook")}, []string{"allowed=true 0 0 0 0"}},
		{"in a namespace that the Config leaves out of audits", []string{pods, config("audit")}, []string{"allowed=false 1 1 0 0", builtIn}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, append(test.more, plain)...)
			got := evaluate(t, w, Request{Spec: spec(t, "constraints: [{kind: Plain}]\nenforcementPoint: validation.gatekeeper.sh\nobject: "+deployment)})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			// Of a Deployment that goes there will be no Pods.
			got = evaluate(t, w, Request{Spec: spec(t, "constraints: [{kind: Plain}]\nenforcementPoint: validation.gatekeeper.sh\noperation: DELETE\noldObject: "+deployment)})
			if strings.Contains(strings.Join(got, " "), "privileged") {
				t.Errorf("of a DELETE: %q", got)
			}
		})
	}
}

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
