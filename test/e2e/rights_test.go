package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/test/framework"
)

// right is a rule of the server's roles, or a role that it is bound to, and what is
// seen without it.
type right struct {
	// rule as docs/security.md has it: verbs and resources.
	rule string
	// lost returns nil once it is seen that the rule is not there.
	lost func(t *testing.T, r *rightsTrial) error
}

// ownRights are the rules of the ClusterRole policy-apiserver, in their order.
var ownRights = []right{
	{"list, watch constrainttemplates.templates.gatekeeper.sh", unavailable("ConstraintTemplate.templates.gatekeeper.sh objects cannot be listed")},
	{"list, watch *.constraints.gatekeeper.sh", problem("E2ERight.constraints.gatekeeper.sh")},
	{"list, watch configs.config.gatekeeper.sh", problem("Config.config.gatekeeper.sh")},
	{"list, watch syncsets.syncset.gatekeeper.sh", problem("SyncSet.syncset.gatekeeper.sh")},
	{"list, watch expansiontemplate.expansion.gatekeeper.sh", problem("ExpansionTemplate.expansion.gatekeeper.sh")},
	{"list, watch validatingadmissionpolicies, validatingadmissionpolicybindings.admissionregistration.k8s.io", problem("ValidatingAdmissionPolicy.admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io")},
	{"list, watch namespaces", problem("Namespace")},
	{"list, watch customresourcedefinitions.apiextensions.k8s.io", logged("customresourcedefinitions.apiextensions.k8s.io is forbidden")},
	{"list, watch apiservices.apiregistration.k8s.io", logged("apiservices.apiregistration.k8s.io is forbidden")},
	{"get, create, update customresourcedefinitions.apiextensions.k8s.io", problem("ConstraintTemplate e2eright")},
	{"list, watch roles, rolebindings, clusterroles, clusterrolebindings.rbac.authorization.k8s.io", scopedUnavailable},
	{"list, watch flowschemas, prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", notReady("priority-and-fairness-config-consumer")},
	{"patch flowschemas/status.flowcontrol.apiserver.k8s.io", danglingUnreported},
}

// otherRights are what else the server has.
var otherRights = []right{
	{"get, list, watch *.*", kindFailed("Service")},
	{"system:auth-delegator: create tokenreviews.authentication.k8s.io", tokenRefused},
	{"system:auth-delegator: create subjectaccessreviews.authorization.k8s.io", authorizationFails},
	{"extension-apiserver-authentication-reader in kube-system: get, list, watch configmaps", doesNotStart("extension-apiserver-authentication")},
}

// rightsTrial is a server with all rights but one.
type rightsTrial struct {
	*framework.Instance
	// token of its service account.
	token string
}

