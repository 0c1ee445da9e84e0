package audit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	// DefaultChangeRetention is how long changes are kept.
	DefaultChangeRetention = 7 * 24 * time.Hour
	// defaultMaxChanges bounds the changes that are kept. With their messages cut they
	// take some 50 to 100 MB then.
	defaultMaxChanges = 50_000
	// maxChangeMessageBytes bounds the message of a change.
	maxChangeMessageBytes = 512
)

// Keys of the log's private state.
const (
	// bucketChanges has the changes in the order of their times: changeQueueKey.
	bucketChanges = "changes"
	// metaChanges is the key of bucketMeta that has the logState.
	metaChanges = "changes"
)

// changeLog keeps which findings have opened and which were resolved. All rows of
// findings are written through it, so that a change is in the same transaction as what it
// speaks of. It has no state but what is in the index.
//
// Of a finding there is one change of either type at most, with the last time and a
// count, so that a finding that comes and goes all the time takes no more room than
// others.
type changeLog struct {
	clock     clock.PassiveClock
	retention time.Duration
	limit     int64
	// paused tells whether there is no room for the log.
	paused func() bool
}

// logState is what is known of the log as a whole.
type logState struct {
	// Since is from when on all changes are there, in Unix seconds, but for those that
	// are older than the retention. 0 until the first audit has ended: what that finds
	// has not just opened.
	Since int64 `json:"since"`
	// Why the log does not reach further back.
	Why string `json:"why"`
	// Count of changes.
	Count int64 `json:"count"`
}

// Reasons why the log does not reach back for as long as its retention.
const (
	sinceFirstAudit = "the first audit ended then"
	sinceLimit      = "there have been more changes than are kept"
	sinceQuota      = "the index was short of room until then"
)

func readLogState(meta stateReader) (logState, error) {
	var s logState
	data := meta.Get(metaChanges)
	if data == nil {
		return s, nil
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("decode the state of the log of changes: %w", err)
	}
	return s, nil
}

func (s logState) write(meta stateWriter) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the state of the log of changes: %w", err)
	}
	return meta.Put(metaChanges, data)
}

// begin has changes logged from now on. It is called when the first audit has ended.
func (l *changeLog) begin(tx *index.Tx) error {
	meta := tx.State(bucketMeta)
	s, err := readLogState(meta)
	if err != nil || s.Since != 0 {
		return err
	}
	s.Since, s.Why = l.clock.Now().Unix(), sinceFirstAudit
	return s.write(meta)
}

// putFinding writes the row of a finding, and logs that it has opened if it has: if it
// was not there, or had another result.
func (l *changeLog) putFinding(tx *index.Tx, row *rows.Row, why v1alpha1.ChangeReason) error {
	old, err := tx.Get(row.Table, row.Key)
	if err := ignoreNotFound(err); err != nil {
		return err
	}
	if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
		return err
	}
	previous := ""
	if old != nil {
		written := &index.Row{Attrs: row.Attrs}
		previous, why = rows.Field(row.Table, old, "result"), v1alpha1.ReasonResultChanged
		if previous == rows.Field(row.Table, written, "result") {
			return nil
		}
	}
	return l.record(tx, v1alpha1.ChangeOpened, why, row.Table, row.Value, previous)
}

