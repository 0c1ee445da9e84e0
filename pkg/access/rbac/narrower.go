package rbac

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/pkg/access"
)

// Narrower knows the grants of a cluster's RBAC. It implements access.Narrower.
type Narrower struct {
	factory informers.SharedInformerFactory
	// informers by the kind of what they have.
	roles, clusterRoles, bindings, clusterBindings cache.SharedIndexInformer
}

var _ access.Narrower = (*Narrower)(nil)

// bySubject is the index of bindings by their subjects.
const bySubject = "subject"

// New returns a Narrower that knows nothing until Run runs.
func New(client kubernetes.Interface) (*Narrower, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip))
	rbac := factory.Rbac().V1()
	n := &Narrower{
		factory:         factory,
		roles:           rbac.Roles().Informer(),
		clusterRoles:    rbac.ClusterRoles().Informer(),
		bindings:        rbac.RoleBindings().Informer(),
		clusterBindings: rbac.ClusterRoleBindings().Informer(),
	}
	for _, informer := range []cache.SharedIndexInformer{n.bindings, n.clusterBindings} {
		if err := informer.AddIndexers(cache.Indexers{bySubject: subjectsOf}); err != nil {
			return nil, fmt.Errorf("index bindings by subject: %w", err)
		}
	}
	return n, nil
}

// strip leaves out what grants do not depend on.
func strip(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
		accessor.SetAnnotations(nil)
		accessor.SetLabels(nil)
	}
	return object, nil
}

// Run follows the cluster's RBAC until ctx is done.
func (n *Narrower) Run(ctx context.Context) error {
	n.factory.Start(ctx.Done())
	<-ctx.Done()
	n.factory.Shutdown()
	return nil
}

// errNotSynced says that grants are not known yet.
var errNotSynced = errors.New("the roles and bindings of the cluster have not been listed yet")

// Grants implements access.Narrower.
func (n *Narrower) Grants(info user.Info) (access.Grants, error) {
	for _, informer := range []cache.SharedIndexInformer{n.roles, n.clusterRoles, n.bindings, n.clusterBindings} {
		if !informer.HasSynced() {
			return nil, errNotSynced
		}
	}
	b := &builder{narrower: n, grants: &grants{namespaced: map[string][]rbacv1.PolicyRule{}}, seen: map[string]struct{}{}}
	for _, key := range keysOf(info) {
		if err := b.add(key); err != nil {
			return nil, fmt.Errorf("bindings of %s: %w", key, err)
		}
	}
	return b.done(), nil
}

// Keys of subjects.
func userKey(name string) string               { return "User/" + name }
func groupKey(name string) string              { return "Group/" + name }
func accountKey(namespace, name string) string { return "ServiceAccount/" + namespace + "/" + name }

// keysOf the subjects that a user is.
func keysOf(info user.Info) []string {
	keys := []string{userKey(info.GetName())}
	for _, group := range info.GetGroups() {
		keys = append(keys, groupKey(group))
	}
	if namespace, name, err := serviceaccount.SplitUsername(info.GetName()); err == nil {
		keys = append(keys, accountKey(namespace, name))
	}
	return keys
}

// subjectsOf returns the keys of a binding's subjects.
func subjectsOf(object any) ([]string, error) {
	var subjects []rbacv1.Subject
	namespace := ""
	switch binding := object.(type) {
	case *rbacv1.RoleBinding:
		subjects, namespace = binding.Subjects, binding.Namespace
	case *rbacv1.ClusterRoleBinding:
		subjects = binding.Subjects
	default:
		return nil, fmt.Errorf("a %T is no binding", object)
	}
	keys := make([]string, 0, len(subjects))
	for _, subject := range subjects {
		switch subject.Kind {
		case rbacv1.UserKind:
			keys = append(keys, userKey(subject.Name))
		case rbacv1.GroupKind:
			keys = append(keys, groupKey(subject.Name))
		case rbacv1.ServiceAccountKind:
			in := subject.Namespace
			if in == "" {
				in = namespace
			}
			keys = append(keys, accountKey(in, subject.Name))
		}
	}
	return keys, nil
}

// builder collects the grants of one user.
type builder struct {
	narrower *Narrower
	grants   *grants
	seen     map[string]struct{} // bindings that have been added
	versions []string            // of everything that the grants were made of
}

// add adds the grants of a subject.
func (b *builder) add(key string) error {
	clusterBindings, err := b.narrower.clusterBindings.GetIndexer().ByIndex(bySubject, key)
	if err != nil {
		return err
	}
	for _, object := range clusterBindings {
		if binding, ok := object.(*rbacv1.ClusterRoleBinding); ok && b.first("", binding.Name) {
			b.addRules("", binding.RoleRef, string(binding.UID)+"@"+binding.ResourceVersion)
		}
	}
	bindings, err := b.narrower.bindings.GetIndexer().ByIndex(bySubject, key)
	if err != nil {
		return err
	}
	for _, object := range bindings {
		if binding, ok := object.(*rbacv1.RoleBinding); ok && b.first(binding.Namespace, binding.Name) {
			b.addRules(binding.Namespace, binding.RoleRef, string(binding.UID)+"@"+binding.ResourceVersion)
		}
	}
	return nil
}

func (b *builder) first(namespace, name string) bool {
	key := namespace + "/" + name
	_, seen := b.seen[key]
	b.seen[key] = struct{}{}
	return !seen
}

// addRules adds those rules of a role that let somebody get something.
func (b *builder) addRules(namespace string, ref rbacv1.RoleRef, version string) {
	rules, roleVersion := b.narrower.rulesOf(namespace, ref)
	b.versions = append(b.versions, version+"/"+roleVersion)
	rules = slices.DeleteFunc(slices.Clone(rules), func(rule rbacv1.PolicyRule) bool {
		return len(rule.ResourceNames) > 0 || len(rule.Resources) == 0 || !hasAny(rule.Verbs, "get")
	})
	switch {
	case len(rules) == 0:
	case namespace == "":
		b.grants.everywhere = append(b.grants.everywhere, rules...)
	default:
		b.grants.namespaced[namespace] = append(b.grants.namespaced[namespace], rules...)
	}
}

// rulesOf a role, and its version; none if there is no such role.
func (n *Narrower) rulesOf(namespace string, ref rbacv1.RoleRef) (rules []rbacv1.PolicyRule, version string) {
	informer, key := n.clusterRoles, ref.Name
	if ref.Kind == "Role" {
		informer, key = n.roles, namespace+"/"+ref.Name
	}
	object, ok, err := informer.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		return nil, ""
	}
	switch role := object.(type) {
	case *rbacv1.Role:
		return role.Rules, string(role.UID) + "@" + role.ResourceVersion
	case *rbacv1.ClusterRole:
		return role.Rules, string(role.UID) + "@" + role.ResourceVersion
	}
	return nil, ""
}

func (b *builder) done() *grants {
	g := b.grants
	for namespace := range g.namespaced {
		g.namespaces = append(g.namespaces, namespace)
	}
	slices.Sort(g.namespaces)
	slices.Sort(b.versions)
	sum := sha256.Sum256([]byte(strings.Join(b.versions, "\x00")))
	g.digest = base64.RawURLEncoding.EncodeToString(sum[:])
	return g
}
