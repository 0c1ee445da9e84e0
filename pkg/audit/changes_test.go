package audit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// changes returns the log, by table.
func (h *harness) changes(table index.Table) []v1alpha1.AuditChange {
	h.Helper()
	page, err := h.db.List(context.Background(), index.Query{Table: table})
	if err != nil {
		h.Fatalf("list changes: %v", err)
	}
	var out []v1alpha1.AuditChange
	for _, row := range page.Rows {
		change, err := decodeChange(row)
		if err != nil {
			h.Fatal(err)
		}
		out = append(out, *change)
	}
	return out
}

// told is the log, one line a change.
func (h *harness) told() []string {
	h.Helper()
	var out []string
	for _, table := range []index.Table{rows.AuditChanges, rows.ClusterAuditChanges} {
		for _, c := range h.changes(table) {
			where := c.Resource.Namespace
			if c.Namespace != c.Resource.Namespace {
				where = "in " + c.Namespace + " of " + where
			}
			out = append(out, fmt.Sprintf("%s %s %d: %s %s %s/%s", c.Type, c.Reason, c.Count, c.Constraint.Name, c.Resource.Kind, where, c.Resource.Name))
		}
	}
	sort.Strings(out)
	return out
}

func (h *harness) wantChanges(what string, want ...string) {
	h.Helper()
	sort.Strings(want)
	if len(want) == 0 {
		want = nil
	}
	eventually(h, what, want, h.told)
}

