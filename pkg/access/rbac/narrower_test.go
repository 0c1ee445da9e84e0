package rbac_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"

	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/access/rbac"
)

func rule(verbs, groups, resources []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, ResourceNames: names}
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "cr", ResourceVersion: "1"}, Rules: rules}
}

func role(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: rules}
}

func binding(namespace, name, kind, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, RoleRef: rbacv1.RoleRef{Kind: kind, Name: role}, Subjects: subjects}
}

func clusterBinding(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}, Subjects: subjects}
}

var (
	all   = []string{"*"}
	get   = []string{"get", "list"}
	core  = []string{""}
	alice = rbacv1.Subject{Kind: "User", Name: "alice"}
	team  = rbacv1.Subject{Kind: "Group", Name: "team"}
)

func start(t *testing.T, objects ...runtime.Object) (*rbac.Narrower, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	n, err := rbac.New(client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Grants(&user.DefaultInfo{Name: "alice"}); err == nil {
		t.Error("there are grants before roles are known")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() error {
		_, err := n.Grants(&user.DefaultInfo{Name: "alice"})
		return err
	})
	return n, client
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func grantsOf(t *testing.T, n *rbac.Narrower, name string, groups ...string) access.Grants {
	t.Helper()
	g, err := n.Grants(&user.DefaultInfo{Name: name, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestRules are those of RBAC.
func TestRules(t *testing.T) {
	for i, test := range []struct {
		rule            rbacv1.PolicyRule
		group, resource string
		want            bool
	}{
		{rule(get, core, []string{"pods"}), "", "pods", true},
		{rule(all, core, []string{"pods"}), "", "pods", true},
		{rule([]string{"list", "watch"}, core, []string{"pods"}), "", "pods", false},
		{rule(get, core, []string{"secrets", "pods"}), "", "pods", true},
		{rule(get, core, []string{"secrets"}), "", "pods", false},
		{rule(get, core, all), "", "pods", true},
		{rule(get, core, all), "apps", "deployments", false},
		{rule(get, all, all), "apps", "deployments", true},
		{rule(get, all, []string{"deployments"}), "apps", "deployments", true},
		{rule(get, core, []string{"pods"}, "one"), "", "pods", false},
		{rule(get, core, []string{"pods/log"}), "", "pods", false},
		{rule(get, []string{"policy.example.io"}, []string{"auditresults"}), "policy.example.io", "auditresults/unscoped", false},
		{rule(get, []string{"policy.example.io"}, []string{"auditresults/unscoped"}), "policy.example.io", "auditresults/unscoped", true},
		{rule(get, []string{"policy.example.io"}, []string{"*/unscoped"}), "policy.example.io", "auditresults/unscoped", true},
		{rule(get, []string{"policy.example.io"}, all), "policy.example.io", "auditresults/unscoped", true},
		{rule(get, []string{"policy.example.io"}, []string{"*/unscoped"}), "policy.example.io", "auditresults", false},
		{rbacv1.PolicyRule{Verbs: get, NonResourceURLs: all}, "", "pods", false},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			n, _ := start(t, clusterRole("r", test.rule), clusterBinding("b", "r", alice))
			for _, namespace := range []string{"", "a"} {
				if got := grantsOf(t, n, "alice").May(namespace, test.group, test.resource); got != test.want {
					t.Errorf("%+v in %q: %v", test, namespace, got)
				}
			}
			if grantsOf(t, n, "bob").May("", test.group, test.resource) {
				t.Error("somebody else has it too")
			}
		})
	}
}

// TestBindings are found by each kind of subject.
func TestBindings(t *testing.T) {
	n, _ := start(t,
		clusterRole("view", rule(get, core, []string{"pods"})),
		clusterRole("nodes", rule(get, core, []string{"nodes"})),
		role("own", "secrets", rule(get, core, []string{"secrets"})),
		role("other", "secrets", rule(get, core, []string{"configmaps"})),
		binding("user", "b", "ClusterRole", "view", alice),
		binding("group", "b", "ClusterRole", "view", team, alice),
		binding("own", "b", "Role", "secrets", alice),
		binding("lost", "b", "Role", "gone", alice),
		binding("listing", "b", "ClusterRole", "view", rbacv1.Subject{Kind: "User", Name: "team"}),
		binding("accounts", "b", "ClusterRole", "view", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "ci", Name: "bot"}),
		clusterBinding("nodes", "nodes", team),
	)
	for _, test := range []struct {
		name       string
		groups     []string
		namespaces []string
		may, not   [][2]string
	}{
		{"alice", nil, []string{"group", "own", "user"}, [][2]string{{"user", "pods"}, {"own", "secrets"}}, [][2]string{{"own", "configmaps"}, {"", "pods"}, {"own", "pods"}, {"user", "nodes"}}},
		{"bob", []string{"team"}, []string{"group"}, [][2]string{{"group", "pods"}, {"", "nodes"}, {"anywhere", "nodes"}}, [][2]string{{"user", "pods"}, {"listing", "pods"}}},
		{"team", nil, []string{"listing"}, nil, [][2]string{{"group", "pods"}}},
		{"system:serviceaccount:ci:bot", nil, []string{"accounts"}, [][2]string{{"accounts", "pods"}}, nil},
		{"system:serviceaccount:other:bot", nil, nil, nil, [][2]string{{"accounts", "pods"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := grantsOf(t, n, test.name, test.groups...)
			if !slices.Equal(g.Namespaces(), test.namespaces) {
				t.Errorf("namespaces %q, want %q", g.Namespaces(), test.namespaces)
			}
			for _, q := range test.may {
				if !g.May(q[0], "", q[1]) {
					t.Errorf("may not get %s in %q", q[1], q[0])
				}
			}
			for _, q := range test.not {
				if g.May(q[0], "", q[1]) {
					t.Errorf("may get %s in %q", q[1], q[0])
				}
			}
		})
	}
}

// TestDigest changes with what a user is granted, and with nothing else.
func TestDigest(t *testing.T) {
	n, client := start(t,
		clusterRole("view", rule(get, core, []string{"pods"})),
		binding("a", "b", "ClusterRole", "view", alice),
		binding("b", "b", "ClusterRole", "view", team),
	)
	first := grantsOf(t, n, "alice").Digest()
	if again := grantsOf(t, n, "alice").Digest(); again != first || first == "" {
		t.Errorf("the digest was %q and is %q", first, again)
	}
	team := grantsOf(t, n, "bob", "team").Digest()
	rbacClient := client.RbacV1()
	if err := rbacClient.RoleBindings("a").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := ""
	eventually(t, func() error {
		if second = grantsOf(t, n, "alice").Digest(); second == first {
			return fmt.Errorf("the digest is the same without the binding")
		}
		return nil
	})
	if grantsOf(t, n, "bob", "team").Digest() != team {
		t.Error("the digest of somebody else is another one")
	}
	changed := clusterRole("view", rule(get, core, []string{"configmaps"}))
	changed.ResourceVersion = "2"
	if _, err := rbacClient.ClusterRoles().Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		g := grantsOf(t, n, "bob", "team")
		if g.Digest() == team || !g.May("b", "", "configmaps") {
			return fmt.Errorf("the digest is the same with another role")
		}
		return nil
	})
}