// deleteFinding deletes the row of a finding, if it is there, and logs that it was
// resolved.
func (l *changeLog) deleteFinding(tx *index.Tx, table index.Table, key index.Key, why v1alpha1.ChangeReason) error {
	old, err := tx.Get(table, key)
	switch {
	case errors.Is(err, index.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	if err := tx.Delete(table, key); err != nil {
		return err
	}
	return l.record(tx, v1alpha1.ChangeResolved, why, table, old.Value, "")
}

// record logs a change of a finding, whose row has the value.
func (l *changeLog) record(tx *index.Tx, t v1alpha1.ChangeType, why v1alpha1.ChangeReason, table index.Table, value []byte, previous string) error {
	s, err := readLogState(tx.State(bucketMeta))
	if err != nil || s.Since == 0 {
		return err
	}
	now := l.clock.Now()
	if l.paused() {
		s.Since, s.Why = now.Unix(), sinceQuota
		return s.write(tx.State(bucketMeta))
	}
	// Both kinds of findings are the same but for the name of the kind.
	var finding v1alpha1.AuditResult
	if err := json.Unmarshal(value, &finding); err != nil {
		return fmt.Errorf("decode finding: %w", err)
	}
	change := newChange(t, why, &finding, previous, now)
	changes := rows.AuditChanges
	if table == rows.ClusterAuditResults {
		changes = rows.ClusterAuditChanges
	}
	if err := l.put(tx, &s, changes, change); err != nil {
		return err
	}
	for s.Count > l.limit {
		at, n, err := l.dropOldest(tx, 1, time.Time{})
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%d changes are counted and none is there", s.Count)
		}
		s.Count -= int64(n)
		s.Since, s.Why = max(s.Since, at), sinceLimit
	}
	return s.write(tx.State(bucketMeta))
}

func newChange(t v1alpha1.ChangeType, why v1alpha1.ChangeReason, finding *v1alpha1.AuditResult, previous string, now time.Time) *v1alpha1.AuditChange {
	message := finding.Message
	if len(finding.Violations) > 0 {
		message = finding.Violations[0].Message
	}
	message, _ = truncate(message, maxChangeMessageBytes)
	at := metav1.NewTime(now.Truncate(time.Second))
	return &v1alpha1.AuditChange{
		ObjectMeta: metav1.ObjectMeta{
			Name:      v1alpha1.ChangeName(t, finding.Constraint, finding.Resource),
			Namespace: finding.Namespace,
			UID:       v1alpha1.ChangeUID(t, finding.Constraint, finding.Resource),
			Labels:    v1alpha1.ResultLabels(finding.Constraint, finding.Resource.Kind),
		},
		Change: v1alpha1.Change{
			Type:              t,
			Reason:            why,
			Time:              at,
			FirstTime:         at,
			Count:             1,
			Constraint:        finding.Constraint,
			Resource:          finding.Resource,
			Owner:             finding.Owner,
			EnforcementAction: finding.EnforcementAction,
			Result:            finding.Result,
			PreviousResult:    previous,
			Message:           message,
			FirstObserved:     finding.FirstObserved,
			RunID:             finding.RunID,
		},
	}
}

// put writes a change in place of the one of the same finding and type, whose count it
// takes over. It may modify the change.
func (l *changeLog) put(tx *index.Tx, s *logState, table index.Table, change *v1alpha1.AuditChange) error {
	if table == rows.ClusterAuditChanges {
		change.Namespace = ""
	}
	key := index.Key{Namespace: change.Namespace, Name: change.Name}
	row, err := tx.Get(table, key)
	switch {
	case err == nil:
		old, err := decodeChange(row)
		if err != nil {
			return err
		}
		if err := tx.State(bucketChanges).Delete(changeQueueKey(table, old)); err != nil {
			return err
		}
		if change.Time.Before(&old.Time) {
			change, old = old, change
		}
		change.Count += old.Count
		if old.FirstTime.Before(&change.FirstTime) {
			change.FirstTime = old.FirstTime
		}
	case errors.Is(err, index.ErrNotFound):
		s.Count++
	default:
		return err
	}
	encoded, err := encodeChange(table, change)
	if err != nil {
		return err
	}
	if err := tx.Put(table, key, encoded.Value, encoded.Attrs); err != nil {
		return err
	}
	return tx.State(bucketChanges).Put(changeQueueKey(table, change), []byte{})
}

func encodeChange(table index.Table, change *v1alpha1.AuditChange) (*rows.Row, error) {
	change.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "AuditChange"}
	change.CreationTimestamp = change.Time
	change.Labels[v1alpha1.LabelTime] = change.Time.UTC().Format(v1alpha1.TimeLabelLayout)
	if table == rows.AuditChanges {
		return rows.Encode(change)
	}
	change.Kind = "ClusterAuditChange"
	return rows.Encode(&v1alpha1.ClusterAuditChange{TypeMeta: change.TypeMeta, ObjectMeta: change.ObjectMeta, Change: change.Change})
}

func decodeChange(row *index.Row) (*v1alpha1.AuditChange, error) {
	change := &v1alpha1.AuditChange{}
	if err := rows.Decode(row, change); err != nil {
		return nil, err
	}
	change.ResourceVersion = ""
	if change.Labels == nil {
		change.Labels = map[string]string{}
	}
	return change, nil
}

