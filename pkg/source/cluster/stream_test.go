package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/pkg/source"
)

func TestStreamWatchList(t *testing.T) {
	server := newFakeServer(t)
	server.set("a", "b")
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	r.waitFor("Listed")
	server.set("c", "a")
	server.remove("b")
	r.waitFor("Delete b")
	r.expect("ListStarted", "Upsert a@101", "Upsert b@102", "Listed 102", "Upsert c@103", "Upsert a@104", "Delete b")
	if lists := server.seen(isList); len(lists) != 0 {
		t.Errorf("lists: %v", lists)
	}
}

func TestStreamOfNothing(t *testing.T) {
	for _, noWatchList := range []bool{false, true} {
		server := newFakeServer(t)
		server.noWatchList = noWatchList
		r := newRecorder(t)
		stream(t, server.source(t, nil), r)
		r.waitFor("Listed")
		r.expect("ListStarted", "Listed 100")
	}
}

func TestStreamResumesWithoutList(t *testing.T) {
	for _, noWatchList := range []bool{false, true} {
		t.Run(fmt.Sprintf("noWatchList=%v", noWatchList), func(t *testing.T) {
			server := newFakeServer(t)
			server.noWatchList = noWatchList
			server.set("a")
			r := newRecorder(t)
			stream(t, server.source(t, nil), r)
			r.waitFor("Listed")
			for i := range 3 {
				name := fmt.Sprint("new", i)
				server.set(name) // an event, so that the watch does not count as very short
				r.waitFor("Upsert " + name)
				resumed := len(server.seen(isWatch)) + 1
				server.cutWatches()
				server.waitForRequests(t, isWatch, resumed)
				server.set(name)
				r.waitFor("Upsert "+name, "Upsert "+name)
			}
			calls := r.waitFor("Listed")
			if count(calls, "ListStarted") != 1 || count(calls, "Failed") != 0 || count(calls, "Upsert") != 7 {
				t.Errorf("calls: %v", calls)
			}
			watches := server.seen(isWatch)
			if got := watches[len(watches)-1].Get("resourceVersion"); got != "106" {
				t.Errorf("the last watch resumes at %s", got)
			}
		})
	}
}

func TestStreamListsInPages(t *testing.T) {
	server := newFakeServer(t)
	server.noWatchList = true
	server.set("a", "b", "c", "d", "e")
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	r.waitFor("Listed")
	server.set("f")
	r.waitFor("Upsert f")
	r.expect("ListStarted", "Upsert a@101", "Upsert b@102", "Upsert c@103", "Upsert d@104", "Upsert e@105", "Listed 105", "Upsert f@106")
	lists := server.seen(isList)
	if len(lists) != 3 {
		t.Fatalf("lists: %v", lists)
	}
	for i, q := range lists {
		if q.Get("limit") != "2" || q.Has("resourceVersion") || q.Has("continue") != (i > 0) {
			t.Errorf("list %d: %v", i, q)
		}
	}
}

func TestStreamListExpires(t *testing.T) {
	server := newFakeServer(t)
	server.noWatchList = true
	server.set("a", "b", "c")
	server.onRequest(func(_ http.ResponseWriter, q url.Values) bool {
		if q.Has("continue") {
			server.remove("a")
			server.compact()
		}
		return false
	})
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	calls := r.waitFor("Listed")
	if !strings.Contains(calls[3], "expired") {
		t.Errorf("the failure is %q", calls[3])
	}
	r.expect("ListStarted", "Upsert a@101", "Upsert b@102", calls[3], "ListStarted", "Upsert b@102", "Upsert c@103", "Listed 105")
	lists := server.seen(isList)
	if last := lists[len(lists)-1]; last.Has("limit") || last.Has("continue") {
		t.Errorf("the last list is %v", last)
	}
}

func TestStreamForbidden(t *testing.T) {
	server := newFakeServer(t)
	server.set("a")
	var refused atomic.Int32
	server.onRequest(func(w http.ResponseWriter, _ url.Values) bool {
		if refused.Add(1) > 4 {
			return false
		}
		writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "you may not")
		return true
	})
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	calls := r.waitFor("Failed", "Failed", "Listed")
	if !strings.Contains(calls[0], "you may not") || count(calls, "ListStarted") != 1 {
		t.Errorf("calls: %v", calls)
	}
}

func TestStreamMayListButNotWatch(t *testing.T) {
	server := newFakeServer(t)
	server.set("a")
	server.onRequest(func(w http.ResponseWriter, q url.Values) bool {
		if isList(q) {
			return false
		}
		writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "you may not watch")
		return true
	})
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	r.waitFor("ListStarted", "Upsert a", "Listed", "Failed: you may not watch", "ListStarted", "Upsert a", "Listed", "Failed")
}

