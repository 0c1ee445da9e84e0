package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/informers/externalversions"
)

// TestInformer runs client-go's informer, which uses WatchList, over no results,
// one and 10,000, and counts what it is told while they come and go. Auditing
// them writes nothing to etcd.
func TestInformer(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	const namespaceName = "e2e-informer"
	apply(t, template("E2EInformer"), namespace(namespaceName))
	remove(t, "constrainttemplate/e2einformer", "namespace/"+namespaceName)
	core, err := kubernetes.NewForConfig(cp.Admin)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "service account of the namespace", func() error {
		_, err := core.CoreV1().ServiceAccounts(namespaceName).Get(ctx, "default", metav1.GetOptions{})
		return err
	})

	informer := func() (cache.SharedIndexInformer, *counter) {
		factory := externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("constraint.name", "informer").String()
		}))
		i := factory.Policy().V1alpha1().AuditResults().Informer()
		c := &counter{}
		if _, err := i.AddEventHandler(c); err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		syncCtx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if !cache.WaitForCacheSync(syncCtx.Done(), i.HasSynced) {
			t.Fatal("the informer does not sync")
		}
		return i, c
	}
	live, counts := informer()
	if n := len(live.GetStore().List()); n != 0 {
		t.Fatalf("%d results at first", n)
	}
	raw := follow(ctx, t, "informer")
	apply(t, constraint("E2EInformer", "informer", "ServiceAccount", namespaceName, "owner"))
	counts.want(t, 1, 0)

	const n = 10_000
	createServiceAccounts(ctx, t, core, namespaceName, n)
	counts.want(t, n+1, 0)
	raw.want(t, n+1, 0)
	big, _ := informer()
	if got := len(big.GetStore().List()); got != n+1 {
		t.Errorf("an informer that starts now has %d results, want %d", got, n+1)
	}

	// Everything is audited again under one more constraint, and of that nothing but
	// the constraint itself gets into etcd.
	settled(t)
	const failed = `policy_apiserver_audit_evaluations_total{result="fail"}`
	evaluations := metric(t, failed)
	before, err := cp.EtcdState()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, constraint("E2EInformer", "etcd", "ServiceAccount", namespaceName, "team"))
	eventually(t, 60*time.Second, "audit under the new constraint", func() error {
		s, err := summary(t, "e2einformer.etcd")
		if err == nil && (s.State != v1alpha1.SummaryCurrent || s.Totals.Fail != n+1) {
			err = fmt.Errorf("%s with %d results", s.State, s.Totals.Fail)
		}
		return err
	})
	if made := metric(t, failed) - evaluations; made != n+1 {
		t.Errorf("%v evaluations were made, want %d: one an object, and none under the constraint that was there", made, n+1)
	}
	writes, err := cp.EtcdWrites(before)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/registry/constraints.gatekeeper.sh/e2einformer/etcd"}; !slices.Equal(writes, want) {
		t.Errorf("while %d results were made, etcd got %d keys: %q", n+1, len(writes), writes[:min(10, len(writes))])
	}
	after, err := cp.EtcdState()
	if err != nil {
		t.Fatal(err)
	}
	// Leases are written every few seconds, by the control plane itself.
	if after.Keys > before.Keys+5 || after.Revision > before.Revision+100 {
		t.Errorf("etcd went from %+v to %+v", before, after)
	}

	kubectl(t, "delete", "e2einformer", "informer")
	counts.want(t, n+1, n+1)
	raw.want(t, n+1, n+1)
}

// follow watches all results of a constraint without client-go's cache.
func follow(ctx context.Context, t testing.TB, name string) *rawCounter {
	t.Helper()
	w, err := client.PolicyV1alpha1().AuditResults("").Watch(ctx, metav1.ListOptions{FieldSelector: "constraint.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	c := &rawCounter{}
	go c.count(w)
	return c
}

// rawCounter counts the events of a watch. Each object comes and goes once, in the
// order of revisions.
type rawCounter struct {
	counter
	wrong error
}

func (c *rawCounter) count(w watch.Interface) {
	there := map[string]bool{}
	last := uint64(0)
	for event := range w.ResultChan() {
		c.mu.Lock()
		r, ok := event.Object.(*v1alpha1.AuditResult)
		switch {
		case !ok:
			c.wrong = fmt.Errorf("%s %v", event.Type, event.Object)
		default:
			key := r.Namespace + "/" + r.Name
			revision, err := strconv.ParseUint(r.ResourceVersion, 10, 64)
			if err != nil || revision <= last || there[key] != (event.Type != watch.Added) {
				c.wrong = fmt.Errorf("%s of %s at revision %s after %d: %w", event.Type, key, r.ResourceVersion, last, err)
			}
			last = revision
			switch event.Type {
			case watch.Added:
				there[key] = true
				c.added++
			case watch.Deleted:
				delete(there, key)
				c.deleted++
			}
		}
		c.mu.Unlock()
	}
}

func (c *rawCounter) want(t testing.TB, added, deleted int) {
	t.Helper()
	c.counter.want(t, added, deleted)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong != nil {
		t.Errorf("the watch got %v", c.wrong)
	}
}

func createServiceAccounts(ctx context.Context, t testing.TB, core kubernetes.Interface, namespace string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	work := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range work {
				account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sa-%05d", i)}}
				if _, err := core.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
					t.Errorf("create: %v", err)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

// counter counts the events of an informer; each object comes and goes once.
type counter struct {
	mu             sync.Mutex
	added, deleted int
}

func (c *counter) OnAdd(any, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.added++
}

func (c *counter) OnUpdate(any, any) {}

func (c *counter) OnDelete(any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted++
}

// want waits until so many objects have come and gone, and no more.
func (c *counter) want(t testing.TB, added, deleted int) {
	t.Helper()
	eventually(t, 60*time.Second, "events", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.added != added || c.deleted != deleted {
			return fmt.Errorf("%d added and %d deleted, want %d and %d", c.added, c.deleted, added, deleted)
		}
		return nil
	})
}
