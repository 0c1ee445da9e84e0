package e2e

import (
	"fmt"
	"testing"
	"time"
)

// gatekeeperDefinition of a kind that Gatekeeper brings.
func gatekeeperDefinition(group, kind, plural, scope string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.%s}
spec:
  group: %s
  scope: %s
  names: {kind: %s, plural: %s, singular: %s, listKind: %sList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, plural, group, group, scope, kind, plural, plural[:len(plural)-1], kind)
}

// inventoryTemplate is a template without parameters.
func inventoryTemplate(name, kind, rego string) string {
	return fmt.Sprintf(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: %s}
spec:
  crd: {spec: {names: {kind: %s}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package test
      %s
`, name, kind, rego)
}

func inventoryConstraint(kind, name, match string) string {
	return fmt.Sprintf("apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: %s\nmetadata: {name: %s}\nspec: {match: {%s}}\n", kind, name, match)
}

func ingress(namespace, name, host string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %s, namespace: %s}
spec: {rules: [{host: %s, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`, name, namespace, host)
}

// TestReferentialPolicies has policies that read other objects: of a kind that the
// program names, and of one that a SyncSet names in a version that is not the preferred
// one.
func TestReferentialPolicies(t *testing.T) {
	apply(t, namespace("e2e-refs"), namespace("e2e-refs-excluded"),
		gatekeeperDefinition("syncset.gatekeeper.sh", "SyncSet", "syncsets", "Cluster"),
		gatekeeperDefinition("config.gatekeeper.sh", "Config", "configs", "Namespaced"),
		inventoryTemplate("e2euniquehost", "E2EUniqueHost", `violation[{"msg": msg}] {
        host := input.review.object.spec.rules[_].host
        other := data.inventory.namespace[ns][_]["Ingress"][name]
        other.spec.rules[_].host == host
        [ns, name] != [input.review.object.metadata.namespace, input.review.object.metadata.name]
        msg := sprintf("%v has %v", [name, host])
      }`),
		inventoryTemplate("e2escaled", "E2EScaled", `violation[{"msg": msg}] {
        hpa := data.inventory.namespace[input.review.object.metadata.namespace]["autoscaling/v1"][_][_]
        hpa.spec.scaleTargetRef.name == input.review.object.metadata.name
        msg := sprintf("%v%% of the CPU", [hpa.spec.targetCPUUtilizationPercentage])
      }`))
	remove(t, "constrainttemplate/e2euniquehost", "constrainttemplate/e2escaled", "namespace/e2e-refs", "namespace/e2e-refs-excluded",
		"crd/syncsets.syncset.gatekeeper.sh", "crd/configs.config.gatekeeper.sh")
	for _, crd := range []string{"e2euniquehost.constraints.gatekeeper.sh", "e2escaled.constraints.gatekeeper.sh", "syncsets.syncset.gatekeeper.sh", "configs.config.gatekeeper.sh"} {
		kubectl(t, "wait", "--for=create", "crd/"+crd, "--timeout=20s")
		kubectl(t, "wait", "--for=condition=Established", "crd/"+crd, "--timeout=20s")
	}
	apply(t, ingress("e2e-refs", "first", "a.example.com"), ingress("e2e-refs", "second", "b.example.com"),
		inventoryConstraint("E2EUniqueHost", "hosts", "kinds: [{apiGroups: [networking.k8s.io], kinds: [Ingress]}]"))
	found(t, 20*time.Second, "e2e-refs", "hosts")
	apply(t, ingress("e2e-refs", "second", "a.example.com"))
	found(t, 30*time.Second, "e2e-refs", "hosts", "Ingress/first", "Ingress/second")
	kubectl(t, "delete", "ingress", "-n", "e2e-refs", "second")
	found(t, 30*time.Second, "e2e-refs", "hosts")

	apply(t, configMap("e2e-refs", "web", ""), inventoryConstraint("E2EScaled", "scaled", "kinds: [{apiGroups: ['*'], kinds: [ConfigMap]}], namespaces: ['e2e-refs*']"), `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: e2e-refs}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}]}
`)
	// Nobody names a kind yet.
	eventually(t, 20*time.Second, "deferred", func() error {
		out, err := cp.Kubectl("", "get", "auditresults", "-n", "e2e-refs", "--field-selector=constraint.name=scaled,resource.name=web", "-o", `jsonpath={.items[*].result}: {.items[*].message}`)
		return expect(out, "deferred: the policy reads data.inventory, and it does not say of which kinds; name them in the template's annotation metadata.gatekeeper.sh/requires-sync-data, or in a SyncSet", err)
	})
	apply(t, "{apiVersion: syncset.gatekeeper.sh/v1alpha1, kind: SyncSet, metadata: {name: e2e}, spec: {gvks: [{group: autoscaling, version: v1, kind: HorizontalPodAutoscaler}]}}")
	eventually(t, 20*time.Second, "synced", func() error {
		out, err := cp.Kubectl("", "get", "auditresults", "-n", "e2e-refs", "--field-selector=constraint.name=scaled,resource.name=web", "-o", `jsonpath={.items[*].result}: {.items[*].violations[*].message}`)
		return expect(out, "fail: 70% of the CPU", err)
	})

	// Namespaces that a Config excludes are not audited.
	apply(t, configMap("e2e-refs-excluded", "web", ""),
		"{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: default}, spec: {match: [{processes: [audit], excludedNamespaces: [e2e-refs]}]}}")
	found(t, 20*time.Second, "e2e-refs", "scaled")
	kubectl(t, "delete", "configs.config.gatekeeper.sh", "config")
	found(t, 20*time.Second, "e2e-refs", "scaled", "ConfigMap/web")
}