// TestChanges has each way in which findings open and are resolved.
func TestChanges(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	h := newHarness(t, src)
	h.wantFindings("first audit", badPod)
	h.waitLoaded()
	eventually(h, "begin of the log", 1, func() int { return len(h.a.Notices(rows.AuditChanges)) })
	if notices := h.a.Notices(rows.ClusterAuditChanges); !strings.HasPrefix(notices[0], "changes are known since ") || !strings.HasSuffix(notices[0], sinceFirstAudit) {
		t.Errorf("notices: %q", notices)
	}
	if notices := h.a.Notices(rows.AuditResults); notices != nil {
		t.Errorf("notices of findings: %q", notices)
	}
	h.wantChanges("what the first audit finds has not just opened")

	src.apply(t, pod("shop", "new", "x: y"))
	h.wantChanges("created", "opened objectCreated 1: owner Pod shop/new")
	src.apply(t, pod("shop", "good", "x: y"))
	h.wantChanges("changed", "opened objectCreated 1: owner Pod shop/new", "opened objectChanged 1: owner Pod shop/good")
	src.apply(t, pod("shop", "good", "owner: me"))
	src.apply(t, pod("shop", "good", "x: z"))
	src.apply(t, pod("shop", "good", "owner: you"))
	src.remove(podKind, "shop", "new")
	good := []string{"opened objectChanged 2: owner Pod shop/good", "resolved objectChanged 2: owner Pod shop/good"}
	base := append([]string{"opened objectCreated 1: owner Pod shop/new", "resolved objectDeleted 1: owner Pod shop/new"}, good...)
	h.wantChanges("flapping, and an end", base...)

	src.apply(t, constraint("NeedLabel", "team", "Pod", "team", ""))
	base = append(base, "opened policyChanged 1: team Pod shop/bad", "opened policyChanged 1: team Pod shop/good")
	h.wantChanges("a constraint is made", base...)
	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedLabel"}, "", "team")
	base = append(base, "resolved policyDeleted 1: team Pod shop/bad", "resolved policyDeleted 1: team Pod shop/good")
	h.wantChanges("a constraint is deleted", base...)

	src.apply(t, object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "r", "x: y"), constraint("NeedLabel", "role", "ClusterRole", "owner", ""))
	base = append(base, "opened objectListed 1: role ClusterRole /r")
	h.wantChanges("a kind is audited for the first time", base...)
	src.removeKind(schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"})
	base = append(base, "resolved kindDeleted 1: role ClusterRole /r")
	h.wantChanges("a kind goes", base...)

	h.restart()
	h.waitLoaded()
	eventually(h, "run after the restart", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	h.wantChanges("a restart", base...)

	src.apply(t, strings.Replace(template("NeedLabel", "v3"), "msg := sprintf", "msg := := sprintf", 1))
	base = append(base, "resolved policyRejected 1: owner Pod shop/bad")
	h.wantChanges("a template is broken", base...)
	src.apply(t, template("NeedLabel", "v1"))
	eventually(h, "a template is mended", 1, func() int {
		n := 0
		for _, line := range h.told() {
			if strings.HasPrefix(line, "opened ") && strings.HasSuffix(line, "owner Pod shop/bad") {
				n++
			}
		}
		return n
	})
	for _, c := range h.changes(rows.AuditChanges) {
		if got := c.Labels[v1alpha1.LabelTime]; got != c.Time.UTC().Format("20060102150405") || !c.CreationTimestamp.Equal(&c.Time) {
			t.Errorf("%s: time %v, label %q, created %v", c.Name, c.Time, got, c.CreationTimestamp)
		}
		if c.Message == "" || c.RunID == "" || c.EnforcementAction != "deny" || c.Result != v1alpha1.ResultFail || c.FirstObserved.IsZero() {
			t.Errorf("%s: %+v", c.Name, c.Change)
		}
	}
}

// TestChangesOfNamespaces has the changes in a Namespace leave it when it is deleted,
// also if that happens while nothing is watched.
func TestChangesOfNamespaces(t *testing.T) {
	for name, restart := range map[string]bool{"watched": false, "not watched": true} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			seed(t, src)
			src.apply(t, object("v1", "Namespace", "", "other", "tier: gold"))
			h := newHarness(t, src)
			h.waitLoaded()
			src.apply(t, pod("shop", "new", "x: y"), pod("other", "new", "x: y"), pod("shop", "gone", "x: y"))
			src.remove(podKind, "shop", "gone")
			opened, other := "opened objectCreated 1: owner Pod shop/new", "opened objectCreated 1: owner Pod other/new"
			h.wantChanges("opened", opened, other, "opened objectCreated 1: owner Pod shop/gone", "resolved objectDeleted 1: owner Pod shop/gone")
			if restart {
				eventually(h, "loaded", true, func() bool { return len(h.a.Notices(rows.AuditChanges)) > 0 })
				h.stop()
			}
			src.remove(namespaceKind, "", "shop")
			src.remove(podKind, "shop", "new")
			src.remove(podKind, "shop", "bad")
			src.remove(podKind, "shop", "good")
			src.apply(t, object("v1", "Namespace", "", "shop", "tier: gold"))
			if restart {
				h.start()
			}
			eventually(h, "what the next tenant sees", 0, func() int {
				n := 0
				for _, c := range h.changes(rows.AuditChanges) {
					if c.Namespace == "shop" && c.Resource.Name != "bad" && c.Resource.Name != "new" {
						n++
					}
				}
				return n
			})
			eventually(h, "what is known of the last one", 5, func() int {
				n := 0
				for _, line := range h.told() {
					if strings.Contains(line, "owner Pod in  of shop/") && strings.HasPrefix(line, "opened ") || strings.Contains(line, "resolved ") {
						n++
					}
				}
				return n
			}) // opened: new, gone; resolved: bad, gone, new
		})
	}
}

// changeModel is the naive oracle: it compares each state of the findings with the one
// before.
type changeModel struct {
	mu       sync.Mutex
	results  map[string]string // of the findings, by table and key
	counts   map[string]int64  // of changes, by type and finding
	begun    bool
	observed int
}

