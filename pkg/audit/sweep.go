package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// seenSet remembers the objects of a list in 16 bytes each, while the list lasts.
type seenSet map[[16]byte]struct{}

func (s seenSet) add(namespace, name string) { s[seenKey(namespace, name)] = struct{}{} }

func (s seenSet) has(namespace, name string) bool {
	_, ok := s[seenKey(namespace, name)]
	return ok
}

func seenKey(namespace, name string) [16]byte {
	sum := sha256.Sum256([]byte(namespace + separator + name))
	return [16]byte(sum[:16])
}

// listStarted marks the beginning of a list.
type listStarted struct {
	a      *Auditor
	stream *kindStream
}

func (l *listStarted) idle(*index.ReadTx) bool                { return true }
func (l *listStarted) prepare(context.Context)                { /* nothing to evaluate */ }
func (l *listStarted) apply(context.Context, *index.Tx) error { return nil }
func (l *listStarted) committed()                             { l.a.tracker.listStarted(l.stream) }

// listDone removes what a complete list of a kind did not contain.
type listDone struct {
	a               *Auditor
	stream          *kindStream
	set             *constraintSet
	seen            seenSet
	resourceVersion string

	removed int64
}

func (l *listDone) prepare(context.Context) {}

func (l *listDone) apply(_ context.Context, tx *index.Tx) error {
	gk := l.stream.kind.GroupKind()
	removed, err := l.a.changes.removeObjects(tx, gk, kindStateKey(gk), because(v1alpha1.ReasonObjectDeleted), func(namespace, name string) bool {
		return !l.seen.has(namespace, name)
	})
	if err != nil {
		return err
	}
	l.removed = removed
	if err := tx.State(bucketListed).Put(kindStateKey(gk), []byte(l.a.clock.Now().UTC().Format(time.RFC3339))); err != nil {
		return err
	}
	// Every record of the kind has been written or checked under the current set.
	l.a.sets.retain(gk, l.set.id)
	return l.a.sets.save(tx.State(bucketSets), tx.State(bucketMeta), gk)
}

func (l *listDone) committed() {
	l.a.tracker.objectsGone(l.stream.kind.GroupKind(), l.removed)
	l.a.tracker.listDone(l.stream, l.set, l.resourceVersion)
}

