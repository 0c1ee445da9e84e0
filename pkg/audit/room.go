package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// When the index has nearly used up its quota, what can be done without gives way first:
// history (pkg/index), then the log of changes. When it is full, objects that are new,
// and findings that are, are not kept. That is said of each kind of which something is
// missing; what makes room goes on. Once there is room, such kinds are listed again.

const (
	// roomInterval is how often it is looked whether there is room.
	roomInterval = 5 * time.Second
	// refillInterval is how often the same kinds are listed again at most because there
	// is room.
	refillInterval = time.Minute
	// growthTolerance is by how many bytes the findings of an object may grow when the
	// index is full. It is for what changes all the time, such as times and names.
	growthTolerance = 1 << 10
)

// grows tells whether what an upsert writes needs room that is not there yet.
func (u *upsert) grows(tx *index.Tx) (bool, error) {
	if !u.known {
		return true, nil
	}
	growth := 0
	for _, row := range u.puts {
		old, err := tx.Get(row.Table, row.Key)
		if err != nil {
			return true, ignoreNotFound(err)
		}
		growth += len(row.Value) - len(old.Value)
	}
	return growth > growthTolerance, nil
}

// keepRoom makes room while the index is full, and has what was not kept listed again
// when there is some, until ctx is done.
func (a *Auditor) keepRoom(ctx context.Context) {
	ticker := a.clock.NewTicker(a.roomInterval)
	defer ticker.Stop()
	var refilled time.Time
	level := index.LevelFine
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		if now := a.index.Level(); now != level {
			space := a.index.Space()
			klog.FromContext(ctx).Info("The index is nearer to its quota, or less near", "level", now, "before", level, "used", space.Used, "quota", space.Quota)
			level = now
		}
		if level == index.LevelFull {
			// One batch at a time: what goes is history first, and that takes a while.
			a.submit(&expiry{a: a, makeRoom: true, done: make(chan struct{})})
			continue
		}
		if a.clock.Since(refilled) < a.refillInterval {
			continue
		}
		if kinds := a.tracker.fullKinds(); len(kinds) > 0 {
			refilled = a.clock.Now()
			klog.FromContext(ctx).Info("There is room in the index; what was not kept is listed again", "kinds", kinds)
			a.planner.listAgain(kinds)
		}
	}
}

// listAgain has kinds listed again. It may be called by anyone.
func (p *planner) listAgain(kinds []schema.GroupKind) {
	p.mu.Lock()
	if p.pending.kinds == nil {
		p.pending.kinds = map[schema.GroupKind]struct{}{}
	}
	for _, gk := range kinds {
		p.pending.kinds[gk] = struct{}{}
	}
	p.mu.Unlock()
	p.notify()
}

// objectNotKept says that there was no room for an object.
func (t *tracker) objectNotKept(u *upsert) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.status(u.stream.kind.GroupKind())
	if k.stream != u.stream && k.stream != nil {
		return // the list that is under way sees it again
	}
	k.full = true
	if u.listed {
		k.count.listed++
	}
	t.summaries = true
	t.notify()
}

// fullKinds returns the kinds of which something was not kept, sorted.
func (t *tracker) fullKinds() []schema.GroupKind {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []schema.GroupKind
	for gk, k := range t.kinds {
		if k.full {
			out = append(out, gk)
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupKind) int {
		return slices.Compare([]string{a.Group, a.Kind}, []string{b.Group, b.Kind})
	})
	return out
}

// notKept is what is said of kinds of which something was not kept.
func notKept(quota int64) string {
	return fmt.Sprintf("objects that are new, or have new findings, are not kept: the index has reached its quota of %d bytes; raise --index-quota, or have fewer findings", quota)
}

// Notices are what those should know who read a table, besides its rows.
func (a *Auditor) Notices(table index.Table) []string {
	switch table {
	case rows.AuditResults, rows.ClusterAuditResults, rows.ConstraintSummaries:
		if len(a.tracker.fullKinds()) > 0 {
			return []string{"something is missing: " + notKept(a.index.Space().Quota)}
		}
	case rows.AuditChanges, rows.ClusterAuditChanges:
		var notice string
		err := a.index.View(func(tx *index.ReadTx) error {
			var err error
			notice, err = a.changes.notice(tx)
			return err
		})
		if err == nil && notice != "" { // what is wrong with the index is said elsewhere
			return []string{notice}
		}
	}
	return nil
}
