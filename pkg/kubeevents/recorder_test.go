package kubeevents

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/util/flowcontrol"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// change is one of a finding on an object.
func change(t v1alpha1.ChangeType, result v1alpha1.Result, resource v1alpha1.ResourceReference) v1alpha1.Change {
	resource.UID = "u"
	return v1alpha1.Change{
		Type: t, Result: result, Resource: resource, Message: "label owner is missing", EnforcementAction: "deny",
		Constraint: v1alpha1.ConstraintReference{Kind: "NeedLabel", Name: "owner"},
	}
}

func write(t *testing.T, db *index.DB, objects ...metav1.Object) {
	t.Helper()
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for i, object := range objects {
			object.SetName(fmt.Sprint(db.Revision(), i))
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
}

func pod(name string) v1alpha1.ResourceReference {
	return v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: name}
}

// TestEvents makes an Event of each finding that opens while it runs, and of nothing else.
func TestEvents(t *testing.T) {
	db := indextest.MustOpen(t, rows.Schemas())
	client := fake.NewClientset()
	changes := feed.New(db)
	write(t, db, &v1alpha1.AuditChange{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultFail, pod("before"))})
	r := New(db, changes, client.CoreV1())
	started := make(chan struct{})
	sink := r.sink
	r.sink = func(ctx context.Context) func() { defer close(started); return sink(ctx) }
	first := &countingIndex{DB: db, asked: make(chan struct{}, 10)}
	r.index = first
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	<-started
	<-first.asked
	role := v1alpha1.ResourceReference{APIGroup: "rbac.authorization.k8s.io", APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "r"}
	namespace := v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Namespace", Name: "gone"}
	write(t, db,
		&v1alpha1.AuditChange{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultFail, pod("p"))},
		&v1alpha1.AuditChange{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Change: change(v1alpha1.ChangeResolved, v1alpha1.ResultFail, pod("resolved"))},
		&v1alpha1.AuditChange{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultDeferred, pod("deferred"))},
		&v1alpha1.ClusterAuditChange{Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultFail, pod("of-a-gone-namespace"))},
		&v1alpha1.ClusterAuditChange{Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultFail, namespace)},
		&v1alpha1.ClusterAuditChange{Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultError, role)},
	)
	want := []string{
		"default Warning PolicyError ClusterRole/r: NeedLabel/owner (deny): label owner is missing",
		"shop Warning PolicyViolation Pod/p: NeedLabel/owner (deny): label owner is missing",
	}
	var got []string
	for deadline := time.Now().Add(20 * time.Second); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		got = nil
		list, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range list.Items {
			object := event.InvolvedObject
			got = append(got, fmt.Sprintf("%s %s %s %s/%s: %s", event.Namespace, event.Type, event.Reason, object.Kind, object.Name, event.Message))
			if object.UID != "u" || event.Source.Component != "policy-apiserver" || event.Annotations["policy.example.io/constraint-name"] != "owner" {
				t.Errorf("%+v", event)
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// countingIndex tells when it is asked for its revision.
type countingIndex struct {
	*index.DB
	asked chan struct{}
}

func (c *countingIndex) Revision() uint64 {
	defer func() { c.asked <- struct{}{} }()
	return c.DB.Revision()
}

// lateFeed has lost what it is asked for once.
type lateFeed struct {
	*feed.Feed
	lost bool
}

func (f *lateFeed) Next(ctx context.Context, after uint64, limit int) ([]index.Change, uint64, error) {
	if !f.lost {
		f.lost = true
		return nil, 0, fmt.Errorf("changes after %d: %w", after, index.ErrCompacted)
	}
	return f.Feed.Next(ctx, after, limit)
}

// TestTooManyEvents goes on from where the index is when it has missed something.
func TestTooManyEvents(t *testing.T) {
	db := indextest.MustOpen(t, rows.Schemas())
	client := fake.NewClientset()
	r := New(db, &lateFeed{Feed: feed.New(db)}, client.CoreV1())
	r.limiter = flowcontrol.NewFakeAlwaysRateLimiter()
	first := &countingIndex{DB: db, asked: make(chan struct{}, 10)}
	r.index = first
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	<-first.asked
	<-first.asked
	write(t, db, &v1alpha1.AuditChange{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Change: change(v1alpha1.ChangeOpened, v1alpha1.ResultFail, pod("p"))})
	var list *corev1.EventList
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var err error
		if list, err = client.CoreV1().Events("shop").List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) == 1 {
			return
		}
	}
	t.Errorf("%d Events", len(list.Items))
}
