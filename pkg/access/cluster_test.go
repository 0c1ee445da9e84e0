package access_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// grant is the right to get a resource in a namespace; "" stands for all.
type grant struct{ namespace, resource string }

// cluster authorizes by what it has granted, knows resources, and narrows to what it
// has granted, apart from what it refuses all the same.
type cluster struct {
	mu      sync.Mutex
	grants  map[string][]grant // by user
	refused []grant            // for everybody
	latency time.Duration
	broken  func(authorizer.Attributes) bool
	asked   []string
	// notSynced makes the narrower fail.
	notSynced bool
}

func (c *cluster) grant(user string, grants ...grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grants == nil {
		c.grants = map[string][]grant{}
	}
	c.grants[user] = append(c.grants[user], grants...)
}

func (c *cluster) revoke(user string, revoked grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grants[user] = slices.DeleteFunc(slices.Clone(c.grants[user]), func(g grant) bool { return g == revoked })
}

// take returns what was asked since the last call.
func (c *cluster) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.asked
	c.asked = nil
	return asked
}

func covers(grants []grant, namespace, resource string) bool {
	return slices.ContainsFunc(grants, func(g grant) bool {
		return g.resource == resource && (g.namespace == "" || g.namespace == namespace)
	})
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (c *cluster) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	c.mu.Lock()
	c.asked = append(c.asked, a.GetNamespace()+" "+resource)
	broken := c.broken != nil && c.broken(a)
	allowed := a.GetVerb() == "get" && a.IsResourceRequest() && covers(c.grants[a.GetUser().GetName()], a.GetNamespace(), resource) &&
		!slices.Contains(c.refused, grant{a.GetNamespace(), resource})
	c.mu.Unlock()
	if c.latency > 0 {
		select {
		case <-time.After(c.latency):
		case <-ctx.Done():
		}
	}
	switch {
	case broken:
		return authorizer.DecisionNoOpinion, "", errors.New("the webhook is away")
	case allowed:
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// Resource implements access.Resources. Kinds that begin with Unknown are not known.
func (c *cluster) Resource(gk schema.GroupKind) (schema.GroupVersionResource, bool) {
	if len(gk.Kind) > 7 && gk.Kind[:7] == "Unknown" {
		return schema.GroupVersionResource{}, false
	}
	return schema.GroupVersionResource{Group: gk.Group, Version: "v1", Resource: gk.Kind + "s"}, true
}

// Grants implements access.Narrower.
func (c *cluster) Grants(info user.Info) (access.Grants, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notSynced {
		return nil, errors.New("not synced")
	}
	return grants(slices.Clone(c.grants[info.GetName()])), nil
}

type grants []grant

func (g grants) May(namespace, _, resource string) bool { return covers(g, namespace, resource) }

func (g grants) Namespaces() []string {
	var out []string
	for _, grant := range g {
		if grant.namespace != "" {
			out = append(out, grant.namespace)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (g grants) Digest() string { return fmt.Sprint(len(g), []grant(g)) }

// fixture is an index of findings and the access to it.
type fixture struct {
	*cluster
	db     *index.DB
	access *access.Access
}

func newFixture(t testing.TB, change ...func(*access.Config)) *fixture {
	f := &fixture{cluster: &cluster{}, db: indextest.MustOpen(t, rows.Schemas())}
	config := access.Config{Index: f.db, Authorizer: f.cluster, Resources: f.cluster, Narrower: f.cluster}
	for _, fn := range change {
		fn(&config)
	}
	var err error
	if f.access, err = access.New(config); err != nil {
		t.Fatal(err)
	}
	return f
}

// unnarrowed asks everything.
func unnarrowed(config *access.Config) { config.Narrower = nil }

func (f *fixture) context(name string) context.Context {
	return genericapirequest.WithUser(context.Background(), &user.DefaultInfo{Name: name})
}

func (f *fixture) view(t testing.TB, name string, table index.Table) *access.View {
	t.Helper()
	v, err := f.access.View(f.context(name), table)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// finding is on an object of a kind; one without a namespace is a ClusterAuditResult.
func finding(namespace, kind, name string) metav1.Object {
	f := v1alpha1.Finding{
		Constraint: v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "NeedLabel", Name: "owner"},
		Resource:   v1alpha1.ResourceReference{APIVersion: "v1", Kind: kind, Namespace: namespace, Name: name},
		Result:     v1alpha1.ResultFail,
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	if namespace == "" {
		return &v1alpha1.ClusterAuditResult{ObjectMeta: meta, Finding: f}
	}
	return &v1alpha1.AuditResult{ObjectMeta: meta, Finding: f}
}

func (f *fixture) put(t testing.TB, objects ...metav1.Object) uint64 {
	t.Helper()
	revision, err := f.db.Update(context.Background(), func(tx *index.Tx) error {
		for _, object := range objects {
			row, err := rows.Encode(object)
			if err != nil {
				return err
			}
			if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// names of all visible rows, read in pages of a limit, and the sizes of the pages.
func (f *fixture) names(t testing.TB, user string, q index.Query, limit int) (names []string, sizes []int) {
	t.Helper()
	q.Limit = limit
	total := -1 // as far as it is known
	for {
		v := f.view(t, user, q.Table)
		page, err := v.List(f.context(user), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range page.Rows {
			names = append(names, row.Namespace+"/"+row.Name)
		}
		sizes = append(sizes, len(page.Rows))
		if page.Remaining >= 0 {
			if known := len(names) + int(page.Remaining); total >= 0 && total != known {
				t.Errorf("there are %d rows and then %d", total, known)
			} else {
				total = known
			}
		}
		if !page.More {
			if total != len(names) {
				t.Errorf("%d rows are there, %d are said to be", len(names), total)
			}
			return names, sizes
		}
		if len(page.Rows) == 0 {
			t.Fatal("an empty page is not the last one")
		}
		q.After, q.Revision = &page.Rows[len(page.Rows)-1].Key, page.Revision
	}
}
