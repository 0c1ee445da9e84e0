package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/pkg/source"
)

// configMaps is the kind that the fake server has.
var configMaps = source.Kind{
	GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	Resource:         "configmaps",
	Namespaced:       true,
}

// fakeEvent is a change in the history of the fake server.
type fakeEvent struct {
	rv   int
	typ  string
	name string
}

// fakeServer speaks list, watch and WatchList for config maps of one namespace.
type fakeServer struct {
	*httptest.Server

	mu          sync.Mutex
	rv          int
	objects     map[string]int // name to resource version
	history     []fakeEvent
	oldest      int             // watches and continue tokens before this version are expired
	pages       map[string]page // by continue token
	changed     chan struct{}   // closed and replaced at each change
	cut         chan struct{}   // closed and replaced to end all watches
	partial     bool            // has metadata only
	noWatchList bool            // answers 400 to sendInitialEvents
	noBookmark  bool            // never ends initial events
	requests    []url.Values    // of all lists and watches
	intercept   func(w http.ResponseWriter, q url.Values) bool
	extra       chan string // raw events for open watches
}

// page is what a continue token stands for.
type page struct {
	rv    int
	names []string
	all   map[string]int
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{
		rv:      100,
		objects: map[string]int{},
		pages:   map[string]page{},
		changed: make(chan struct{}),
		cut:     make(chan struct{}),
		extra:   make(chan string),
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.cutWatches()
		s.Server.CloseClientConnections()
		s.Server.Close()
	})
	return s
}

// source returns a source over the server with short times.
func (s *fakeServer) source(t *testing.T, change func(*rest.Config, *tuning)) *Source {
	t.Helper()
	cfg := &rest.Config{Host: s.URL}
	opts := Options{QPS: -1, tuning: tuning{
		pageSize: 2,
		backoff:  wait.Backoff{Duration: time.Millisecond, Cap: 5 * time.Millisecond, Steps: 10, Factor: 2},
	}}
	if change != nil {
		change(cfg, &opts.tuning)
	}
	src, err := New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// set creates or changes objects.
func (s *fakeServer) set(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		typ := "ADDED"
		if _, ok := s.objects[name]; ok {
			typ = "MODIFIED"
		}
		s.rv++
		s.objects[name] = s.rv
		s.history = append(s.history, fakeEvent{s.rv, typ, name})
	}
	s.notify()
}

// remove deletes an object.
func (s *fakeServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[name]; !ok {
		return
	}
	s.rv++
	delete(s.objects, name)
	s.history = append(s.history, fakeEvent{s.rv, "DELETED", name})
	s.notify()
}

// compact forgets all that is older than now.
func (s *fakeServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv++ // so that a watch that has seen everything is expired as well
	s.oldest = s.rv
	s.history = nil
}

// cutWatches ends all watches, without an error.
func (s *fakeServer) cutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// onRequest sets a function that may answer a request itself, by returning true.
func (s *fakeServer) onRequest(intercept func(w http.ResponseWriter, q url.Values) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = intercept
}

// seen returns the requests so far that the filter selects.
func (s *fakeServer) seen(filter func(url.Values) bool) []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []url.Values
	for _, q := range s.requests {
		if filter(q) {
			out = append(out, q)
		}
	}
	return out
}

// waitForRequests waits until there were n requests that the filter selects.
func (s *fakeServer) waitForRequests(t *testing.T, filter func(url.Values) bool, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); len(s.seen(filter)) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there were %d requests, not %d", len(s.seen(filter)), n)
		}
	}
}

func isList(q url.Values) bool      { return q.Get("watch") == "" }
func isWatchList(q url.Values) bool { return q.Get("sendInitialEvents") == "true" }
func isWatch(q url.Values) bool     { return !isList(q) && !isWatchList(q) }

// notify wakes the watches. The caller holds mu.
func (s *fakeServer) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// state returns what objects there are.
func (s *fakeServer) state() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects)
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/api/v1/configmaps" {
		http.NotFound(w, r)
		return
	}
	q := r.URL.Query()
	s.mu.Lock()
	s.requests = append(s.requests, q)
	intercept := s.intercept
	s.mu.Unlock()
	if intercept != nil && intercept(w, q) {
		return
	}
	if isList(q) {
		s.list(w, q)
		return
	}
	s.watch(w, r, q)
}

