package access_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	testingclock "k8s.io/utils/clock/testing"

	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// timed is a fixture whose time passes when the test says so.
type timed struct {
	*fixture
	clock *testingclock.FakeClock
}

func newTimed(t testing.TB, change ...func(*access.Config)) *timed {
	clock := testingclock.NewFakeClock(time.Now())
	f := newFixture(t, append(change, func(config *access.Config) { config.Clock = clock })...)
	return &timed{f, clock}
}

// list lists everything that a user may see, and returns names and revision.
func (f *timed) list(t testing.TB, user string) (names []string, revision uint64) {
	t.Helper()
	page, err := f.view(t, user, rows.AuditResults).List(f.context(user), index.Query{Table: rows.AuditResults})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range page.Rows {
		names = append(names, row.Namespace+"/"+row.Name)
	}
	return names, page.Revision
}

// follow begins a watch as the registry does.
func (f *timed) follow(t testing.TB, user string, from uint64) (context.Context, *access.View, error) {
	t.Helper()
	v := f.view(t, user, rows.AuditResults)
	ctx, stop, err := v.Follow(f.context(user), from)
	if err == nil {
		t.Cleanup(stop)
	}
	return ctx, v, err
}

// wait lets time pass until a watch has ended, and returns after how long and why.
func (f *timed) wait(t testing.TB, ctx context.Context, most time.Duration) (time.Duration, error) {
	t.Helper()
	const step = 500 * time.Millisecond
	passed := time.Duration(0)
	for ; passed <= most; passed += step {
		// What is due happens before time passes on: the watch ends, or it is idle.
		select {
		case <-ctx.Done():
			return passed, context.Cause(ctx)
		case <-time.After(15 * time.Millisecond):
		}
		f.clock.Step(step)
	}
	return passed, nil
}