func (r *rightsTrial) client(t *testing.T) *versioned.Clientset {
	client, err := versioned.NewForConfig(r.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// problem is seen in the newest AuditRun that has ended, which is Partial.
func problem(subjects ...string) func(*testing.T, *rightsTrial) error {
	return func(t *testing.T, r *rightsTrial) error {
		runs, err := r.client(t).PolicyV1alpha1().AuditRuns().List(t.Context(), metav1.ListOptions{FieldSelector: "phase=Partial"})
		if err != nil {
			return err
		}
		for _, run := range runs.Items {
			var got []string
			for _, problem := range run.Problems {
				if strings.Contains(problem.Message, "forbidden") {
					got = append(got, problem.Subject)
				}
			}
			if slices.Equal(got, subjects) {
				return nil
			}
			err = fmt.Errorf("problems: %+v", run.Problems)
		}
		return fmt.Errorf("%d runs are Partial: %w", len(runs.Items), err)
	}
}

// kindFailed is seen in an AuditRun, which is Partial.
func kindFailed(kind string) func(*testing.T, *rightsTrial) error {
	return func(t *testing.T, r *rightsTrial) error {
		runs, err := r.client(t).PolicyV1alpha1().AuditRuns().List(t.Context(), metav1.ListOptions{FieldSelector: "phase=Partial"})
		if err != nil {
			return err
		}
		for _, run := range runs.Items {
			for _, k := range run.Kinds {
				if k.Kind == kind && strings.Contains(k.Error, "forbidden") {
					return nil
				}
			}
		}
		return fmt.Errorf("runs: %+v", runs.Items)
	}
}

// unavailable is seen by who asks for findings.
func unavailable(why string) func(*testing.T, *rightsTrial) error {
	return func(t *testing.T, r *rightsTrial) error {
		_, status, answer := call(t, r.Config, http.MethodGet, apiPath+"/auditresults", jsonType, "")
		if status != http.StatusServiceUnavailable || !strings.Contains(answer, why) {
			return fmt.Errorf("%d: %s", status, answer)
		}
		return nil
	}
}

func logged(text string) func(*testing.T, *rightsTrial) error {
	return func(_ *testing.T, r *rightsTrial) error {
		if !strings.Contains(r.Log(), text) {
			return fmt.Errorf("the log lacks %q", text)
		}
		return nil
	}
}

// notReady is seen at /readyz?verbose.
func notReady(check string) func(*testing.T, *rightsTrial) error {
	return func(t *testing.T, r *rightsTrial) error {
		_, status, answer := call(t, r.Config, http.MethodGet, "/readyz?verbose", "*/*", "")
		if status == http.StatusOK || !strings.Contains(answer, "[-]") || !strings.Contains(answer, check) {
			return fmt.Errorf("%d: %s", status, answer)
		}
		return nil
	}
}

// scopedUnavailable: whoever sees only some findings sees none.
func scopedUnavailable(t *testing.T, r *rightsTrial) error {
	config, _, err := cp.User("rights-alice")
	if err != nil {
		return err
	}
	config.Host, config.CAFile, config.Insecure = r.Config.Host, "", true
	_, status, answer := call(t, config, http.MethodGet, apiPath+"/auditresults", jsonType, "")
	if status != http.StatusServiceUnavailable {
		return fmt.Errorf("%d: %s", status, answer)
	}
	return nil
}

// danglingUnreported has a FlowSchema that names no priority level.
func danglingUnreported(_ *testing.T, r *rightsTrial) error {
	_, err := cp.Kubectl(`{"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "e2e-right", "annotations": {"at": "`+fmt.Sprint(time.Now().UnixNano())+`"}},
		"spec": {"priorityLevelConfiguration": {"name": "e2e-right"}}}`, "replace", "--force", "-f", "-")
	if err == nil {
		err = logged("forbidden")(nil, r)
	}
	return err
}

// withToken is somebody who authenticates with a token.
func withToken(r *rightsTrial) *rest.Config {
	config := rest.AnonymousClientConfig(r.Config)
	config.BearerToken = r.token
	return config
}

func tokenRefused(t *testing.T, r *rightsTrial) error {
	_, status, answer := call(t, withToken(r), http.MethodGet, apiPath, jsonType, "")
	if status != http.StatusUnauthorized {
		return fmt.Errorf("%d: %s", status, answer)
	}
	return nil
}

func authorizationFails(t *testing.T, r *rightsTrial) error {
	_, status, answer := call(t, withToken(r), http.MethodGet, apiPath+"/auditresults", jsonType, "")
	if status != http.StatusInternalServerError && status != http.StatusForbidden || !strings.Contains(r.Log(), "subjectaccessreviews") {
		return fmt.Errorf("%d: %s", status, answer)
	}
	return nil
}

func doesNotStart(text string) func(*testing.T, *rightsTrial) error {
	return func(t *testing.T, r *rightsTrial) error {
		if !r.Ended() {
			return fmt.Errorf("it runs")
		}
		return logged(text)(t, r)
	}
}

// ruleText writes a rule as docs/security.md does.
func ruleText(rule rbacv1.PolicyRule) string {
	text := strings.Join(rule.Verbs, ", ") + " " + strings.Join(rule.Resources, ", ")
	if rule.APIGroups[0] != "" {
		text += "." + rule.APIGroups[0]
	}
	return text
}

func readRole(t *testing.T, file string) *rbacv1.ClusterRole {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(framework.DeployDir(), "base", file))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(data, &role); err != nil {
		t.Fatal(err)
	}
	return &role
}

// startTrial starts a server with a service account of its own that has the rules of
// policy-apiserver but one, what is audited, and the other rights but one.
func startTrial(t *testing.T, name string, rules []rbacv1.PolicyRule, without string) *rightsTrial {
	t.Helper()
	ctx := context.Background()
	admin, err := kubernetes.NewForConfig(cp.Admin)
	if err != nil {
		t.Fatal(err)
	}
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "policy-system", Name: name}}
	role := func(suffix string, rules ...rbacv1.PolicyRule) {
		name := name + suffix
		meta := metav1.ObjectMeta{Name: name}
		if _, err := admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}
		if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		remove(t, "clusterrole/"+name, "clusterrolebinding/"+name)
	}
	kubectl(t, "create", "serviceaccount", name, "-n", "policy-system")
	remove(t, "serviceaccount/"+name, "-n", "policy-system")
	// In the place of everything, so that the server's own rules are not in vain.
	if !strings.Contains(without, "*.*") {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch"}})
	}
	role("", rules...)
	for _, delegated := range []struct{ group, resource string }{{"authentication.k8s.io", "tokenreviews"}, {"authorization.k8s.io", "subjectaccessreviews"}} {
		if !strings.Contains(without, delegated.resource) {
			role("-"+delegated.resource, rbacv1.PolicyRule{APIGroups: []string{delegated.group}, Resources: []string{delegated.resource}, Verbs: []string{"create"}})
		}
	}
	if !strings.Contains(without, "authentication-reader") {
		kubectl(t, "create", "rolebinding", name, "-n", "kube-system", "--role=extension-apiserver-authentication-reader", "--serviceaccount=policy-system:"+name)
		remove(t, "rolebinding/"+name, "-n", "kube-system")
	}
	kubeconfig, err := cp.ServiceAccount(name)
	if err != nil {
		t.Fatal(err)
	}
	instance, err := server.StartInstance(t.TempDir(), kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(instance.Stop)
	return &rightsTrial{Instance: instance, token: kubectl(t, "create", "token", name, "-n", "policy-system")}
}

