package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/test/framework"
)

// hasState waits for the state of a summary, and for a text in its message.
func hasState(t testing.TB, client *versioned.Clientset, name string, state v1alpha1.SummaryState, message string) {
	t.Helper()
	eventually(t, 60*time.Second, "state of "+name, func() error {
		s, err := client.PolicyV1alpha1().ConstraintSummaries().Get(context.Background(), name, metav1.GetOptions{})
		if err == nil && (s.State != state || !strings.Contains(s.Message, message)) {
			err = fmt.Errorf("it is %s: %q", s.State, s.Message)
		}
		return err
	})
}

// inRun waits until the newest run in which a kind is has an error of it, or none.
func inRun(t testing.TB, client *versioned.Clientset, kind string, phase v1alpha1.RunPhase, message string) {
	t.Helper()
	eventually(t, 30*time.Second, "run with "+kind, func() error {
		runs, err := client.PolicyV1alpha1().AuditRuns().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		last := fmt.Errorf("%s is in none of %d runs", kind, len(runs.Items))
		for _, run := range runs.Items {
			for _, k := range run.Kinds {
				if k.Kind != kind {
					continue
				}
				last = nil
				if k.Phase != phase || !strings.Contains(k.Error, message) {
					last = fmt.Errorf("in %s it is %s: %q", run.Name, k.Phase, k.Error)
				}
			}
		}
		return last
	})
}

// foundBy is found, of another server.
func foundBy(t testing.TB, client *versioned.Clientset, namespace, constraint string, objects ...string) {
	t.Helper()
	eventually(t, 30*time.Second, "findings of "+constraint, func() error {
		list, err := client.PolicyV1alpha1().AuditResults(namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "constraint.name=" + constraint})
		if err != nil {
			return err
		}
		var got []string
		for _, r := range list.Items {
			got = append(got, r.Resource.Kind+"/"+r.Resource.Name)
		}
		return expect(strings.Join(got, " "), strings.Join(objects, " "), nil)
	})
}

// beside starts another server with the rights of a user.
func beside(t testing.TB, kubeconfig string, args ...string) *framework.Beside {
	t.Helper()
	b, err := server.StartBeside(t.TempDir(), kubeconfig, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Stop()
		if log, err := b.Log(); t.Failed() && err == nil {
			t.Log("end of the other server's log:\n" + log[max(0, len(log)-6000):])
		}
	})
	return b
}

// TestAKindWithoutRights: a server may not list Secrets. It says so, and keeps what it
// found when it could.
func TestAKindWithoutRights(t *testing.T) {
	_, kubeconfig, err := cp.User("e2e-restricted")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, template("E2ERights"), namespace("e2e-rights"), `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-restricted}
rules:
- {apiGroups: [""], resources: [namespaces, configmaps, secrets], verbs: [get, list, watch]}
- {apiGroups: [templates.gatekeeper.sh, constraints.gatekeeper.sh, admissionregistration.k8s.io, apiregistration.k8s.io, rbac.authorization.k8s.io, flowcontrol.apiserver.k8s.io], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: ["*"], verbs: [get, list, watch, update, create]}
- {apiGroups: [templates.gatekeeper.sh], resources: [constrainttemplates/finalizers], verbs: [update]}
- {apiGroups: [authentication.k8s.io, authorization.k8s.io], resources: [tokenreviews, subjectaccessreviews], verbs: [create]}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-restricted}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-restricted}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: e2e-restricted}]
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: e2e-restricted, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: e2e-restricted}]
`)
	remove(t, "constrainttemplate/e2erights", "namespace/e2e-rights", "clusterrole/e2e-restricted", "clusterrolebinding/e2e-restricted")
	apply(t, constraint("E2ERights", "rights", "Secret, ConfigMap", "e2e-rights", "owner"), configMap("e2e-rights", "c", ""),
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: e2e-rights}\n")
	b := beside(t, kubeconfig)
	foundBy(t, b.Client, "e2e-rights", "rights", "ConfigMap/c", "Secret/s")
	hasState(t, b.Client, "e2erights.rights", v1alpha1.SummaryCurrent, "")

	// A watch that is open stays open; the next list is refused.
	b.Stop()
	kubectl(t, "patch", "clusterrole", "e2e-restricted", "--type=json", "-p", `[{"op": "replace", "path": "/rules/0/resources", "value": ["namespaces", "configmaps"]}]`)
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	hasState(t, b.Client, "e2erights.rights", v1alpha1.SummaryPartial, "Secret: ")
	hasState(t, b.Client, "e2erights.rights", v1alpha1.SummaryPartial, "its findings are kept, as of 20")
	inRun(t, b.Client, "Secret", v1alpha1.RunPartial, "forbidden")
	foundBy(t, b.Client, "e2e-rights", "rights", "ConfigMap/c", "Secret/s")

	kubectl(t, "patch", "clusterrole", "e2e-restricted", "--type=json", "-p", `[{"op": "replace", "path": "/rules/0/resources", "value": ["namespaces", "configmaps", "secrets"]}]`)
	hasState(t, b.Client, "e2erights.rights", v1alpha1.SummaryCurrent, "")
}

