package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/pkg/generated/informers/externalversions"
)

// scopeDelay is how long a change of rights may take to have effect: the time for which
// answers are used, and some for the machine.
const scopeDelay = 20 * time.Second

// accessUser is a user of TestAccess.
type accessUser struct {
	name, kubeconfig string
	client           *versioned.Clientset
}

func newAccessUser(t *testing.T, name string, groups ...string) *accessUser {
	t.Helper()
	u := &accessUser{name: name}
	config, kubeconfig, err := cp.User(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	u.kubeconfig = kubeconfig
	if u.client, err = versioned.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return u
}

// list lists findings with kubectl and returns their objects, as namespace/Kind/name.
func (u *accessUser) list(args ...string) (string, error) {
	out, err := cp.KubectlAs(u.kubeconfig, "", append([]string{
		"get", "-o", `jsonpath={range .items[*]}{.metadata.namespace}/{.resource.kind}/{.resource.name}{"\n"}{end}`,
	}, args...)...)
	objects := strings.Fields(out)
	slices.Sort(objects)
	return strings.ReplaceAll(strings.Join(objects, " "), "e2e-access-", ""), err
}

// sees waits until a list has exactly these objects.
func (u *accessUser) sees(t *testing.T, want string, args ...string) {
	t.Helper()
	eventually(t, scopeDelay, fmt.Sprintf("what %s sees with %v", u.name, args), func() error {
		got, err := u.list(args...)
		return expect(got, want, err)
	})
}

// TestAccess has two tenants and an auditor see exactly what they may, by list, get,
// page, selector and watch, while RBAC changes under them.
func TestAccess(t *testing.T) {
	const findings = "policy.example.io/constraint-name=access"
	apply(t, template("E2EAccess"), namespace("e2e-access-a"), namespace("e2e-access-b"), namespace("e2e-access-c"))
	remove(t, "constrainttemplate/e2eaccess", "namespace/e2e-access-a", "namespace/e2e-access-b", "namespace/e2e-access-c",
		"clusterrole/e2e-access", "clusterrole/e2e-unscoped", "clusterrolebinding/e2e-tenants", "clusterrolebinding/e2e-auditors")
	apply(t, constraint("E2EAccess", "access", "ConfigMap, Secret, Namespace", "e2e-access-*", "owner"), `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: E2EAccess
metadata: {name: access-cluster}
spec:
  match:
    kinds: [{apiGroups: ["*"], kinds: [ClusterRole]}]
    name: e2e-access
  parameters: {label: owner}
`, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: e2e-access}\n")
	for _, in := range []string{"e2e-access-a", "e2e-access-b", "e2e-access-c"} {
		apply(t, configMap(in, "map", ""), fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: secret, namespace: %s}\n", in))
	}
	kubectl(t, "create", "clusterrolebinding", "e2e-tenants", "--clusterrole=policy-scoped-viewer", "--group=e2e-tenants")
	kubectl(t, "create", "clusterrolebinding", "e2e-auditors", "--clusterrole=policy-cluster-viewer", "--group=e2e-auditors")
	kubectl(t, "create", "clusterrole", "e2e-unscoped", "--verb=get", "--resource=auditresults.policy.example.io/unscoped")
	kubectl(t, "create", "rolebinding", "alice", "-n", "e2e-access-a", "--clusterrole=view", "--user=alice")
	kubectl(t, "create", "rolebinding", "alice", "-n", "e2e-access-b", "--clusterrole=view", "--user=alice")
	kubectl(t, "create", "rolebinding", "bob", "-n", "e2e-access-c", "--clusterrole=edit", "--user=bob")
	alice, bob, auditor := newAccessUser(t, "alice", "e2e-tenants"), newAccessUser(t, "bob", "e2e-tenants"), newAccessUser(t, "carol", "e2e-auditors")

	everything := "a/ConfigMap/map a/Namespace/a a/Secret/secret b/ConfigMap/map b/Namespace/b b/Secret/secret c/ConfigMap/map c/Namespace/c c/Secret/secret"
	auditor.sees(t, everything, "ar", "-A", "-l", findings)
	auditor.sees(t, "/ClusterRole/e2e-access", "car", "--field-selector=constraint.name=access-cluster")
	auditor.sees(t, "c/Namespace/c", "ar", "-n", "e2e-access-c", "--field-selector=constraint.name=access,resource.kind=Namespace")
	both := "a/ConfigMap/map a/Namespace/a b/ConfigMap/map b/Namespace/b"
	alice.sees(t, both, "ar", "-A")
	alice.sees(t, both, "ar", "-A", "--chunk-size=1")
	alice.sees(t, "", "ar", "-A", "--field-selector=resource.kind=Secret")
	alice.sees(t, "b/ConfigMap/map", "ar", "-n", "e2e-access-b", "--field-selector=resource.kind!=Namespace")
	alice.sees(t, "", "ar", "-n", "e2e-access-c")
	alice.sees(t, "", "car")
	bob.sees(t, "c/ConfigMap/map c/Namespace/c c/Secret/secret", "ar", "-A", "-l", findings)

	secret := strings.TrimSpace(kubectl(t, "get", "ar", "-n", "e2e-access-a", "--field-selector=constraint.name=access,resource.kind=Secret", "-o", "name"))
	if _, err := cp.KubectlAs(auditor.kubeconfig, "", "get", "-n", "e2e-access-a", secret); err != nil {
		t.Errorf("the auditor gets %s: %v", secret, err)
	}
	if _, err := cp.KubectlAs(alice.kubeconfig, "", "get", "-n", "e2e-access-a", secret); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("alice gets %s: %v", secret, err)
	}
	for _, args := range [][]string{{"get", "arun"}, {"get", "csum"}} {
		if _, err := cp.KubectlAs(alice.kubeconfig, "", args...); err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Errorf("alice, kubectl %v: %v", args, err)
		}
	}

	t.Run("watch", func(t *testing.T) { testAccessWatch(t, alice) })
	t.Run("informer", func(t *testing.T) { testAccessInformer(t, alice) })
	t.Run("unscoped in a namespace", func(t *testing.T) {
		kubectl(t, "create", "rolebinding", "alice-unscoped", "-n", "e2e-access-a", "--clusterrole=e2e-unscoped", "--user=alice")
		alice.sees(t, "a/ConfigMap/map a/Namespace/a a/Secret/secret", "ar", "-n", "e2e-access-a")
		kubectl(t, "delete", "rolebinding", "alice-unscoped", "-n", "e2e-access-a")
		alice.sees(t, "a/ConfigMap/map a/Namespace/a", "ar", "-n", "e2e-access-a")
	})
	t.Run("few questions", func(t *testing.T) {
		time.Sleep(11 * time.Second) // nothing is remembered any more
		for _, u := range []struct {
			user *accessUser
			most float64
		}{{auditor, 1}, {alice, 5}} {
			before := metric(t, "policy_apiserver_access_reviews_total")
			list, err := u.user.client.PolicyV1alpha1().AuditResults("").List(t.Context(), metav1.ListOptions{Limit: 500})
			if err != nil || len(list.Items) == 0 {
				t.Fatalf("%v, %v", list, err)
			}
			// alice: whether she sees everything, and two kinds in two namespaces.
			if asked := metric(t, "policy_apiserver_access_reviews_total") - before; asked > u.most {
				t.Errorf("a list of %s takes %v questions", u.user.name, asked)
			}
		}
	})
}