// listening waits until a server listens, or has ended.
func listening(t *testing.T, trial *rightsTrial) {
	t.Helper()
	if err := trial.WaitReady("/livez/ping", 90*time.Second); err != nil && !trial.Ended() {
		t.Fatal(err)
	}
}

// TestEachRight starts the server without each of its rules in turn. What is seen is in
// the table above and in docs/security.md.
func TestEachRight(t *testing.T) {
	role := readRole(t, "server-clusterrole.yaml")
	docs, err := os.ReadFile(filepath.Join(framework.DeployDir(), "..", "..", "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, right := range slices.Concat(ownRights, otherRights) {
		if !strings.Contains(string(docs), "| `"+right.rule+"` |") {
			t.Errorf("docs/security.md lacks %q", right.rule)
		}
	}
	var want, got []string
	for _, right := range ownRights {
		want = append(want, right.rule)
	}
	for _, rule := range role.Rules {
		got = append(got, ruleText(rule))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the rules are\n%q\nand the table has\n%q", got, want)
	}
	if audited := readRole(t, "auditor-clusterrole.yaml").Rules; len(audited) != 1 || ruleText(audited[0]) != otherRights[0].rule {
		t.Fatalf("what is audited: %v", audited)
	}
	apply(t, template("E2ERight"), namespace("e2e-right"),
		gatekeeperDefinition("config.gatekeeper.sh", "Config", "configs", "Namespaced"),
		gatekeeperDefinition("syncset.gatekeeper.sh", "SyncSet", "syncsets", "Cluster"),
		gatekeeperDefinition("expansion.gatekeeper.sh", "ExpansionTemplate", "expansiontemplate", "Cluster"))
	remove(t, "constrainttemplate/e2eright", "namespace/e2e-right", "flowschema/e2e-right",
		"crd/configs.config.gatekeeper.sh", "crd/syncsets.syncset.gatekeeper.sh", "crd/expansiontemplate.expansion.gatekeeper.sh")
	apply(t, constraint("E2ERight", "right", "Service", "e2e-right", "owner"),
		"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: e2e-right}\nspec: {ports: [{port: 80}]}\n")
	found(t, 20*time.Second, "e2e-right", "right", "Service/a")
	_, _, err = cp.User("rights-alice")
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, "create", "clusterrolebinding", "rights-alice", "--clusterrole=policy-scoped-viewer", "--user=rights-alice")
	remove(t, "clusterrolebinding/rights-alice")

	t.Run("with all", func(t *testing.T) {
		trial := startTrial(t, "rights-all", slices.Clone(role.Rules), "none")
		if err := trial.WaitReady("/readyz", 90*time.Second); err != nil {
			t.Fatal(err)
		}
		eventually(t, 60*time.Second, "the findings", func() error {
			list, err := trial.client(t).PolicyV1alpha1().AuditResults("e2e-right").List(t.Context(), metav1.ListOptions{})
			if err == nil && (len(list.Items) != 1 || list.Items[0].Resource.Name != "a") {
				err = fmt.Errorf("findings: %+v", list.Items)
			}
			return err
		})
		if _, status, answer := call(t, withToken(trial), http.MethodGet, apiPath, jsonType, ""); status != http.StatusOK {
			t.Errorf("with a token: %d: %s", status, answer)
		}
		for line := range strings.Lines(trial.Log()) {
			if strings.Contains(line, "forbidden") {
				t.Error(line)
			}
		}
	})
	for i, right := range ownRights {
		t.Run(right.rule, func(t *testing.T) {
			trial := startTrial(t, fmt.Sprintf("rights-own-%d", i), slices.Delete(slices.Clone(role.Rules), i, i+1), right.rule)
			listening(t, trial)
			eventually(t, 90*time.Second, "it is seen", func() error { return right.lost(t, trial) })
		})
	}
	for i, right := range otherRights {
		t.Run(right.rule, func(t *testing.T) {
			trial := startTrial(t, fmt.Sprintf("rights-other-%d", i), slices.Clone(role.Rules), right.rule)
			listening(t, trial)
			eventually(t, 90*time.Second, "it is seen", func() error { return right.lost(t, trial) })
		})
	}
}