func TestStreamExpiredWatch(t *testing.T) {
	server := newFakeServer(t)
	server.set("a", "b")
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	r.waitFor("Listed")
	server.remove("a")
	r.waitFor("Delete a")
	server.compact()
	server.set("c") // wakes the watch
	calls := r.waitFor("Listed", "Listed")
	if count(calls, "Failed") != 0 {
		t.Errorf("expiry is no failure: %v", calls)
	}
	r.waitState(server.state())
}

func TestStreamErrorEvents(t *testing.T) {
	for _, test := range []struct {
		name, event, failure string
	}{
		{"server error", `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"InternalError","message":"etcd is gone"}}`, "etcd is gone"},
		{"half an event", `{"type":"ADDED","object":{"kind":"ConfigMap",`, ""},
		{"no JSON", `this is not an event`, "unable to decode"},
		{"object without kind", `{"type":"ADDED","object":{"metadata":{"name":"x"}}}`, "Kind"},
		{"object without name", `{"type":"ADDED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}}`, "without a name"},
		{"metadata is no object", `{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":7}}`, "without a name"},
		{"status as an object", `{"type":"ADDED","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure"}}`, "Status"},
		{"unknown type", `{"type":"RENAMED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}}`, "RENAMED"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newFakeServer(t)
			server.set("a")
			r := newRecorder(t)
			stream(t, server.source(t, nil), r)
			r.waitFor("Listed")
			server.extra <- test.event
			if test.failure == "" {
				server.cutWatches() // the connection broke in the middle of an event
				server.set("b")
				r.waitFor("Upsert b")
				return
			}
			calls := r.waitFor("Listed", "Failed", "ListStarted", "Upsert a", "Listed")
			if failed := calls[3]; !strings.Contains(failed, test.failure) {
				t.Errorf("failure is %q, want %q", failed, test.failure)
			}
			server.set("b")
			r.waitFor("Upsert b")
		})
	}
}