// testAccessWatch takes away a right, and gives it back, under an open watch.
func testAccessWatch(t *testing.T, alice *accessUser) {
	api := alice.client.PolicyV1alpha1().AuditResults("")
	next := func(w watch.Interface) watch.Event {
		t.Helper()
		select {
		case event := <-w.ResultChan():
			return event
		case <-time.After(scopeDelay):
			t.Fatal("there is no event")
			return watch.Event{}
		}
	}
	for _, step := range []struct {
		change []string
		want   int
	}{
		{[]string{"delete", "rolebinding", "alice", "-n", "e2e-access-b"}, 2},
		{[]string{"create", "rolebinding", "alice", "-n", "e2e-access-b", "--clusterrole=view", "--user=alice"}, 4},
	} {
		list, err := api.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		name := fmt.Sprintf("new-%d", step.want)
		apply(t, configMap("e2e-access-c", name, ""), configMap("e2e-access-a", name, ""))
		if event := next(w); event.Type != watch.Added || event.Object.(*v1alpha1.AuditResult).Namespace != "e2e-access-a" {
			t.Errorf("%s of %v", event.Type, event.Object)
		}
		kubectl(t, "delete", "configmap", name, "-n", "e2e-access-a")
		if event := next(w); event.Type != watch.Deleted {
			t.Errorf("%s of %v", event.Type, event.Object)
		}
		kubectl(t, step.change...)
		if event := next(w); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
			t.Errorf("after the change: %s %v", event.Type, event.Object)
		}
		if _, open := <-w.ResultChan(); open {
			t.Error("the watch goes on")
		}
		if list, err = api.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != step.want {
			t.Errorf("%d items, %v; want %d", len(list.Items), err, step.want)
		}
	}
}

// testAccessInformer has client-go's informer follow what its user may see.
func testAccessInformer(t *testing.T, alice *accessUser) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := externalversions.NewSharedInformerFactory(alice.client, 0)
	informer := factory.Policy().V1alpha1().AuditResults().Informer()
	factory.Start(ctx.Done())
	syncCtx, stop := context.WithTimeout(ctx, scopeDelay)
	defer stop()
	if !cache.WaitForCacheSync(syncCtx.Done(), informer.HasSynced) {
		t.Fatal("the informer does not sync")
	}
	has := func(want string) {
		t.Helper()
		eventually(t, scopeDelay, "the informer's copy", func() error {
			var got []string
			for _, object := range informer.GetStore().List() {
				r := object.(*v1alpha1.AuditResult)
				got = append(got, strings.TrimPrefix(r.Namespace, "e2e-access-")+"/"+r.Resource.Kind)
			}
			slices.Sort(got)
			return expect(strings.Join(got, " "), want, nil)
		})
	}
	has("a/ConfigMap a/Namespace b/ConfigMap b/Namespace")
	kubectl(t, "delete", "rolebinding", "alice", "-n", "e2e-access-b")
	has("a/ConfigMap a/Namespace")
	kubectl(t, "create", "rolebinding", "alice", "-n", "e2e-access-b", "--clusterrole=edit", "--user=alice")
	has("a/ConfigMap a/Namespace b/ConfigMap b/Namespace b/Secret")
	kubectl(t, "delete", "rolebinding", "alice", "-n", "e2e-access-b")
	kubectl(t, "create", "rolebinding", "alice", "-n", "e2e-access-b", "--clusterrole=view", "--user=alice")
	has("a/ConfigMap a/Namespace b/ConfigMap b/Namespace")
}
