package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
)

// operation is one step of the audit. Operations are applied in the order in
// which they were submitted; apply may be called again if the transaction fails,
// so it leaves memory alone. What happens in memory happens in committed.
type operation interface {
	// prepare does the expensive part, on a worker, in parallel with others.
	prepare(ctx context.Context)
	// apply writes.
	apply(ctx context.Context, tx *index.Tx) error
	// committed is called after what apply wrote is durable.
	committed()
}

// idler is an operation that may have nothing to write.
type idler interface {
	// idle tells, after prepare, whether apply would write nothing.
	idle(tx *index.ReadTx) bool
}

// upsert judges an object that exists.
type upsert struct {
	a      *Auditor
	stream *kindStream
	set    *constraintSet
	obj    *unstructured.Unstructured
	// listed is true if the object was handed over as part of a list.
	listed bool

	judgement
	// notKept is true if there was no room for what apply should have written.
	notKept bool
}

// judgement is the outcome of preparing an upsert, for one state of the record.
type judgement struct {
	// before is the record that the judgement was made from.
	before []byte
	// known is false if there was no record.
	known bool
	// recreated is true if the record is of an earlier object of the same name.
	recreated bool
	// obsolete are the findings whose rows go, and why.
	obsolete    []recordedFinding
	whyObsolete reasons
	// cause is why the object was evaluated.
	cause v1alpha1.ChangeReason
	// rows to write; row i belongs to after.Findings[rowOf[i]].
	puts []judgedRow
	// after is the record to write, nil if it is as before.
	after *record
	// evaluated is false if nothing had to be evaluated.
	evaluated bool
	// failed is true if a constraint gave an error.
	failed bool
	// err is why there is no judgement.
	err error
}

// judgedRow is a row that a judgement asks for.
type judgedRow struct {
	*rows.Row
	// news is false if an equal row should be there already and is only written if
	// it is not.
	news bool
}

func (u *upsert) key() string {
	return objectStateKey(u.stream.kind.GroupKind(), u.obj.GetNamespace(), u.obj.GetName())
}

func (u *upsert) prepare(ctx context.Context) {
	var before []byte
	err := u.a.index.View(func(tx *index.ReadTx) error {
		before = bytes.Clone(tx.State(bucketObjects).Get(u.key()))
		return nil
	})
	if err != nil {
		u.judgement = judgement{err: err}
		return
	}
	u.judgement = u.judge(ctx, before)
}

func (u *upsert) judge(ctx context.Context, before []byte) judgement {
	old, err := decodeRecord(before)
	if err != nil {
		// An unreadable record is no record; what it knew is found out again.
		old = nil
	}
	gk := u.stream.kind.GroupKind()
	namespace := u.a.namespaceOf(gk, u.obj, u.set.needsNamespace)
	after := &record{
		UID:             u.obj.GetUID(),
		ResourceVersion: u.obj.GetResourceVersion(),
		Set:             u.set.id,
	}
	if u.set.needsNamespace {
		after.Namespace = namespace.digest(u.set.view)
	}
	j := judgement{before: before, known: old != nil, after: after, cause: u.causeOf(old, after)}
	j.whyObsolete = u.whyGone(j.cause)

	// What the record still says.
	var covered map[string]struct{}
	sameNamespace := false
	recorded := map[policy.ConstraintID]recordedFinding{}
	if old != nil {
		j.recreated = old.UID != after.UID
		if j.recreated {
			j.obsolete, j.whyObsolete = old.Findings, because(v1alpha1.ReasonObjectDeleted)
		} else {
			for _, f := range old.Findings {
				recorded[f.id()] = f
			}
			covered, sameNamespace = u.covered(old, namespace)
		}
	}
	var toEvaluate []*policy.Constraint
	for _, c := range u.set.constraints {
		if _, ok := covered[c.Digest]; !ok || c.NeedsNamespace && !sameNamespace {
			toEvaluate = append(toEvaluate, c)
			continue
		}
		if f, ok := recorded[c.ID]; ok {
			after.Findings = append(after.Findings, f)
			delete(recorded, c.ID)
		}
	}
	j.evaluated = len(toEvaluate) > 0
	if j.evaluated {
		verdicts := policy.Review(ctx, policy.NewObject(policy.Kind(u.stream.kind), u.obj, namespace.object), toEvaluate)
		for i := range verdicts {
			u.a.metrics.evaluated(verdicts[i].Outcome)
			j.err = errors.Join(j.err, u.take(&j, &verdicts[i], recorded))
		}
	}
	for _, f := range recorded {
		if isUnknown(u.set.unknownKinds, f.id()) {
			after.Findings = append(after.Findings, f)
		} else {
			j.obsolete = append(j.obsolete, f)
		}
	}
	if !j.evaluated && len(j.obsolete) == 0 && old != nil && old.Set == after.Set {
		j.after = nil
		return j
	}
	// An error may be over in the next version, whatever has changed by then.
	errorsLeft := j.failed || old != nil && old.Read == "" && len(toEvaluate) < len(u.set.constraints)
	if !errorsLeft && !u.set.view.Whole() {
		after.Read = u.set.view.Object(u.obj)
	}
	return j
}