// changeQueueKey is where a change is in bucketChanges: its time, table and key.
func changeQueueKey(table index.Table, change *v1alpha1.AuditChange) string {
	at := binary.BigEndian.AppendUint64(nil, uint64(max(change.Time.Unix(), 0)))
	return string(at) + string(table) + separator + change.Namespace + separator + change.Name
}

// queuedChange is a key of bucketChanges, taken apart.
type queuedChange struct {
	queueKey string
	at       int64
	table    index.Table
	key      index.Key
}

func parseQueueKey(queueKey string) (queuedChange, error) {
	q := queuedChange{queueKey: queueKey}
	if len(queueKey) < 8 {
		return q, fmt.Errorf("the log of changes has the key %q", queueKey)
	}
	q.at = int64(binary.BigEndian.Uint64([]byte(queueKey[:8])))
	parts := strings.SplitN(queueKey[8:], separator, 3)
	if len(parts) != 3 {
		return q, fmt.Errorf("the log of changes has the key %q", queueKey)
	}
	q.table, q.key = index.Table(parts[0]), index.Key{Namespace: parts[1], Name: parts[2]}
	return q, nil
}

// ignoreNotFound returns nil for index.ErrNotFound.
func ignoreNotFound(err error) error {
	if errors.Is(err, index.ErrNotFound) {
		return nil
	}
	return err
}

// errEnough ends an iteration.
var errEnough = errors.New("enough")

// dropOldest deletes at most n changes, oldest first; only those up to a time unless
// that is zero. It returns the time of the last one and how many these were. Their number
// is the caller's to take note of.
func (l *changeLog) dropOldest(tx *index.Tx, n int, upTo time.Time) (at int64, dropped int, err error) {
	queue := tx.State(bucketChanges)
	var drop []queuedChange
	err = queue.Ascend("", func(key string, _ []byte) error {
		q, err := parseQueueKey(key)
		if err != nil {
			return err
		}
		if len(drop) == n || !upTo.IsZero() && q.at > upTo.Unix() {
			return errEnough
		}
		drop = append(drop, q)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0, 0, err
	}
	for _, q := range drop {
		if err := tx.Delete(q.table, q.key); err != nil {
			return 0, 0, fmt.Errorf("drop change %s/%s: %w", q.key.Namespace, q.key.Name, err)
		}
		if err := queue.Delete(q.queueKey); err != nil {
			return 0, 0, err
		}
		at = q.at
	}
	return at, len(drop), nil
}

// expire deletes at most n changes that are older than the retention, or, to make room,
// any. It returns how many these were.
func (l *changeLog) expire(tx *index.Tx, n int, makeRoom bool) (int, error) {
	meta := tx.State(bucketMeta)
	s, err := readLogState(meta)
	if err != nil {
		return 0, err
	}
	now := l.clock.Now()
	upTo := now.Add(-l.retention)
	if makeRoom {
		upTo = time.Time{}
	}
	at, dropped, err := l.dropOldest(tx, n, upTo)
	if err != nil || dropped == 0 {
		return 0, err
	}
	if makeRoom {
		s.Since, s.Why = max(s.Since, at), sinceQuota
	}
	s.Count -= int64(dropped)
	return dropped, s.write(meta)
}

// notice says from when on changes are known, if that is later than the retention says.
func (l *changeLog) notice(tx *index.ReadTx) (string, error) {
	s, err := readLogState(tx.State(bucketMeta))
	if err != nil {
		return "", err
	}
	now := l.clock.Now()
	switch {
	case l.paused():
		return "changes are not logged at the moment: the index is short of room; what opens and is resolved is missing here", nil
	case s.Since == 0 || s.Since <= now.Add(-l.retention).Unix():
		return "", nil
	}
	return fmt.Sprintf("changes are known since %s only: %s", time.Unix(s.Since, 0).UTC().Format(time.RFC3339), s.Why), nil
}

// because gives the same reason for the findings of all constraints.
func because(why v1alpha1.ChangeReason) reasons {
	return func(policy.ConstraintID) v1alpha1.ChangeReason { return why }
}

// reasons tells why the findings of a constraint are resolved.
type reasons func(policy.ConstraintID) v1alpha1.ChangeReason