// removeObjects removes all objects of a kind below a state key for which gone
// is true, and returns how many these were.
func (l *changeLog) removeObjects(tx *index.Tx, gk schema.GroupKind, prefix string, why reasons, gone func(namespace, name string) bool) (int64, error) {
	type entry struct {
		namespace, name string
		data            []byte
	}
	var entries []entry
	err := tx.State(bucketObjects).Ascend(prefix, func(key string, value []byte) error {
		if namespace, name := splitObjectStateKey(gk, key); gone(namespace, name) {
			entries = append(entries, entry{namespace, name, bytes.Clone(value)})
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if err := l.removeObject(tx, gk, e.namespace, e.name, e.data, why); err != nil {
			return 0, err
		}
	}
	return int64(len(entries)), nil
}

func all(string, string) bool { return true }

// dropKind takes a kind out of the audit: no constraint selects it any more, or
// it does not exist any more.
type dropKind struct {
	a   *Auditor
	gk  schema.GroupKind
	why reasons
	// gone is true if the kind does not exist any more.
	gone bool
}

func (d *dropKind) prepare(context.Context) {}

func (d *dropKind) apply(_ context.Context, tx *index.Tx) error {
	if _, err := d.a.changes.removeObjects(tx, d.gk, kindStateKey(d.gk), d.why, all); err != nil {
		return err
	}
	d.a.sets.drop(d.gk)
	if err := d.a.sets.save(tx.State(bucketSets), tx.State(bucketMeta), d.gk); err != nil {
		return err
	}
	if err := tx.State(bucketListed).Delete(kindStateKey(d.gk)); err != nil {
		return err
	}
	return tx.State(bucketPlan).Delete(kindStateKey(d.gk))
}

func (d *dropKind) committed() { d.a.tracker.kindGone(d.gk, d.gone) }

// dropNamespace takes all objects of a namespace that is gone out of the audit.
type dropNamespace struct {
	a         *Auditor
	namespace string
	// uid of the Namespace that there is now. Nothing is gone if the index knows that one,
	// or none. It is empty if there is none.
	uid   types.UID
	kinds []schema.GroupKind

	removed map[schema.GroupKind]int64
}

func (d *dropNamespace) prepare(context.Context) {}

// idle implements idler.
func (d *dropNamespace) idle(tx *index.ReadTx) bool {
	return d.uid != "" && string(tx.State(bucketNamespaces).Get(d.namespace)) == string(d.uid)
}

// refused implements refusable: a Namespace with such a name has no findings either.
func (d *dropNamespace) refused(error) { /* its objects are refused, and named */ }

func (d *dropNamespace) apply(ctx context.Context, tx *index.Tx) error {
	d.removed = map[schema.GroupKind]int64{}
	state := tx.State(bucketNamespaces)
	known := string(state.Get(d.namespace))
	switch {
	case d.uid == "":
		if err := state.Delete(d.namespace); err != nil {
			return err
		}
	case known == string(d.uid):
		return nil
	default:
		if err := state.Put(d.namespace, []byte(d.uid)); err != nil || known == "" {
			return err
		}
	}
	for _, gk := range d.kinds {
		removed, err := d.a.changes.removeObjects(tx, gk, namespaceStateKey(gk, d.namespace), because(v1alpha1.ReasonNamespaceDeleted), all)
		if err != nil {
			return err
		}
		d.removed[gk] = removed
	}
	return d.a.changes.retire(ctx, tx, d.namespace)
}

// dropNamespaces drops those that the index knows and a complete list does not have.
type dropNamespaces struct {
	a     *Auditor
	seen  seenSet
	kinds []schema.GroupKind

	dropped []*dropNamespace
}

func (d *dropNamespaces) prepare(context.Context) {}

func (d *dropNamespaces) apply(ctx context.Context, tx *index.Tx) error {
	d.dropped = nil
	err := tx.State(bucketNamespaces).Ascend("", func(name string, _ []byte) error {
		if !d.seen.has("", name) {
			d.dropped = append(d.dropped, &dropNamespace{a: d.a, namespace: name, kinds: d.kinds})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, gone := range d.dropped {
		if err := gone.apply(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

func (d *dropNamespaces) committed() {
	for _, gone := range d.dropped {
		gone.committed()
	}
	d.a.planner.namespacesKnown.Store(true)
}

func (d *dropNamespace) committed() {
	var kinds []schema.GroupKind
	for gk, removed := range d.removed {
		d.a.tracker.objectsGone(gk, removed)
		if removed > 0 {
			kinds = append(kinds, gk)
		}
	}
	if len(kinds) > 0 {
		d.a.planner.namespaceDropped(d.namespace, kinds)
	}
}

// savePlan records a kind, the constraints it is audited under, and its sets.
type savePlan struct {
	a    *Auditor
	gk   schema.GroupKind
	plan plannedKind
	// dropped are constraints that do not apply to the kind any more: their rows go.
	dropped []policy.ConstraintID
	why     reasons
}

func (s *savePlan) prepare(context.Context) {}

func (s *savePlan) apply(ctx context.Context, tx *index.Tx) error {
	for _, id := range s.dropped {
		if err := s.a.changes.dropConstraint(ctx, tx, s.gk, id, s.why(id)); err != nil {
			return fmt.Errorf("drop results of %s/%s on %s: %w", id.Kind, id.Name, s.gk, err)
		}
	}
	data, err := json.Marshal(s.plan)
	if err != nil {
		return fmt.Errorf("encode plan: %w", err)
	}
	if err := tx.State(bucketPlan).Put(kindStateKey(s.gk), data); err != nil {
		return err
	}
	return s.a.sets.save(tx.State(bucketSets), tx.State(bucketMeta), s.gk)
}

func (s *savePlan) committed() { s.a.tracker.markSummaries() }

// dropConstraint removes the rows of a constraint on objects of a kind, and what
// the objects' records say of them.
func (l *changeLog) dropConstraint(ctx context.Context, tx *index.Tx, gk schema.GroupKind, id policy.ConstraintID, why v1alpha1.ChangeReason) error {
	for _, table := range []index.Table{rows.AuditResults, rows.ClusterAuditResults} {
		page, err := tx.List(ctx, index.Query{Table: table, Terms: []index.Term{
			{Field: "constraint.kind", Value: id.Kind},
			{Field: "constraint.name", Value: id.Name},
			{Field: "resource.kind", Value: gk.Kind},
			{Field: "resource.apiGroup", Value: gk.Group},
		}})
		if err != nil {
			return err
		}
		for _, row := range page.Rows {
			if err := l.dropRow(tx, gk, id, table, row, why); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *changeLog) dropRow(tx *index.Tx, gk schema.GroupKind, id policy.ConstraintID, table index.Table, row *index.Row, why v1alpha1.ChangeReason) error {
	if err := l.deleteFinding(tx, table, row.Key, why); err != nil {
		return err
	}
	state := tx.State(bucketObjects)
	key := objectStateKey(gk, rows.Field(table, row, "resource.namespace"), rows.Field(table, row, "resource.name"))
	old, err := decodeRecord(state.Get(key))
	if err != nil || old == nil {
		return err
	}
	kept := old.Findings[:0]
	for _, f := range old.Findings {
		if f.id() != id {
			kept = append(kept, f)
		}
	}
	old.Findings = kept
	data, err := json.Marshal(old)
	if err != nil {
		return fmt.Errorf("encode object record: %w", err)
	}
	return state.Put(key, data)
}

// put writes rows that are not findings: runs and summaries.
type put struct {
	a       *Auditor
	rows    []*rows.Row
	deletes []rowID
	// loaded is true if the first run of this index has ended with these rows.
	loaded bool
	done   func()
}

type rowID struct {
	table index.Table
	key   index.Key
}

func (p *put) prepare(context.Context) {}

func (p *put) apply(_ context.Context, tx *index.Tx) error {
	for _, row := range p.rows {
		if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
			return err
		}
	}
	for _, id := range p.deletes {
		if err := tx.Delete(id.table, id.key); err != nil && !errors.Is(err, index.ErrNotFound) {
			return err
		}
	}
	if !p.loaded {
		return nil
	}
	if err := p.a.changes.begin(tx); err != nil {
		return err
	}
	return tx.State(bucketMeta).Put(metaLoaded, []byte("true"))
}

func (p *put) committed() {
	if p.done != nil {
		p.done()
	}
}
