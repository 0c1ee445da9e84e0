package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/informers/externalversions"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// take reads events, written as TYPE name; an end bookmark is END.
func take(t *testing.T, w watch.Interface, n int) []string {
	t.Helper()
	out := []string{}
	for len(out) < n {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return append(out, "closed")
			}
			switch obj := event.Object.(type) {
			case *v1alpha1.AuditResult:
				if event.Type == watch.Bookmark {
					if obj.Annotations[metav1.InitialEventsAnnotationKey] == "true" && obj.ResourceVersion != "" {
						out = append(out, "END")
					}
					continue
				}
				out = append(out, fmt.Sprintf("%s %s", event.Type, obj.Name))
			case *metav1.Status:
				out = append(out, fmt.Sprintf("%s %d", event.Type, obj.Code))
			}
		case <-time.After(10 * time.Second):
			return append(out, "nothing")
		}
	}
	return out
}

// TestWatchMatrix starts watches in every way and looks at what they begin with.
func TestWatchMatrix(t *testing.T) {
	s := start(t)
	old := s.put(result("a", "one", "x"))
	now := s.put(result("a", "two", "x"))
	future := rows.FormatRevision(now + 100_000)
	notOlder := metav1.ResourceVersionMatchNotOlderThan
	for _, test := range []struct {
		name    string
		options metav1.ListOptions
		want    []string
	}{
		{"unset", metav1.ListOptions{}, []string{"ADDED one", "ADDED two"}},
		{"0", metav1.ListOptions{ResourceVersion: "0"}, []string{"ADDED one", "ADDED two"}},
		{"old", metav1.ListOptions{ResourceVersion: rows.FormatRevision(old)}, []string{"ADDED two"}},
		{"too old", metav1.ListOptions{ResourceVersion: "5"}, []string{"ERROR 410"}},
		{"future", metav1.ListOptions{ResourceVersion: future}, []string{"ERROR 504"}},
		{"initial, unset", metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: notOlder, AllowWatchBookmarks: true}, []string{"ADDED one", "ADDED two", "END"}},
		{"initial, old", metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: notOlder, AllowWatchBookmarks: true, ResourceVersion: rows.FormatRevision(old)}, []string{"ADDED one", "ADDED two", "END"}},
		{"initial, nothing selected", metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: notOlder, AllowWatchBookmarks: true, FieldSelector: "metadata.name=nobody"}, []string{"END"}},
		{"initial, contradiction", metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: notOlder, AllowWatchBookmarks: true, FieldSelector: "metadata.name="}, []string{"END"}},
		{"initial, future", metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: notOlder, AllowWatchBookmarks: true, ResourceVersion: future}, []string{"ERROR 504"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.TimeoutSeconds = ptr.To[int64](30)
			w, err := s.client.PolicyV1alpha1().AuditResults("").Watch(ctx, test.options)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			if diff := cmp.Diff(test.want, take(t, w, len(test.want))); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("from now on", func(t *testing.T) {
		w, err := s.client.PolicyV1alpha1().AuditResults("").Watch(ctx, metav1.ListOptions{SendInitialEvents: ptr.To(false), ResourceVersionMatch: notOlder})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		s.put(result("a", "three", "x"))
		if diff := cmp.Diff([]string{"ADDED three"}, take(t, w, 1)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestSelectorTransitions follows an object into and out of a selection.
func TestSelectorTransitions(t *testing.T) {
	s := start(t)
	from := rows.FormatRevision(s.db.Revision())
	w, err := s.client.PolicyV1alpha1().AuditResults("").Watch(ctx, metav1.ListOptions{ResourceVersion: from, FieldSelector: "result=error"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	r := result("a", "one", "x")
	s.put(r)
	r.Result, r.Message = v1alpha1.ResultError, "boom"
	s.put(r)
	r.Message = "bang"
	s.put(r)
	r.Result = v1alpha1.ResultFail
	out := s.put(r)
	if diff := cmp.Diff([]string{"ADDED one", "MODIFIED one"}, take(t, w, 2)); diff != "" {
		t.Fatal(diff)
	}
	event := <-w.ResultChan()
	gone, ok := event.Object.(*v1alpha1.AuditResult)
	if !ok || event.Type != watch.Deleted || gone.Message != "bang" || gone.ResourceVersion != rows.FormatRevision(out) {
		t.Errorf("leaving the selection gives %v %+v", event.Type, event.Object)
	}
	r.Result = v1alpha1.ResultError
	s.put(r)
	s.delete("a", "one")
	if diff := cmp.Diff([]string{"ADDED one", "DELETED one"}, take(t, w, 2)); diff != "" {
		t.Error(diff)
	}
}

// TestInformer runs client-go's informer on no rows, one and many, and lets the
// rows change beneath it.
func TestInformer(t *testing.T) {
	for _, n := range []int{0, 1, 2000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := start(t)
			if n > 0 {
				s.put(podNames(n)...)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			factory := externalversions.NewSharedInformerFactory(s.client, 0)
			informer := factory.Policy().V1alpha1().AuditResults().Informer()
			events := make(chan string, 10*n+100)
			handler := cache.ResourceEventHandlerFuncs{
				AddFunc:    func(obj any) { events <- "add " + obj.(*v1alpha1.AuditResult).Name },
				UpdateFunc: func(_, obj any) { events <- "update " + obj.(*v1alpha1.AuditResult).Name },
				DeleteFunc: func(obj any) { events <- "delete " + obj.(*v1alpha1.AuditResult).Name },
			}
			if _, err := informer.AddEventHandler(handler); err != nil {
				t.Fatal(err)
			}
			factory.Start(ctx.Done())
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				t.Fatal("the informer does not sync")
			}
			if got := len(informer.GetStore().List()); got != n {
				t.Fatalf("%d objects, want %d", got, n)
			}
			for range n {
				<-events
			}
			var want []string
			for i := range 200 {
				name := fmt.Sprintf("live%03d", i)
				s.put(result("a", name, "x"))
				s.put(result("a", name, "y"))
				s.delete("a", name)
				want = append(want, "add "+name, "update "+name, "delete "+name)
			}
			var got []string
			for len(got) < len(want) {
				select {
				case e := <-events:
					got = append(got, e)
				case <-ctx.Done():
					t.Fatalf("%d of %d events", len(got), len(want))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
