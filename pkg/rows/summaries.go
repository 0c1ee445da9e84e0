package rows

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
)

// counted is what the results that one AuditSummary counts have in common.
type counted struct {
	namespace  string
	constraint v1alpha1.ConstraintReference
	resource   v1alpha1.KindReference
	action     string
}

func (c counted) compare(other counted) int {
	return cmp.Or(
		cmp.Compare(c.namespace, other.namespace),
		cmp.Compare(c.constraint.Engine, other.constraint.Engine),
		cmp.Compare(c.constraint.Kind, other.constraint.Kind),
		cmp.Compare(c.constraint.Name, other.constraint.Name),
		cmp.Compare(c.resource.APIGroup, other.resource.APIGroup),
		cmp.Compare(c.resource.Kind, other.resource.Kind),
		cmp.Compare(c.action, other.action),
	)
}

// Summarize brings the AuditSummaries in step with the AuditResults that a transaction
// has changed. It is called once, when the transaction has made all other changes, so
// that the summaries are never of another state than the results; what it does is in
// proportion to the changes. now is the time at which summaries come into being.
func Summarize(tx *index.Tx, now time.Time) error {
	t := tally{positions: map[string]int{}, changes: map[counted]v1alpha1.ResultTotals{}}
	for i, path := range paths(v1alpha1.ResultFields()) {
		t.positions[path] = i
	}
	for _, change := range tx.Changes() {
		if change.Table == AuditResults {
			t.count(change.Old, -1)
			t.count(change.New, 1)
		}
	}
	// In a fixed order, so that the same changes give the same revisions.
	for _, c := range slices.SortedFunc(maps.Keys(t.changes), counted.compare) {
		if change := t.changes[c]; change != (v1alpha1.ResultTotals{}) {
			if err := c.add(tx, change, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// tally is by how much totals change.
type tally struct {
	positions map[string]int // of the fields of results
	changes   map[counted]v1alpha1.ResultTotals
}

// count counts a version of a result, which may be nil.
func (t *tally) count(row *index.Row, n int64) {
	if row == nil {
		return
	}
	field := func(path string) string { return row.Fields[t.positions[path]] }
	c := counted{
		namespace: row.Namespace,
		constraint: v1alpha1.ConstraintReference{
			Engine: v1alpha1.Engine(field("constraint.engine")), Kind: field("constraint.kind"), Name: field("constraint.name"),
		},
		resource: v1alpha1.KindReference{APIGroup: field("resource.apiGroup"), Kind: field("resource.kind")},
		action:   field("enforcementAction"),
	}
	totals := t.changes[c]
	switch v1alpha1.Result(field("result")) {
	case v1alpha1.ResultFail:
		totals.Fail += n
	case v1alpha1.ResultError:
		totals.Error += n
	case v1alpha1.ResultDeferred:
		totals.Deferred += n
	}
	t.changes[c] = totals
}

// add changes the totals of a summary. It is there as long as it has something to count.
func (c counted) add(tx *index.Tx, change v1alpha1.ResultTotals, now time.Time) error {
	summary := &v1alpha1.AuditSummary{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "AuditSummary"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         c.namespace,
			Name:              v1alpha1.AuditSummaryName(c.constraint, c.resource, c.action),
			UID:               v1alpha1.AuditSummaryUID(c.namespace, c.constraint, c.resource, c.action),
			CreationTimestamp: metav1.NewTime(now.Truncate(time.Second)),
			Labels:            v1alpha1.ResultLabels(c.constraint, c.resource.Kind),
		},
		Constraint:        c.constraint,
		Resource:          c.resource,
		EnforcementAction: c.action,
	}
	key := index.Key{Namespace: summary.Namespace, Name: summary.Name}
	old, err := tx.Get(AuditSummaries, key)
	switch {
	case err == nil:
		var before v1alpha1.AuditSummary
		if err := Decode(old, &before); err != nil {
			return err
		}
		summary.CreationTimestamp, summary.Totals = before.CreationTimestamp, before.Totals
	case !errors.Is(err, index.ErrNotFound):
		return err
	}
	totals := &summary.Totals
	totals.Fail += change.Fail
	totals.Error += change.Error
	totals.Deferred += change.Deferred
	switch {
	case totals.Fail < 0 || totals.Error < 0 || totals.Deferred < 0:
		// Only the file can be wrong: it is made anew.
		return fmt.Errorf("%w: summary %s/%s would count %+v", index.ErrDamaged, key.Namespace, key.Name, *totals)
	case *totals == v1alpha1.ResultTotals{}:
		return tx.Delete(AuditSummaries, key)
	}
	row, err := Encode(summary)
	if err != nil {
		return err
	}
	return tx.Put(AuditSummaries, row.Key, row.Value, row.Attrs)
}