func (m *changeModel) observe(changes []index.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if c.Table == rows.AuditRuns && c.New != nil && rows.Field(c.Table, c.New, "phase") != string(v1alpha1.RunRunning) && rows.Field(c.Table, c.New, "phase") != string(v1alpha1.RunAborted) {
			m.begun = true
		}
		if c.Table != rows.AuditResults && c.Table != rows.ClusterAuditResults {
			continue
		}
		row, t := c.New, v1alpha1.ChangeOpened
		if row == nil {
			row, t = c.Old, v1alpha1.ChangeResolved
		}
		key := row.Namespace + "/" + row.Name
		result := ""
		if c.New != nil {
			result = rows.Field(c.Table, c.New, "result")
		}
		if m.begun && m.results[key] != result {
			var constraint []string
			for _, field := range []string{"constraint.kind", "constraint.name", "resource.apiGroup", "resource.kind", "resource.namespace", "resource.name"} {
				constraint = append(constraint, rows.Field(c.Table, row, field))
			}
			m.counts[string(t)+" "+strings.Join(constraint, " ")]++
			m.observed++
		}
		m.results[key] = result
	}
}

// TestChangesModel changes objects, Namespaces and policies at random, with restarts, and
// compares the log with what an oracle makes of the states of the findings.
func TestChangesModel(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 7))
			src := newFakeSource()
			seed1(t, src)
			for i := range 3 {
				src.apply(t, constraint("NeedLabel", fmt.Sprintf("c%d", i), "Pod, ConfigMap", "owner", ""))
			}
			m := &changeModel{results: map[string]string{}, counts: map[string]int64{}}
			h := &harness{TB: t, src: src, dir: t.TempDir(), opened: func(db *index.DB) { db.OnCommit(m.observe) }}
			h.start()
			t.Cleanup(h.stop)
			h.waitLoaded()
			for range 200 {
				if random.IntN(12) == 0 {
					name := fmt.Sprintf("ns%d", random.IntN(3))
					src.remove(namespaceKind, "", name)
					src.apply(t, object("v1", "Namespace", "", name, "tier: gold"))
				}
				randomStep(t, random, src, h)
				time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
			}
			h.restart()
			got := func() map[string]int64 {
				counts := map[string]int64{}
				for _, table := range []index.Table{rows.AuditChanges, rows.ClusterAuditChanges} {
					for _, c := range h.changes(table) {
						counts[strings.Join([]string{string(c.Type), c.Constraint.Kind, c.Constraint.Name, c.Resource.APIGroup, c.Resource.Kind, c.Resource.Namespace, c.Resource.Name}, " ")] += c.Count
					}
				}
				return counts
			}
			eventually(h, "the counts of the oracle", "", func() string {
				m.mu.Lock()
				defer m.mu.Unlock()
				return cmp.Diff(m.counts, got())
			})
			if m.observed < 50 {
				t.Errorf("only %d changes were made", m.observed)
			}
		})
	}
}

// logOf returns a log with a clock of its own, over an index.
func logOf(t *testing.T) (*changeLog, *index.DB, *clocktesting.FakeClock) {
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	l := &changeLog{clock: clk, retention: time.Hour, limit: 10, paused: func() bool { return false }}
	return l, indextest.MustOpen(t, rows.Schemas()), clk
}

