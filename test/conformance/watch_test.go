package conformance

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
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
			case *v1alpha1.AuditChange:
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

// TestBookmarks gets one before the watch ends, with what has been written to
// other tables counted in: a client of a quiet table can resume from there.
func TestBookmarks(t *testing.T) {
	s := start(t)
	from := s.put(result("a", "one", "x"))
	for _, test := range []struct {
		name    string
		options metav1.ListOptions
		want    int
	}{
		{"allowed", metav1.ListOptions{AllowWatchBookmarks: true}, 1},
		{"not allowed", metav1.ListOptions{}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.ResourceVersion = rows.FormatRevision(from)
			test.options.TimeoutSeconds = ptr.To[int64](3)
			w, err := s.client.PolicyV1alpha1().ClusterAuditResults().Watch(ctx, test.options)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			now := rows.FormatRevision(s.put(result("a", "one", test.name)))
			got := 0
			for event := range w.ResultChan() {
				got++
				object, ok := event.Object.(*v1alpha1.ClusterAuditResult)
				if !ok || event.Type != watch.Bookmark || object.ResourceVersion != now || len(object.Annotations) != 0 {
					t.Errorf("%s %+v, want a bookmark at %s", event.Type, event.Object, now)
				}
			}
			if got != test.want {
				t.Errorf("%d events, want %d", got, test.want)
			}
		})
	}
}

// TestStreamUnderWrites starts streams while rows are written: what a stream has
// said, taken together, is the list at its end, with nothing missing between the
// initial state and the changes, and nothing twice.
func TestStreamUnderWrites(t *testing.T) {
	s := start(t)
	s.put(podNames(1500)...)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// Some of these are new.
			namespace, name := fmt.Sprintf("ns%d", i%3), fmt.Sprintf("p%03d", i*7%2000)
			s.put(result(namespace, name, fmt.Sprint(i)))
			if i%5 == 0 {
				s.delete(namespace, name)
			}
		}
	}()
	var streams []*stream
	for i := range 6 {
		options := metav1.ListOptions{
			SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
			LabelSelector: []string{"", "pod!=p003"}[i%2],
		}
		w, err := s.client.PolicyV1alpha1().AuditResults("").Watch(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		streams = append(streams, &stream{TB: t, watch: w, selector: options.LabelSelector, state: map[string]string{}})
	}
	for _, stream := range streams {
		stream.until(func() bool { return stream.snapshot > 0 })
	}
	close(stop)
	<-stopped
	last := s.put(result("zzz", "last", "x"))
	for _, stream := range streams {
		stream.until(func() bool { return stream.revision == last })
		list, err := s.client.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{LabelSelector: stream.selector})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for i := range list.Items {
			want[list.Items[i].Namespace+"/"+list.Items[i].Name] = list.Items[i].ResourceVersion
		}
		if diff := cmp.Diff(want, stream.state); diff != "" {
			t.Errorf("selector %q (-list +stream):\n%s", stream.selector, diff)
		}
	}
}

// stream is a watch and what it has told so far.
type stream struct {
	testing.TB
	watch    watch.Interface
	selector string
	// state has the resourceVersions by name.
	state map[string]string
	// snapshot is the revision of the initial state, revision that of the last event.
	snapshot, revision uint64
}

// until takes events until done, and checks each against those before it.
func (s *stream) until(done func() bool) {
	s.Helper()
	for !done() {
		var event watch.Event
		select {
		case event = <-s.watch.ResultChan():
		case <-time.After(30 * time.Second):
			s.Fatal("there are no more events")
		}
		object, ok := event.Object.(*v1alpha1.AuditResult)
		if !ok {
			s.Fatalf("%s %+v", event.Type, event.Object)
		}
		revision, err := strconv.ParseUint(object.ResourceVersion, 10, 64)
		if err != nil {
			s.Fatal(err)
		}
		if s.snapshot > 0 && revision <= s.revision {
			s.Fatalf("%s %s at %d comes after %d", event.Type, object.Name, revision, s.revision)
		}
		name := object.Namespace + "/" + object.Name
		before, known := s.state[name]
		switch {
		case event.Type == watch.Bookmark:
			if s.snapshot == 0 {
				s.snapshot = revision
			}
			s.revision = revision
			for name, version := range s.state {
				if s.snapshot == revision && version > object.ResourceVersion {
					s.Fatalf("%s of the initial state is at %s, the state at %d", name, version, revision)
				}
			}
			continue
		case event.Type == watch.Added && !known, event.Type == watch.Modified && known:
			s.state[name] = object.ResourceVersion
		case event.Type == watch.Deleted && known:
			delete(s.state, name)
		default:
			s.Fatalf("%s %s, which was known: %v (%s)", event.Type, name, known, before)
		}
		if s.snapshot > 0 {
			s.revision = revision
		}
	}
}

// TestInformer runs client-go's informer on no rows, one and many, and lets the
// rows change beneath it. Its two ways of getting the initial state are a stream
// and pages of a list.
func TestInformer(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		for _, n := range []int{0, 1, 10_000} {
			t.Run(fmt.Sprintf("streaming=%v/%d", streaming, n), func(t *testing.T) {
				clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, streaming)
				testInformer(t, n)
			})
		}
	}
}

func testInformer(t *testing.T, n int) {
	s := start(t)
	if n > 0 {
		s.put(podNames(n)...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
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
}
