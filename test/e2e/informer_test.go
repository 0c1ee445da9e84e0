package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

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
	apply(t, constraint("E2EInformer", "informer", "ServiceAccount", namespaceName, "owner"))
	counts.want(t, 1, 0)

	const n = 10_000
	createServiceAccounts(ctx, t, core, namespaceName, n)
	counts.want(t, n+1, 0)
	big, _ := informer()
	if got := len(big.GetStore().List()); got != n+1 {
		t.Errorf("an informer that starts now has %d results, want %d", got, n+1)
	}

	// The cluster stands still, and a new constraint has everything audited again.
	settled(t)
	keys, revision, err := cp.EtcdState()
	if err != nil {
		t.Fatal(err)
	}
	server.Stop(9)
	if err := server.Start("--data-dir=" + t.TempDir()); err != nil {
		t.Fatal(err)
	}
	settled(t)
	evaluated, err := server.Metric(`policy_apiserver_audit_objects_total{outcome="evaluated"}`)
	if err != nil || evaluated < n {
		t.Errorf("%v objects were evaluated (%v)", evaluated, err)
	}
	keysAfter, revisionAfter, err := cp.EtcdState()
	if err != nil {
		t.Fatal(err)
	}
	// Leases and the like are written all the time by the control plane itself.
	if keysAfter > keys+10 || revisionAfter > revision+200 {
		t.Errorf("auditing %v objects took etcd from %d keys at revision %d to %d keys at revision %d", evaluated, keys, revision, keysAfter, revisionAfter)
	}
	server.Stop(15)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}

	kubectl(t, "delete", "e2einformer", "informer")
	counts.want(t, n+1, n+1)
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