// TestOwnerReferences has a kube-apiserver that checks who may set owner references. The
// definitions that the server makes are owned by their templates, but do not hold up
// their deletion, so it needs no right to the finalizers of templates.
func TestOwnerReferences(t *testing.T) {
	strict, err := cp.AddAPIServer("kube-apiserver-strict", "--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(strict.Stop)
	apply(t, template("E2EOwned"))
	remove(t, "constrainttemplate/e2eowned")
	eventually(t, 30*time.Second, "the definition", func() error {
		_, err := cp.Kubectl("", "get", "crd", "e2eowned.constraints.gatekeeper.sh")
		return err
	})
	// One like it, as the server would make it.
	text := kubectl(t, "get", "crd", "e2eowned.constraints.gatekeeper.sh", "-o", "json")
	if strings.Contains(text, "blockOwnerDeletion") {
		t.Error("the definition holds up the deletion of its template")
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "e2eowned.constraints", "e2eowned2.constraints"), `"plural": "e2eowned"`, `"plural": "e2eowned2"`)
	text = strings.ReplaceAll(strings.ReplaceAll(text, `"singular": "e2eowned"`, `"singular": "e2eowned2"`), "E2EOwned", "E2EOwned2")
	for _, test := range []struct{ what, text, refused string }{
		{"without", text, ""},
		{"holding up the deletion", strings.Replace(text, `"ownerReferences": [`+"\n            {", `"ownerReferences": [{"blockOwnerDeletion": true,`, 1), "blockOwnerDeletion"},
	} {
		_, err := cp.KubectlAs(strict.AdminKubeconfig, test.text, "create", "--dry-run=server", "--as=system:serviceaccount:policy-system:policy-apiserver", "-f", "-")
		if refused := err != nil && strings.Contains(err.Error(), test.refused); refused != (test.refused != "") || err != nil && !refused {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}