// A watch that begins with initial events may have further events before the
// bookmark.
func TestStreamChangesDuringInitialEvents(t *testing.T) {
	server := newFakeServer(t)
	server.noBookmark = true
	server.set("a", "b", "c")
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	r.waitFor("Upsert c")
	server.remove("a")
	server.remove("b")
	server.set("b")
	r.waitFor("Upsert b", "Upsert b")
	server.extra <- `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"106","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	r.waitFor("Listed", "Delete a")
	r.expect("ListStarted", "Upsert a@101", "Upsert b@102", "Upsert c@103", "Upsert b@106", "Listed 106", "Delete a")
}

func TestStreamInterruptedInitialEvents(t *testing.T) {
	server := newFakeServer(t)
	server.noBookmark = true
	server.set("a")
	r := newRecorder(t)
	stream(t, server.source(t, nil), r)
	r.waitFor("Upsert a")
	server.mu.Lock()
	server.noBookmark = false
	server.mu.Unlock()
	server.cutWatches()
	r.waitFor("Listed")
	r.expect("ListStarted", "Upsert a@101", "Failed: "+errInterrupted.Error(), "ListStarted", "Upsert a@101", "Listed 101")
}

// A server that does not know WatchList may ignore the parameter; the bookmark then
// never comes.
func TestStreamWithoutBookmark(t *testing.T) {
	server := newFakeServer(t)
	server.noBookmark = true
	server.set("a")
	r := newRecorder(t)
	stream(t, server.source(t, func(_ *rest.Config, tuning *tuning) { tuning.initialStall = 50 * time.Millisecond }), r)
	r.waitFor("ListStarted", "Upsert a", "Failed", "ListStarted", "Upsert a", "Listed")
	server.set("b")
	r.waitFor("Upsert b")
	server.compact()
	server.set("c")
	calls := r.waitFor("Listed", "Listed")
	if count(calls, "Failed") != 1 || len(server.seen(isWatchList)) != 1 {
		t.Errorf("initial events are asked for again: %v", calls)
	}
}

// refusing is a transport that can be told to refuse connections.
type refusing struct {
	http.RoundTripper
	refuse  atomic.Bool
	refused atomic.Int32
}

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.refuse.Load() {
		r.refused.Add(1)
		return nil, syscall.ECONNREFUSED
	}
	return r.RoundTripper.RoundTrip(req)
}

func TestStreamServerRestarts(t *testing.T) {
	for _, test := range []struct {
		name   string
		grace  time.Duration
		failed bool
	}{
		{"shortly", time.Minute, false},
		{"for long", time.Nanosecond, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newFakeServer(t)
			server.set("a")
			var transport refusing
			s := server.source(t, func(cfg *rest.Config, tuning *tuning) {
				cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
					transport.RoundTripper = rt
					return &transport
				})
				tuning.watchGrace = test.grace
			})
			r := newRecorder(t)
			stream(t, s, r)
			r.waitFor("Listed")
			server.set("b")
			r.waitFor("Upsert b")
			transport.refuse.Store(true)
			server.cutWatches()
			for transport.refused.Load() < 5 {
				time.Sleep(time.Millisecond)
			}
			transport.refuse.Store(false)
			server.remove("a")
			r.waitState(server.state())
			calls := r.waitFor("Upsert b")
			if failed := count(calls, "Failed") > 0; failed != test.failed {
				t.Errorf("calls: %v", calls)
			}
			if lists := count(calls, "ListStarted"); (lists > 1) != test.failed {
				t.Errorf("%d lists: %v", lists, calls)
			}
		})
	}
}

// The server is down from the start: the handler must hear of it, and the stream
// must end at once when it should.
func TestStreamServerIsDown(t *testing.T) {
	server := newFakeServer(t)
	transport := refusing{}
	transport.refuse.Store(true)
	s := server.source(t, func(cfg *rest.Config, _ *tuning) {
		cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return &transport })
	})
	r := newRecorder(t)
	stop := stream(t, s, r)
	r.waitFor("Failed: ", "Failed: ")
	stop()
}

func TestStreamEndsAfterLastCall(t *testing.T) {
	for _, noWatchList := range []bool{false, true} {
		server := newFakeServer(t)
		server.noWatchList = noWatchList
		server.set("a", "b", "c", "d")
		entered, release := make(chan struct{}), make(chan struct{})
		r := newRecorder(t)
		var once sync.Once
		r.hook = func(call string) {
			if strings.HasPrefix(call, "Upsert a") {
				once.Do(func() { close(entered) })
				<-release
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			server.source(t, nil).Stream(ctx, configMaps, r)
		}()
		<-entered
		cancel()
		select {
		case <-done:
			t.Error("Stream returned during a call")
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		<-done
		r.mu.Lock()
		calls := len(r.calls)
		r.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		r.mu.Lock()
		if len(r.calls) != calls {
			t.Errorf("calls after Stream returned: %v", r.calls[calls:])
		}
		r.mu.Unlock()
	}
}

// discard is a handler that drops everything.
type discard struct{}

func (discard) ListStarted()                      {}
func (discard) Upsert(*unstructured.Unstructured) {}
func (discard) Delete(source.ObjectKey)           {}
func (discard) Listed(string)                     {}
func (discard) Failed(error)                      {}

// What the reflector keeps is what it gets, so it must not get objects.
func TestReflectorGetsNoObjects(t *testing.T) {
	server := newFakeServer(t)
	server.set("a", "b", "c", "d", "e")
	s := server.source(t, nil)
	lw := &listWatch{
		resource: s.dynamic.Resource(configMaps.GroupVersionResource()),
		kind:     configMaps,
		out:      &delivery{handler: discard{}},
		tuning:   s.tuning,
	}

	list, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	if l := list.(*metav1.PartialObjectMetadataList); len(l.Items) != 0 || l.ResourceVersion != "105" || l.Continue != "" {
		t.Errorf("list: %+v", l)
	}

	sendInitialEvents := true
	w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: &sendInitialEvents, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	event := <-w.ResultChan()
	stub := event.Object.(*metav1.PartialObjectMetadata)
	if event.Type != watch.Bookmark || stub.ResourceVersion != "105" || stub.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("the first event is %+v", event)
	}
	server.set("a")
	server.remove("b")
	for _, want := range []watch.Event{
		{Type: watch.Modified, Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "106"}}},
		{Type: watch.Deleted, Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "107"}}},
	} {
		got := <-w.ResultChan()
		if fmt.Sprintf("%+v %+v", got.Type, got.Object) != fmt.Sprintf("%+v %+v", want.Type, want.Object) {
			t.Errorf("event %+v, want %+v", got, want)
		}
	}
}

// Whatever goes wrong on the way, the handler ends up with what the server has, and
// the grammar is kept, which the recorder checks.
func TestStreamConverges(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			server := newFakeServer(t)
			server.noWatchList = seed%2 == 1
			var faults atomic.Int32
			server.onRequest(func(w http.ResponseWriter, q url.Values) bool {
				switch n := faults.Add(1); {
				case n%5 == 0:
					writeStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "a fault")
				case n%7 == 0 && q.Has("continue"):
					writeStatus(w, http.StatusGone, metav1.StatusReasonExpired, "a fault")
				case n%11 == 0:
					panic(http.ErrAbortHandler)
				default:
					return false
				}
				return true
			})
			r := newRecorder(t)
			stream(t, server.source(t, nil), r)
			for range 300 {
				name := fmt.Sprint("o", rnd.IntN(12))
				switch rnd.IntN(12) {
				case 0:
					server.cutWatches()
				case 1:
					server.compact()
				case 2, 3, 4:
					server.remove(name)
				default:
					server.set(name)
				}
				if rnd.IntN(4) == 0 {
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
				}
			}
			server.onRequest(nil)
			r.waitState(server.state())
		})
	}
}
