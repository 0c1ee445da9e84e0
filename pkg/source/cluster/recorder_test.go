package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/source"
)

// recorder is a handler that writes down its calls, checks the grammar of
// source.Handler and keeps the state that the calls describe.
type recorder struct {
	t      *testing.T
	inside atomic.Bool // a call is under way

	mu      sync.Mutex
	calls   []string
	changed chan struct{} // closed and replaced at each call
	phase   string        // "", "listing" or "live"
	state   map[string]int
	listed  map[string]int // of the list under way
	hook    func(call string)

	// onUpsert gets the objects, which need not be whole then.
	onUpsert func(obj *unstructured.Unstructured)
}

var _ source.Handler = (*recorder)(nil)

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, changed: make(chan struct{}), state: map[string]int{}}
}

// record notes a call that is allowed in the given phases and leads to next.
func (r *recorder) record(call string, phases []string, next string, apply func()) {
	if !r.inside.CompareAndSwap(false, true) {
		r.t.Errorf("%s while another call is under way", call)
	}
	defer r.inside.Store(false)
	r.mu.Lock()
	hook := r.hook
	if !slices.Contains(phases, r.phase) {
		r.t.Errorf("%s in phase %q, after %v", call, r.phase, r.calls)
	}
	r.phase = next
	apply()
	r.calls = append(r.calls, call)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if hook != nil {
		hook(call)
	}
}

func (r *recorder) ListStarted() {
	r.record("ListStarted", []string{"", "live"}, "listing", func() { r.listed = map[string]int{} })
}

func (r *recorder) Upsert(obj *unstructured.Unstructured) {
	if r.onUpsert != nil {
		r.onUpsert(obj)
	}
	phase := "live"
	r.mu.Lock()
	if r.phase == "listing" {
		phase = "listing"
	}
	r.mu.Unlock()
	if obj.GroupVersionKind() != configMaps.GroupVersionKind {
		r.t.Errorf("object of kind %s", obj.GroupVersionKind())
	}
	if payload, _, _ := unstructured.NestedString(obj.Object, "data", "payload"); payload != "of "+obj.GetName() && r.onUpsert == nil {
		r.t.Errorf("object %s is not whole: %v", obj.GetName(), obj.Object)
	}
	rv, _ := strconv.Atoi(obj.GetResourceVersion())
	r.record(fmt.Sprintf("Upsert %s@%d", obj.GetName(), rv), []string{phase}, phase, func() {
		r.state[obj.GetName()] = rv
		if r.listed != nil {
			r.listed[obj.GetName()] = rv
		}
	})
}

func (r *recorder) Delete(key source.ObjectKey) {
	if key.Namespace != "ns" || string(key.UID) != "uid-"+key.Name {
		r.t.Errorf("key %+v", key)
	}
	r.record("Delete "+key.Name, []string{"live"}, "live", func() { delete(r.state, key.Name) })
}

func (r *recorder) Listed(rv string) {
	r.record("Listed "+rv, []string{"listing"}, "live", func() {
		for name := range r.state {
			if _, ok := r.listed[name]; !ok {
				delete(r.state, name)
			}
		}
		r.listed = nil
	})
}

func (r *recorder) Failed(err error) {
	r.record("Failed: "+err.Error(), []string{"", "listing", "live"}, "", func() { r.listed = nil })
}

// wait returns the calls once cond is true of them.
func (r *recorder) wait(what string, cond func(calls []string) bool) []string {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		calls, changed := slices.Clone(r.calls), r.changed
		r.mu.Unlock()
		if cond(calls) {
			return calls
		}
		select {
		case <-changed:
		case <-deadline:
			r.t.Fatalf("waiting for %s; calls so far:\n%s", what, strings.Join(calls, "\n"))
		}
	}
}

// waitFor returns the calls once one begins with each prefix, in this order.
func (r *recorder) waitFor(prefixes ...string) []string {
	r.t.Helper()
	return r.wait(strings.Join(prefixes, ", "), func(calls []string) bool {
		rest := prefixes
		for _, call := range calls {
			if len(rest) > 0 && strings.HasPrefix(call, rest[0]) {
				rest = rest[1:]
			}
		}
		return len(rest) == 0
	})
}

// waitState waits until the calls describe the given objects.
func (r *recorder) waitState(want map[string]int) {
	r.t.Helper()
	r.wait(fmt.Sprintf("state %v", want), func([]string) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.phase == "live" && maps.Equal(r.state, want)
	})
}

// expect compares all calls so far.
func (r *recorder) expect(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.calls, want) {
		r.t.Errorf("calls:\n  %s\nwant:\n  %s", strings.Join(r.calls, "\n  "), strings.Join(want, "\n  "))
	}
}

// count returns how many calls begin with prefix.
func count(calls []string, prefix string) int {
	n := 0
	for _, call := range calls {
		if strings.HasPrefix(call, prefix) {
			n++
		}
	}
	return n
}

// stream starts a stream to the recorder and returns what ends it.
func stream(t *testing.T, s *Source, h source.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Stream(ctx, configMaps, h)
	}()
	stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("Stream does not return")
		}
	}
	t.Cleanup(stop)
	return stop
}