// crdOf defines a kind in two versions. Objects are stored as v1 and read as v2.
func crdOf(plural, kind, conversion string) string {
	version := func(name string, storage bool) string {
		return fmt.Sprintf("{name: %s, served: true, storage: %v, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}", name, storage)
	}
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.e2e.example.org}
spec:
  group: e2e.example.org
  names: {plural: %s, singular: %s, kind: %s}
  scope: Namespaced
  conversion: %s
  versions: [%s, %s]
`, plural, plural, strings.ToLower(kind), kind, conversion, version("v1", true), version("v2", false))
}

const brokenConversion = `{strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/convert"}}}`

// TestABrokenConversionWebhook: the kind is named, its findings are kept, and it is
// followed again once the webhook is gone. A watch that is open stays open for minutes, so
// the server is started anew.
func TestABrokenConversionWebhook(t *testing.T) {
	apply(t, template("E2EConvert"), namespace("e2e-convert"), crdOf("gadgets", "Gadget", "{strategy: None}"))
	remove(t, "constrainttemplate/e2econvert", "namespace/e2e-convert", "crd/gadgets.e2e.example.org")
	apply(t, constraint("E2EConvert", "convert", "Gadget, Secret", "e2e-convert", "owner"),
		"apiVersion: e2e.example.org/v1\nkind: Gadget\nmetadata: {name: g, namespace: e2e-convert}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: e2e-convert}\n")
	b := beside(t, cp.AdminKubeconfig)
	foundBy(t, b.Client, "e2e-convert", "convert", "Gadget/g", "Secret/s")
	b.Stop()
	apply(t, crdOf("gadgets", "Gadget", brokenConversion))
	eventually(t, 30*time.Second, "the webhook breaks lists", func() error {
		if out, err := cp.Kubectl("", "get", "gadgets.v2.e2e.example.org", "-A"); err == nil {
			return fmt.Errorf("they can be listed: %s", out)
		}
		return nil
	})
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	hasState(t, b.Client, "e2econvert.convert", v1alpha1.SummaryPartial, "Gadget.e2e.example.org: ")
	hasState(t, b.Client, "e2econvert.convert", v1alpha1.SummaryPartial, "its findings are kept, as of 20")
	inRun(t, b.Client, "Gadget", v1alpha1.RunPartial, "its findings are kept")
	apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: u, namespace: e2e-convert}\n")
	foundBy(t, b.Client, "e2e-convert", "convert", "Gadget/g", "Secret/s", "Secret/u")

	apply(t, crdOf("gadgets", "Gadget", "{strategy: None}"))
	hasState(t, b.Client, "e2econvert.convert", v1alpha1.SummaryCurrent, "")
	kubectl(t, "label", "gadgets.v2.e2e.example.org", "g", "-n", "e2e-convert", "owner=me")
	foundBy(t, b.Client, "e2e-convert", "convert", "Secret/s", "Secret/u")
}