// causeOf tells why an object is evaluated, as far as its records do. before is nil if
// there was none.
func (u *upsert) causeOf(before, after *record) v1alpha1.ChangeReason {
	switch {
	case before == nil && u.listed:
		return v1alpha1.ReasonObjectListed
	case before == nil, before.UID != after.UID:
		return v1alpha1.ReasonObjectCreated
	case before.ResourceVersion != after.ResourceVersion:
		return v1alpha1.ReasonObjectChanged
	case before.Namespace != "" && after.Namespace != "" && before.Namespace != after.Namespace:
		return v1alpha1.ReasonNamespaceChanged
	}
	return v1alpha1.ReasonPolicyChanged
}

// whyGone tells why findings of the object are gone that it has been judged for
// again.
func (u *upsert) whyGone(cause v1alpha1.ChangeReason) reasons {
	return func(id policy.ConstraintID) v1alpha1.ChangeReason {
		for _, c := range u.set.constraints {
			if c.ID == id {
				return cause
			}
		}
		return v1alpha1.ReasonPolicyDeleted
	}
}

// covered returns the digests of the constraints whose verdicts a record still has: those
// it was made by if what they can read of the object has not changed. sameNamespace tells
// the same of the Namespace, which matters to some of them.
func (u *upsert) covered(old *record, namespace objectNamespace) (digests map[string]struct{}, sameNamespace bool) {
	known := u.a.sets.known(u.stream.kind.GroupKind(), old.Set)
	if known == nil {
		return nil, false
	}
	if old.ResourceVersion != u.obj.GetResourceVersion() && (old.Read == "" || old.Read != known.view.Object(u.obj)) {
		return nil, false
	}
	return known.digests, u.set.needsNamespace && old.Namespace == namespace.digest(known.view)
}

// idle tells whether the upsert has nothing to write.
func (u *upsert) idle(tx *index.ReadTx) bool {
	return u.err == nil && u.after == nil && bytes.Equal(tx.State(bucketObjects).Get(u.key()), u.before)
}

// take enters a verdict into a judgement and removes what the record said about
// its constraint from recorded.
func (u *upsert) take(j *judgement, v *policy.Verdict, recorded map[policy.ConstraintID]recordedFinding) error {
	id := v.Constraint.ID
	if v.Outcome == policy.Pass || v.Outcome == policy.NotMatched {
		return nil
	}
	j.failed = j.failed || v.Outcome == policy.Error
	finding := newFinding(u.stream.kind.GroupKind(), u.obj, v)
	content, err := contentDigest(finding)
	if err != nil {
		return err
	}
	now := u.a.clock.Now()
	entry := recordedFinding{Engine: id.Engine, Kind: id.Kind, Name: id.Name, Content: content, FirstObserved: now.Unix()}
	news := true
	if f, ok := recorded[id]; ok {
		entry.FirstObserved = f.FirstObserved
		news = f.Content != content
		delete(recorded, id)
	}
	row, err := rows.Encode(newResult(finding, entry.firstObserved(), now, u.a.tracker.currentRun()))
	if err != nil {
		return err
	}
	j.after.Findings = append(j.after.Findings, entry)
	j.puts = append(j.puts, judgedRow{Row: row, news: news})
	return nil
}