// TestWatchEnds when what its user may see changes, in whichever way, within the time
// for which answers are used.
func TestWatchEnds(t *testing.T) {
	pod := func(f *timed, t *testing.T) { f.put(t, finding("a", "pod", "later")) }
	for _, test := range []struct {
		name   string
		user   string
		change func(f *timed, t *testing.T)
		ends   bool
	}{
		{"nothing", "tenant", pod, false},
		{"revoked", "tenant", func(f *timed, _ *testing.T) { f.revoke("tenant", grant{"a", "pods"}) }, true},
		{"granted in another namespace", "tenant", func(f *timed, _ *testing.T) { f.grant("tenant", grant{"b", "pods"}) }, true},
		{"granted everything", "tenant", func(f *timed, _ *testing.T) { f.grant("tenant", grant{"", unscoped}) }, true},
		{"refused elsewhere", "tenant", func(f *timed, _ *testing.T) {
			f.cluster.mu.Lock()
			defer f.cluster.mu.Unlock()
			f.refused = []grant{{"a", "pods"}}
		}, true},
		{"somebody else's rights", "tenant", func(f *timed, _ *testing.T) { f.grant("other", grant{"", unscoped}) }, false},
		{"an auditor's", "auditor", func(f *timed, _ *testing.T) { f.revoke("auditor", grant{"", unscoped}) }, true},
		{"nothing of an auditor's", "auditor", pod, false},
	} {
		for narrowing, change := range map[string]func(*access.Config){"rbac": func(*access.Config) {}, "none": unnarrowed} {
			t.Run(test.name+", narrowing="+narrowing, func(t *testing.T) {
				f := newTimed(t, change)
				f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"))
				f.grant("tenant", grant{"a", "pods"})
				f.grant("auditor", grant{"", unscoped})
				ctx, v, err := f.follow(t, test.user, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := v.List(ctx, index.Query{Table: rows.AuditResults}); err != nil {
					t.Fatal(err)
				}
				// Some time before, so that answers are not new.
				if _, err := f.wait(t, ctx, 3*time.Second); err != nil {
					t.Fatalf("the watch ends with %v", err)
				}
				test.change(f, t)
				after, err := f.wait(t, ctx, access.DefaultTTL+time.Second)
				if test.ends && (!errors.Is(err, access.ErrChanged) || after > access.DefaultTTL+time.Second) || !test.ends && err != nil {
					t.Errorf("the watch ends with %v after %v", err, after)
				}
			})
		}
	}
}

// TestResume watches from a revision: only from one since which nothing has changed.
func TestResume(t *testing.T) {
	f := newTimed(t)
	f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"})
	f.grant("auditor", grant{"", unscoped})
	resumes := func(user string, from uint64, want bool) {
		t.Helper()
		if _, _, err := f.follow(t, user, from); (err == nil) != want || err != nil && !errors.Is(err, access.ErrChanged) {
			t.Errorf("watch of %s from %d: %v", user, from, err)
		}
	}
	past := f.db.Revision()
	resumes("tenant", past, false) // of a list that is not known: made before a restart
	resumes("auditor", past, true)
	_, listed := f.list(t, "tenant")
	resumes("tenant", listed, true)
	later := f.put(t, finding("a", "pod", "q"))
	resumes("tenant", listed, true)
	resumes("tenant", later, true)

	f.clock.Step(access.DefaultTTL)
	f.grant("tenant", grant{"b", "pods"})
	resumes("tenant", later, false)
	resumes("tenant", later, false)
	names, relisted := f.list(t, "tenant")
	if len(names) != 3 || relisted != later {
		t.Errorf("the list is %q at %d", names, relisted)
	}
	resumes("tenant", relisted, true) // though nothing was written in between
	resumes("tenant", listed, false)

	f.clock.Step(access.DefaultTTL)
	f.grant("tenant", grant{"", unscoped})
	resumes("tenant", relisted, false)
	_, relisted = f.list(t, "tenant")
	resumes("tenant", relisted, true)
}

// TestRevokedBetweenWatches has no watch open when the authorizer changes its mind.
func TestRevokedBetweenWatches(t *testing.T) {
	f := newTimed(t, unnarrowed)
	f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"}, grant{"b", "pods"})
	_, listed := f.list(t, "tenant")
	ctx, cancel := context.WithCancel(f.context("tenant"))
	_, stop, err := f.view(t, "tenant", rows.AuditResults).Follow(ctx, listed)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	cancel()
	f.revoke("tenant", grant{"b", "pods"})
	f.clock.Step(access.DefaultTTL)
	if _, _, err := f.follow(t, "tenant", listed); !errors.Is(err, access.ErrChanged) {
		t.Errorf("the watch resumes: %v", err)
	}
	names, relisted := f.list(t, "tenant")
	if fmt.Sprint(names) != "[a/p]" {
		t.Errorf("the list is %q", names)
	}
	if _, _, err := f.follow(t, "tenant", relisted); err != nil {
		t.Error(err)
	}
}

// TestEpoch is the same for the pages of a list, until what the user may see changes.
func TestEpoch(t *testing.T) {
	f := newTimed(t)
	f.put(t, finding("a", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"})
	f.grant("auditor", grant{"", unscoped})
	first := f.view(t, "tenant", rows.AuditResults).Epoch()
	f.clock.Step(access.DefaultTTL)
	f.list(t, "tenant")
	if epoch := f.view(t, "tenant", rows.AuditResults).Epoch(); epoch != first || epoch == "" {
		t.Errorf("the epoch was %q and is %q", first, epoch)
	}
	if other := f.view(t, "other", rows.AuditResults).Epoch(); other == first {
		t.Error("two users have the same epoch")
	}
	f.revoke("tenant", grant{"a", "pods"})
	if epoch := f.view(t, "tenant", rows.AuditResults).Epoch(); epoch == first {
		t.Error("the epoch is the same after a change")
	}
	if epoch := f.view(t, "auditor", rows.AuditResults).Epoch(); epoch != "" {
		t.Errorf("an auditor has the epoch %q", epoch)
	}
}

// TestWatchWithoutAnswers ends when the authorizer does not answer any more, but not for
// a moment of that.
func TestWatchWithoutAnswers(t *testing.T) {
	f := newTimed(t)
	f.put(t, finding("a", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"})
	ctx, v, err := f.follow(t, "tenant", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.List(ctx, index.Query{Table: rows.AuditResults}); err != nil {
		t.Fatal(err)
	}
	breaks := func(broken bool) {
		f.cluster.mu.Lock()
		defer f.cluster.mu.Unlock()
		f.broken = nil
		if broken {
			f.broken = func(authorizer.Attributes) bool { return true }
		}
	}
	if _, err := f.wait(t, ctx, access.DefaultTTL-3*time.Second); err != nil {
		t.Fatal(err)
	}
	breaks(true)
	if _, err := f.wait(t, ctx, 6*time.Second); err != nil {
		t.Fatalf("the watch ends with %v", err)
	}
	breaks(false)
	if _, err := f.wait(t, ctx, 2*access.DefaultTTL); err != nil {
		t.Fatalf("the watch ends with %v", err)
	}
	breaks(true)
	if _, err := f.wait(t, ctx, 3*access.DefaultTTL); !errors.Is(err, access.ErrUnavailable) {
		t.Errorf("the watch ends with %v", err)
	}
	if _, err := f.access.View(f.context("tenant"), rows.AuditResults); !errors.Is(err, access.ErrUnavailable) {
		t.Errorf("a new request: %v", err)
	}
}

// TestSharedAnswers serves many watches of one user with one set of answers.
func TestSharedAnswers(t *testing.T) {
	f := newTimed(t)
	f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"}, grant{"b", "pods"})
	var last context.Context
	for range 20 {
		ctx, v, err := f.follow(t, "tenant", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.List(ctx, index.Query{Table: rows.AuditResults}); err != nil {
			t.Fatal(err)
		}
		last = ctx
	}
	if asked := f.take(); len(asked) != 3 {
		t.Errorf("20 watches ask %q", asked)
	}
	if _, err := f.wait(t, last, access.DefaultTTL); err != nil {
		t.Fatal(err)
	}
	if asked := f.take(); len(asked) != 3 {
		t.Errorf("in %v they ask %q", access.DefaultTTL, asked)
	}
}

// TestForgottenNamespaces are not asked about for ever.
func TestForgottenNamespaces(t *testing.T) {
	f := newTimed(t, unnarrowed, func(config *access.Config) { config.Index = historyless{config.Index.(*index.DB)} })
	f.put(t, finding("a", "pod", "p"), finding("b", "pod", "p"))
	f.grant("tenant", grant{"a", "pods"}, grant{"b", "pods"})
	ctx, v, err := f.follow(t, "tenant", 0)
	if err != nil {
		t.Fatal(err)
	}
	shows := func(namespace string, want bool) {
		t.Helper()
		row, err := f.db.Get(rows.AuditResults, index.Key{Namespace: namespace, Name: "p"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.Shows(ctx, row); err != nil || got != want {
			t.Errorf("in %s: %v, %v", namespace, got, err)
		}
	}
	shows("a", true)
	shows("b", true)
	_, err = f.db.Update(ctx, func(tx *index.Tx) error { return tx.Delete(rows.AuditResults, index.Key{Namespace: "b", Name: "p"}) })
	if err != nil {
		t.Fatal(err)
	}
	f.take()
	if _, err := f.wait(t, ctx, access.DefaultTTL); err != nil {
		t.Fatal(err)
	}
	// Whether everything is visible, in a too, and Pods, everywhere and in a.
	if asked := f.take(); len(asked) != 4 {
		t.Errorf("asked %q", asked)
	}
	f.revoke("tenant", grant{"b", "pods"})
	if _, err := f.wait(t, ctx, access.DefaultTTL); err != nil {
		t.Fatalf("the watch ends for a namespace without findings: %v", err)
	}
	f.put(t, finding("b", "pod", "p"))
	shows("a", true)
	shows("b", false)
}

// historyless is an index that knows only the groups of the present, as one does whose
// history has been compacted.
type historyless struct{ *index.DB }

func (h historyless) Namespaces(t index.Table, _ uint64) ([]string, error) {
	return h.DB.Namespaces(t, h.DB.Revision())
}