func (s *fakeServer) list(w http.ResponseWriter, q url.Values) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := page{rv: s.rv, names: slices.Sorted(maps.Keys(s.objects)), all: maps.Clone(s.objects)}
	if token := q.Get("continue"); token != "" {
		p = s.pages[token]
		if p.rv < s.oldest {
			writeStatus(w, http.StatusGone, metav1.StatusReasonExpired, "the continue token is too old")
			return
		}
	}
	limit, _ := strconv.Atoi(q.Get("limit"))
	token := ""
	names := p.names
	if limit > 0 && len(names) > limit {
		token = fmt.Sprintf("%d-%s", p.rv, names[limit])
		s.pages[token] = page{rv: p.rv, names: names[limit:], all: p.all}
		names = names[:limit]
	}
	items := []any{}
	for _, name := range names {
		items = append(items, s.object(name, p.all[name], false))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": map[bool]string{false: "ConfigMapList", true: "PartialObjectMetadataList"}[s.partial], "apiVersion": map[bool]string{false: "v1", true: "meta.k8s.io/v1"}[s.partial],
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(p.rv), "continue": token},
		"items":    items,
	})
}

func (s *fakeServer) watch(w http.ResponseWriter, r *http.Request, q url.Values) {
	s.mu.Lock()
	cut := s.cut
	since, _ := strconv.Atoi(q.Get("resourceVersion"))
	var initial []any
	switch {
	case isWatchList(q) && s.noWatchList:
		s.mu.Unlock()
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "sendInitialEvents is forbidden")
		return
	case isWatchList(q):
		for _, name := range slices.Sorted(maps.Keys(s.objects)) {
			initial = append(initial, eventJSON("ADDED", s.object(name, s.objects[name], true)))
		}
		if since = s.rv; !s.noBookmark {
			initial = append(initial, s.bookmark())
		}
	case since < s.oldest:
		s.mu.Unlock()
		writeStatus(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
		return
	}
	s.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	flush := w.(http.Flusher).Flush
	for _, event := range initial {
		_ = out.Encode(event)
	}
	flush()
	for {
		s.mu.Lock()
		changed := s.changed
		var events []any
		expired := since < s.oldest
		for _, e := range s.history {
			if e.rv > since {
				events = append(events, eventJSON(e.typ, s.object(e.name, e.rv, true)))
				since = e.rv
			}
		}
		s.mu.Unlock()
		if expired {
			events = []any{eventJSON("ERROR", statusJSON(http.StatusGone, metav1.StatusReasonExpired, "compacted"))}
		}
		for _, event := range events {
			_ = out.Encode(event)
		}
		flush()
		if expired {
			return
		}
		select {
		case <-changed:
		case raw := <-s.extra:
			_, _ = w.Write([]byte(raw + "\n"))
			flush()
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// object is what the server has of an object.
func (s *fakeServer) object(name string, rv int, typed bool) map[string]any {
	obj := objectJSON(name, rv, typed)
	if s.partial {
		delete(obj, "data")
		obj["apiVersion"], obj["kind"] = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return obj
}

// bookmark is the one that ends initial events.
func (s *fakeServer) bookmark() map[string]any {
	event := bookmarkJSON(s.rv, true)
	if s.partial {
		obj := event["object"].(map[string]any)
		obj["apiVersion"], obj["kind"] = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return event
}

func objectJSON(name string, rv int, typed bool) map[string]any {
	obj := map[string]any{
		"metadata": map[string]any{"namespace": "ns", "name": name, "uid": "uid-" + name, "resourceVersion": strconv.Itoa(rv)},
		"data":     map[string]any{"payload": "of " + name},
	}
	if typed { // items of a list of a built-in kind say nothing
		obj["apiVersion"], obj["kind"] = "v1", "ConfigMap"
	}
	return obj
}

func eventJSON(typ string, obj any) map[string]any {
	return map[string]any{"type": typ, "object": obj}
}

func bookmarkJSON(rv int, initialEnd bool) map[string]any {
	meta := map[string]any{"resourceVersion": strconv.Itoa(rv)}
	if initialEnd {
		meta["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
	}
	return eventJSON("BOOKMARK", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
}

func statusJSON(code int, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(statusJSON(code, reason, message))
}
