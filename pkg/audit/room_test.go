package audit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// large is a template whose findings take some 8 KB each.
var large = strings.Replace(template("NeedLabel", "v1"), `msg := sprintf("v1: label`, `msg := sprintf("`+strings.Repeat("large ", 1300)+`label`, 1)

// TestQuota has more findings than there is room for: it says so, of the kinds concerned,
// and when there is room it has what a fresh audit finds.
func TestQuota(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedLabel", "needlabel", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), large,
		constraint("NeedLabel", "owner", "Pod", "owner", ""), constraint("NeedLabel", "maps", "ConfigMap", "owner", ""),
		object("v1", "ConfigMap", "shop", "m", "owner: me"))
	const pods = 600
	for i := range pods {
		src.apply(t, pod("shop", fmt.Sprintf("p%03d", i), "a: b"))
	}
	h := &harness{TB: t, src: src, dir: t.TempDir(), options: func(o *index.Options) { o.Quota, o.History = 4<<20, 0 }}
	h.start()
	t.Cleanup(h.stop)
	h.waitLoaded()
	state := func(name string) func() v1alpha1.SummaryState {
		return func() v1alpha1.SummaryState { return h.summary(name).State }
	}
	eventually(h, "a constraint whose findings do not fit", v1alpha1.SummaryPartial, state("needlabel.owner"))
	eventually(h, "a constraint without findings", v1alpha1.SummaryCurrent, state("needlabel.maps"))
	eventually(h, "the run", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	const want = "the index has reached its quota of 4194304 bytes; raise --index-quota"
	if message := h.summary("needlabel.owner").Message; !strings.Contains(message, "Pod: objects that are new, or have new findings, are not kept: "+want) {
		t.Errorf("the summary says %q", message)
	}
	for _, k := range h.lastRun().Kinds {
		if k.Kind == "Pod" && !strings.Contains(k.Error, want) {
			t.Errorf("the run says %+v", k)
		}
	}
	for _, table := range []index.Table{rows.AuditResults, rows.ConstraintSummaries} {
		if notices := h.a.Notices(table); len(notices) != 1 || !strings.Contains(notices[0], want) {
			t.Errorf("notices of %s: %q", table, notices)
		}
	}
	space, kept := h.db.Space(), len(h.findings())
	if space.Used > space.Quota || kept == 0 || kept == pods {
		t.Errorf("%d findings are kept in %+v", kept, space)
	}

	// What makes no room is not kept, a finding that goes goes, and a restart keeps it so.
	src.apply(t, pod("shop", "late", "a: b"), pod("shop", "p000", "owner: me"))
	h.restart()
	h.waitLoaded()
	eventually(h, "the run after the restart", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	eventually(h, "the constraint after the restart", v1alpha1.SummaryPartial, state("needlabel.owner"))
	if space := h.db.Space(); space.Used > space.Quota {
		t.Errorf("after the restart %+v", space)
	}

	// The last ones were not kept; the first go, so that they fit.
	for i := range pods - 60 {
		src.remove(podKind, "shop", fmt.Sprintf("p%03d", i))
	}
	fresh := newHarness(t, src)
	fresh.waitLoaded()
	eventually(fresh, "the fresh audit", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return fresh.summary("needlabel.owner").State })
	if n := len(fresh.findings()); n != 61 {
		t.Fatalf("a fresh audit finds %d, want 61", n)
	}
	eventually(h, "what a fresh audit finds", fresh.findings(), h.findings)
	eventually(h, "the constraint, when there is room", v1alpha1.SummaryCurrent, state("needlabel.owner"))
	if diff := cmp.Diff(fresh.summary("needlabel.owner").Totals, h.summary("needlabel.owner").Totals); diff != "" {
		t.Errorf("totals (-fresh +audit):\n%s", diff)
	}
	if notices := h.a.Notices(rows.AuditResults); notices != nil {
		t.Errorf("notices when there is room: %q", notices)
	}
}