// TestKindsComeAndGo: a kind that is new is audited within seconds, and one that goes
// takes its findings along, though it goes while it is listed.
func TestKindsComeAndGo(t *testing.T) {
	apply(t, template("E2EComes"), namespace("e2e-comes"))
	remove(t, "constrainttemplate/e2ecomes", "namespace/e2e-comes", "crd/parcels.e2e.example.org")
	apply(t, constraint("E2EComes", "comes", "Parcel", "e2e-comes", "owner"))
	hasState(t, client, "e2ecomes.comes", v1alpha1.SummaryCurrent, "no kind that exists here is selected")
	apply(t, crdOf("parcels", "Parcel", "{strategy: None}"))
	apply(t, "apiVersion: e2e.example.org/v1\nkind: Parcel\nmetadata: {name: p, namespace: e2e-comes}\n")
	found(t, 10*time.Second, "e2e-comes", "comes", "Parcel/p")
	kubectl(t, "delete", "crd", "parcels.e2e.example.org")
	found(t, 10*time.Second, "e2e-comes", "comes")
	hasState(t, client, "e2ecomes.comes", v1alpha1.SummaryCurrent, "no kind that exists here is selected")
}

// TestAnAggregatedAPIThatIsDown is named, as what a constraint that names its group
// cannot see.
func TestAnAggregatedAPIThatIsDown(t *testing.T) {
	apply(t, template("E2EDown"), namespace("e2e-down"))
	remove(t, "constrainttemplate/e2edown", "namespace/e2e-down", "apiservice/v1.down.example.org")
	apply(t, `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: E2EDown
metadata: {name: down}
spec: {match: {kinds: [{apiGroups: [down.example.org], kinds: [Thing]}]}, parameters: {label: owner}}
`, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.down.example.org}
spec: {group: down.example.org, version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: {name: nobody, namespace: e2e-down, port: 443}}
`)
	hasState(t, client, "e2edown.down", v1alpha1.SummaryPartial, "kinds of the API group down.example.org: ")
	eventually(t, 20*time.Second, "problem of the run", func() error {
		runs, err := client.PolicyV1alpha1().AuditRuns().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		last := runs.Items[len(runs.Items)-1]
		for _, p := range last.Problems {
			if p.Subject == "API group down.example.org" {
				return nil
			}
		}
		return fmt.Errorf("%s says %+v", last.Name, last.Problems)
	})
	kubectl(t, "delete", "apiservice", "v1.down.example.org")
	hasState(t, client, "e2edown.down", v1alpha1.SummaryCurrent, "no kind that exists here is selected")
}

// TestWhatIsNotAudited: a constraint that names Events is not clean, and nobody audits
// what this server serves.
func TestWhatIsNotAudited(t *testing.T) {
	apply(t, template("E2EEvents"), namespace("e2e-events"))
	remove(t, "constrainttemplate/e2eevents", "namespace/e2e-events")
	apply(t, constraint("E2EEvents", "events", "Event", "e2e-events", "owner"),
		constraint("E2EEvents", "any", `"*"`, "e2e-events", "owner"), configMap("e2e-events", "c", ""))
	hasState(t, client, "e2eevents.events", v1alpha1.SummaryPartial, "Events are not audited")
	found(t, 20*time.Second, "e2e-events", "any", "ConfigMap/c", "Namespace/e2e-events", "ServiceAccount/default")
	hasState(t, client, "e2eevents.any", v1alpha1.SummaryCurrent, "")
}

// TestTheNextTenant gets a Namespace of the same name and sees nothing of the one before,
// though that went while the server was away.
func TestTheNextTenant(t *testing.T) {
	kubeconfig := cp.AdminKubeconfig
	apply(t, template("E2ETenant2"), namespace("e2e-tenant2"))
	remove(t, "constrainttemplate/e2etenant2", "namespace/e2e-tenant2")
	apply(t, constraint("E2ETenant2", "tenant", "ConfigMap", "e2e-tenant2", "owner"), configMap("e2e-tenant2", "secret-plan", ""))
	b := beside(t, kubeconfig)
	foundBy(t, b.Client, "e2e-tenant2", "tenant", "ConfigMap/secret-plan")
	b.Stop()
	kubectl(t, "delete", "namespace", "e2e-tenant2")
	apply(t, namespace("e2e-tenant2"))
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	foundBy(t, b.Client, "e2e-tenant2", "tenant")

	// And while it watches.
	apply(t, configMap("e2e-tenant2", "secret-plan", ""))
	foundBy(t, b.Client, "e2e-tenant2", "tenant", "ConfigMap/secret-plan")
	kubectl(t, "delete", "namespace", "e2e-tenant2")
	apply(t, namespace("e2e-tenant2"))
	foundBy(t, b.Client, "e2e-tenant2", "tenant")
}