func (u *upsert) apply(ctx context.Context, tx *index.Tx) error {
	state := tx.State(bucketObjects)
	if before := state.Get(u.key()); u.err != nil || !bytes.Equal(before, u.before) {
		u.judgement = u.judge(ctx, bytes.Clone(before))
	}
	if u.err != nil {
		return fmt.Errorf("judge %s %s/%s: %w", u.stream.kind.Kind, u.obj.GetNamespace(), u.obj.GetName(), u.err)
	}
	u.notKept = false
	if u.after == nil {
		return nil
	}
	if tx.Full() {
		grows, err := u.grows(tx)
		if u.notKept = grows; grows || err != nil {
			return err
		}
	}
	gk := u.stream.kind.GroupKind()
	if err := u.a.changes.deleteRows(tx, gk, u.obj.GetNamespace(), u.obj.GetName(), u.obsolete, u.whyObsolete); err != nil {
		return err
	}
	for _, row := range u.puts {
		if !row.news {
			_, err := tx.Get(row.Table, row.Key)
			if err == nil {
				continue
			}
			if !errors.Is(err, index.ErrNotFound) {
				return err
			}
		}
		if err := u.a.changes.putFinding(tx, row.Row, u.cause); err != nil {
			return err
		}
	}
	data, err := json.Marshal(u.after)
	if err != nil {
		return fmt.Errorf("encode object record: %w", err)
	}
	return state.Put(u.key(), data)
}

func (u *upsert) committed() {
	u.a.metrics.object(u.evaluated)
	if u.notKept {
		u.a.tracker.objectNotKept(u)
		return
	}
	u.a.tracker.objectDone(u)
}

// refused implements refusable.
func (u *upsert) refused(err error) { u.a.tracker.objectRefused(u, err) }

// remove takes an object out of the audit.
type remove struct {
	a    *Auditor
	kind source.Kind
	key  source.ObjectKey

	removed int64
}

func (r *remove) prepare(context.Context) {}

func (r *remove) apply(_ context.Context, tx *index.Tx) error {
	r.removed = 0
	gk := r.kind.GroupKind()
	data := tx.State(bucketObjects).Get(objectStateKey(gk, r.key.Namespace, r.key.Name))
	if data == nil {
		return nil
	}
	// The name may belong to a new object by now, whose creation was seen before the
	// end of the old one.
	if old, err := decodeRecord(data); err == nil && r.key.UID != "" && old.UID != r.key.UID {
		return nil
	}
	r.removed = 1
	return r.a.changes.removeObject(tx, gk, r.key.Namespace, r.key.Name, bytes.Clone(data), because(v1alpha1.ReasonObjectDeleted))
}

func (r *remove) committed() {
	r.a.tracker.objectsGone(r.kind.GroupKind(), r.removed)
	r.a.tracker.objectRemoved(r.kind.GroupKind(), r.key)
}

// removeObject removes the record of an object and the rows that it speaks of.
func (l *changeLog) removeObject(tx *index.Tx, gk schema.GroupKind, namespace, name string, data []byte, why reasons) error {
	old, err := decodeRecord(data)
	if err != nil {
		return err
	}
	if err := l.deleteRows(tx, gk, namespace, name, old.Findings, why); err != nil {
		return err
	}
	return tx.State(bucketObjects).Delete(objectStateKey(gk, namespace, name))
}

// deleteRows deletes the rows of findings on an object.
func (l *changeLog) deleteRows(tx *index.Tx, gk schema.GroupKind, namespace, name string, findings []recordedFinding, why reasons) error {
	for i := range findings {
		table, key := rowOf(gk, namespace, name, findings[i].id())
		if err := l.deleteFinding(tx, table, key, why(findings[i].id())); err != nil {
			return err
		}
	}
	return nil
}

// rowOf tells where the row of a constraint on an object is.
func rowOf(gk schema.GroupKind, namespace, name string, id policy.ConstraintID) (index.Table, index.Key) {
	key := index.Key{
		Namespace: resultNamespace(gk, namespace, name),
		Name:      v1alpha1.ResultName(referenceOf(id), subjectOf(gk, namespace, name)),
	}
	if key.Namespace == "" {
		return rows.ClusterAuditResults, key
	}
	return rows.AuditResults, key
}