func update(t *testing.T, db *index.DB, fn func(tx *index.Tx) error) {
	t.Helper()
	if _, err := db.Update(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func findingRow(t *testing.T, name string, result v1alpha1.Result) *rows.Row {
	t.Helper()
	f := v1alpha1.Finding{
		Constraint: v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "K", Name: "c"},
		Resource:   v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Pod", Namespace: "a", Name: name},
		Result:     result, Message: strings.Repeat("ü", 1000),
	}
	row, err := rows.Encode(newResult(f, time.Unix(1_600_000_000, 0), time.Unix(1_600_000_000, 0), "run"))
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// TestChangesAreBounded has changes go when they are old, and when there are too many.
func TestChangesAreBounded(t *testing.T) {
	l, db, clk := logOf(t)
	h := &harness{TB: t, db: db}
	update(t, db, func(tx *index.Tx) error {
		if err := l.putFinding(tx, findingRow(t, "before", v1alpha1.ResultFail), v1alpha1.ReasonObjectCreated); err != nil {
			return err
		}
		return l.begin(tx)
	})
	began := clk.Now()
	notice := func() (text string) {
		err := db.View(func(tx *index.ReadTx) error {
			var err error
			text, err = l.notice(tx)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if want := "changes are known since " + began.UTC().Format(time.RFC3339) + " only: " + sinceFirstAudit; notice() != want {
		t.Errorf("the notice is %q, want %q", notice(), want)
	}
	for i := range 8 {
		clk.Step(time.Minute)
		update(t, db, func(tx *index.Tx) error {
			return l.putFinding(tx, findingRow(t, fmt.Sprint("p", i), v1alpha1.ResultFail), v1alpha1.ReasonObjectCreated)
		})
	}
	clk.Step(52 * time.Minute) // p0 is 59 minutes old
	expire := func(makeRoom bool) (n int) {
		update(t, db, func(tx *index.Tx) error {
			var err error
			n, err = l.expire(tx, 3, makeRoom)
			return err
		})
		return n
	}
	if n := expire(false); n != 0 || notice() != "" {
		t.Errorf("%d changes are dropped before their time; the notice is %q", n, notice())
	}
	clk.Step(4*time.Minute + time.Second)
	if n := expire(false) + expire(false); n != 4 || len(h.changes(rows.AuditChanges)) != 4 {
		t.Errorf("%d changes are dropped of 4 that are old, %d left", n, len(h.changes(rows.AuditChanges)))
	}
	// A change that happens again is as old as its last time, and bounded too.
	for range 30 {
		clk.Step(time.Second)
		update(t, db, func(tx *index.Tx) error {
			if err := l.putFinding(tx, findingRow(t, "p7", v1alpha1.ResultError), v1alpha1.ReasonPolicyChanged); err != nil {
				return err
			}
			return l.putFinding(tx, findingRow(t, "p7", v1alpha1.ResultFail), v1alpha1.ReasonPolicyChanged)
		})
	}
	if log := h.changes(rows.AuditChanges); len(log) != 4 || log[3].Count != 61 || log[3].Reason != v1alpha1.ReasonResultChanged || log[3].PreviousResult != "error" || len(log[3].Message) > maxChangeMessageBytes {
		t.Errorf("%d changes, the last %+v", len(log), log[len(log)-1].Change)
	}
	clk.Step(time.Minute)
	for i := range 12 {
		update(t, db, func(tx *index.Tx) error {
			return l.putFinding(tx, findingRow(t, fmt.Sprint("q", i), v1alpha1.ResultFail), v1alpha1.ReasonObjectCreated)
		})
	}
	log := h.changes(rows.AuditChanges)
	if len(log) != 10 || log[0].Resource.Name == "p7" {
		t.Errorf("%d changes where 10 are kept, the first on %s", len(log), log[0].Resource.Name)
	}
	if !strings.HasSuffix(notice(), sinceLimit) {
		t.Errorf("the notice is %q", notice())
	}
	// Short of room, nothing is logged, and that is told, also afterwards.
	l.paused = func() bool { return true }
	update(t, db, func(tx *index.Tx) error {
		return l.deleteFinding(tx, rows.AuditResults, findingRow(t, "q1", v1alpha1.ResultFail).Key, v1alpha1.ReasonObjectDeleted)
	})
	if got := len(h.changes(rows.AuditChanges)); got != 10 || !strings.Contains(notice(), "not logged at the moment") {
		t.Errorf("%d changes, the notice is %q", got, notice())
	}
	if n := expire(true); n != 3 {
		t.Errorf("%d changes are dropped to make room", n)
	}
	l.paused = func() bool { return false }
	if want := "changes are known since " + clk.Now().UTC().Format(time.RFC3339) + " only: " + sinceQuota; notice() != want {
		t.Errorf("the notice is %q, want %q", notice(), want)
	}
	clk.Step(2 * time.Hour)
	for expire(false) > 0 {
		continue
	}
	if got := len(h.changes(rows.AuditChanges)); got != 0 || notice() != "" {
		t.Errorf("at the end: %d changes, the notice is %q", got, notice())
	}
	var s logState
	if err := db.View(func(tx *index.ReadTx) (err error) {
		s, err = readLogState(tx.State(bucketMeta))
		return err
	}); err != nil || s.Count != 0 {
		t.Errorf("at the end %d changes are counted, %v", s.Count, err)
	}
}
