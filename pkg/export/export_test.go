package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

func finding(name string, result v1alpha1.Result, messages ...string) *v1alpha1.Finding {
	f := &v1alpha1.Finding{
		Constraint:        v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "NeedLabel", Name: "owner"},
		Resource:          v1alpha1.ResourceReference{APIGroup: "apps", APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: name},
		EnforcementAction: "scoped", EnforcementActions: []string{"deny", "warn"},
		Result: result,
	}
	if result != v1alpha1.ResultFail {
		f.Message = messages[0]
		return f
	}
	for _, message := range messages {
		f.Violations = append(f.Violations, v1alpha1.Violation{Message: message, Details: &runtime.RawExtension{Raw: []byte(`{"missing":["<owner>"]}`)}})
	}
	return f
}

// TestSchema has exactly the fields of Gatekeeper's records, with its values.
func TestSchema(t *testing.T) {
	f := finding("cart", v1alpha1.ResultFail, "label <owner> is missing")
	text, err := json.Marshal(changed("2026-12-03T12:00:00Z", nil, f))
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{
		"id": "2026-12-03T12:00:00Z", "eventType": "violation_audited", "details": map[string]any{"missing": []any{"<owner>"}},
		"group": "constraints.gatekeeper.sh", "version": "v1beta1", "kind": "NeedLabel", "name": "owner",
		"message": "label <owner> is missing", "enforcementAction": "scoped", "enforcementActions": []any{"deny", "warn"},
		"resourceGroup": "apps", "resourceAPIVersion": "v1", "resourceKind": "Deployment", "resourceNamespace": "shop", "resourceName": "cart",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f.Constraint.Engine, f.Resource.APIVersion = "ValidatingAdmissionPolicy", "v1"
	if r := changed("", nil, f)[0]; r.Group != "admissionregistration.k8s.io" || r.Version != "v1" || r.Kind != "ValidatingAdmissionPolicyBinding" || r.ResourceAPIVersion != "v1" {
		t.Errorf("of Kubernetes' own policies: %+v", r)
	}
}

func TestChanged(t *testing.T) {
	fail := func(messages ...string) *v1alpha1.Finding { return finding("x", v1alpha1.ResultFail, messages...) }
	broken, waiting := finding("x", v1alpha1.ResultError, "boom"), finding("x", v1alpha1.ResultDeferred, "wait")
	denied, detailed := fail("a"), fail("a")
	denied.EnforcementAction = "deny"
	detailed.Violations[0].Details = nil
	for name, test := range map[string]struct {
		before, after *v1alpha1.Finding
		want          []string
	}{
		"new":              {nil, fail("a", "b"), []string{"violation_audited a", "violation_audited b"}},
		"gone":             {fail("a", "b"), nil, []string{"violation_resolved a", "violation_resolved b"}},
		"other violations": {fail("a", "b"), fail("b", "c"), []string{"violation_resolved a", "violation_audited c"}},
		"only times":       {fail("a"), fail("a"), nil},
		"other action":     {fail("a"), denied, []string{"violation_audited a"}},
		"other details":    {fail("a"), detailed, []string{"violation_audited a"}},
		"an error":         {nil, broken, []string{"evaluation_error boom"}},
		"error after fail": {fail("a"), broken, []string{"evaluation_error boom"}},
		"fail after error": {broken, fail("a"), []string{"evaluation_resolved boom", "violation_audited a"}},
		"error is gone":    {broken, nil, []string{"evaluation_resolved boom"}},
		"another error":    {broken, finding("x", v1alpha1.ResultError, "bang"), []string{"evaluation_resolved boom", "evaluation_error bang"}},
		"it waits":         {broken, waiting, []string{"evaluation_resolved boom", "evaluation_deferred wait"}},
		"nothing":          {nil, nil, nil},
	} {
		var got []string
		for _, r := range changed("id", test.before, test.after) {
			got = append(got, r.EventType+" "+r.Message)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// reader is a consumer that is slow, and fails, at times. It keeps what is there.
type reader struct {
	mu      sync.Mutex
	random  *rand.Rand
	rest    string
	state   map[string]bool
	next    map[string]bool // while all findings are being written, else nil
	dropped int
	frames  int
	invalid int
	hold    chan struct{} // closed when writes may go on; nil if they may
}

func (r *reader) Write(text []byte) (int, error) {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		<-hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(text)
	var err error
	if r.random.IntN(20) == 0 {
		n, err = r.random.IntN(n), errors.New("disk full")
	}
	r.rest += string(text[:n])
	for {
		line, rest, ok := strings.Cut(r.rest, "\n")
		if !ok {
			return n, err
		}
		r.rest = rest
		r.line(line)
	}
}

func (r *reader) line(line string) {
	var record Record
	if err := json.Unmarshal([]byte(line), &record); err != nil {
		r.invalid++
		return
	}
	key := record.ResourceName + ": " + record.Message
	state := r.state
	if r.next != nil {
		state = r.next
	}
	switch {
	case record.Message == messageStarted:
		r.next = map[string]bool{}
		r.frames++
	case record.Message == messageCompleted:
		r.state, r.next = r.next, nil
	case record.EventType == EventViolation:
		state[key] = true
	case record.EventType == EventResolved:
		delete(state, key)
	case record.EventType == EventDropped:
		r.dropped++
	}
}

// TestFollowing has a consumer that applies the lines have what the index has, whatever
// happens to the two on the way.
func TestFollowing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	var offset time.Duration
	var clock sync.Mutex
	db := indextest.MustOpen(t, rows.Schemas(), func(o *index.Options) {
		o.Now = func() time.Time { clock.Lock(); defer clock.Unlock(); return time.Now().Add(offset) }
	})
	changes := feed.New(db)
	out := &reader{random: rand.New(rand.NewPCG(seed, 1)), state: map[string]bool{}}
	ready := make(chan struct{})
	e := New(Config{Index: db, Feed: changes, Ready: ready, Out: out, Clock: fastClock{}})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	want := map[string]bool{}
	held := 0
	for round := range 300 {
		if round == 20 {
			close(ready)
		}
		if round%60 == 59 {
			// Nobody reads for longer than the history window.
			hold := make(chan struct{})
			out.mu.Lock()
			out.hold = hold
			out.mu.Unlock()
			held++
			for range 30 {
				change(t, random, db, want)
			}
			// More than the feed remembers itself, so that the index is asked.
			bulk(t, db)
			clock.Lock()
			offset += time.Hour
			clock.Unlock()
			if err := db.Compact(ctx); err != nil {
				t.Fatal(err)
			}
			out.mu.Lock()
			out.hold = nil
			out.mu.Unlock()
			close(hold)
		}
		change(t, random, db, want)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		out.mu.Lock()
		diff := cmp.Diff(want, out.state)
		dropped, frames, invalid := out.dropped, out.frames, out.invalid
		out.mu.Unlock()
		if diff == "" {
			t.Logf("seed %d: %d times changes were dropped, %d times all findings written, %d lines cut short", seed, dropped, frames, invalid)
			if dropped == 0 || dropped > held || frames < dropped+1 {
				t.Errorf("seed %d: %d times changes were dropped of %d, %d times all findings written", seed, dropped, held, frames)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("seed %d: what the lines say (-index +lines):\n%s", seed, diff)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// change changes a finding.
func change(t *testing.T, random *rand.Rand, db *index.DB, want map[string]bool) {
	t.Helper()
	name := fmt.Sprintf("x%d", random.IntN(20))
	maps.DeleteFunc(want, func(key string, _ bool) bool { return strings.HasPrefix(key, name+": ") })
	var messages []string
	for _, message := range []string{"a", "b\nc", "<d>"} {
		if random.IntN(2) == 0 {
			messages = append(messages, message)
			want[name+": "+message] = true
		}
	}
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		if len(messages) > 0 {
			return put(tx, finding(name, v1alpha1.ResultFail, messages...))
		}
		if err := tx.Delete(rows.AuditResults, index.Key{Namespace: "shop", Name: name}); !errors.Is(err, index.ErrNotFound) {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// bulk makes a great many changes of another table.
func bulk(t *testing.T, db *index.DB) {
	t.Helper()
	_, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for i := range 17_000 {
			row, err := rows.Encode(&v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run"}, Listed: int64(i + 1 + int(db.Revision()))})
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

func put(tx *index.Tx, f *v1alpha1.Finding) error {
	row, err := rows.Encode(&v1alpha1.AuditResult{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: f.Resource.Name}, Finding: *f})
	if err != nil {
		return err
	}
	return tx.Put(row.Table, row.Key, row.Value, row.Attrs)
}

// TestNobodyReads ends when it is told to, also if a write does not.
func TestNobodyReads(t *testing.T) {
	db := indextest.MustOpen(t, rows.Schemas())
	hold := make(chan struct{})
	defer close(hold)
	ready := make(chan struct{})
	close(ready)
	out := &reader{random: rand.New(rand.NewPCG(1, 1)), state: map[string]bool{}, hold: hold}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); New(Config{Index: db, Feed: feed.New(db), Ready: ready, Out: out}).Run(ctx) }()
	stop()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

// TestFile goes on with a new file when the old one is moved away, and appends to one
// that is there.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "findings.jsonl")
	if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("two\n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write("three\n")
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
	write("four\n")
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]string{path + ".1": "before\none\n", path: "three\nfour\n"} {
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, []byte(want)) {
			t.Errorf("%s has %q, %v; want %q", file, got, err, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := OpenFile(filepath.Join(path, "x")); err == nil {
		t.Error("a file below a file was opened")
	}
}
