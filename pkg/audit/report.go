package audit

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	// reportInterval is how often runs and summaries are written at most.
	reportInterval = 250 * time.Millisecond
	// backlogInterval is how often it is found out whether changes wait, while nothing
	// else is reported.
	backlogInterval = time.Second
	// keptRuns is how many AuditRuns are kept.
	keptRuns = 100
)

// reporter writes the tracker's runs and summaries into the index.
type reporter struct {
	a *Auditor
	// runs are the names of the runs in the index, oldest first.
	runs []string
	// summaries are those in the index, by name.
	summaries map[string]*v1alpha1.ConstraintSummary
}

// load reads what an earlier process reported. Its active run is aborted, and no
// summary is current until its kinds are listed.
func (r *reporter) load(ctx context.Context) error {
	r.summaries = map[string]*v1alpha1.ConstraintSummary{}
	t := r.a.tracker
	var changed []*rows.Row
	page, err := r.a.index.List(ctx, index.Query{Table: rows.AuditRuns})
	if err != nil {
		return fmt.Errorf("read audit runs: %w", err)
	}
	for _, row := range page.Rows {
		var old v1alpha1.AuditRun
		if err := rows.Decode(row, &old); err != nil {
			return err
		}
		r.runs = append(r.runs, old.Name)
		t.newest = max(t.newest, old.Name)
		if old.Trigger != v1alpha1.TriggerSweep {
			t.lastRun = max(t.lastRun, old.Name)
		}
		if old.Phase == v1alpha1.RunRunning {
			old.Phase, old.Finished = v1alpha1.RunAborted, timeOrNil(r.a.clock.Now())
			row, err := rows.Encode(&old)
			if err != nil {
				return err
			}
			changed = append(changed, row)
		}
	}
	page, err = r.a.index.List(ctx, index.Query{Table: rows.ConstraintSummaries})
	if err != nil {
		return fmt.Errorf("read constraint summaries: %w", err)
	}
	for _, row := range page.Rows {
		old := &v1alpha1.ConstraintSummary{}
		if err := rows.Decode(row, old); err != nil {
			return err
		}
		old.ResourceVersion = ""
		if old.LastCompletedTime != nil {
			id := policy.ConstraintID{Engine: policy.Engine(old.Constraint.Engine), Kind: old.Constraint.Kind, Name: old.Constraint.Name}
			t.completed[id] = completion{run: old.LastCompletedRun, time: old.LastCompletedTime.Time}
		}
		if old.State != v1alpha1.SummaryRejected {
			old.State, old.Message = v1alpha1.SummaryNotYetAudited, "the server has started and compares the findings with the source"
		}
		row, err := rows.Encode(old)
		if err != nil {
			return err
		}
		changed = append(changed, row)
		r.summaries[old.Name] = old
	}
	r.a.submit(&put{a: r.a, rows: changed})
	return nil
}

// run reports until ctx is done.
func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-r.a.tracker.wake:
		case <-r.a.clock.After(backlogInterval):
			if !r.a.tracker.setBehind(r.a.writer.behind()) {
				continue
			}
		case <-ctx.Done():
			return
		}
		if err := r.report(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Runs and summaries could not be reported; trying again")
			r.a.tracker.notify()
		}
		select {
		case <-r.a.clock.After(wait.Jitter(reportInterval, 0.1)):
		case <-ctx.Done():
			return
		}
	}
}

// report writes what has changed since the last report.
func (r *reporter) report(ctx context.Context) error {
	t := r.a.tracker
	t.setBehind(r.a.writer.behind())
	t.mu.Lock()
	t.runOfRecovered()
	ended := t.ended
	var runs []*v1alpha1.AuditRun
	for _, e := range ended {
		runs = append(runs, e.object())
	}
	if t.run != nil {
		for gk := range t.run.kinds {
			t.fill(t.run, gk)
		}
		runs = append(runs, t.run.object())
	}
	if t.sweep != nil {
		runs = append(runs, t.sweep.object())
	}
	loaded := t.loaded
	for _, e := range ended {
		loaded = loaded || e.phase == v1alpha1.RunComplete || e.phase == v1alpha1.RunPartial
	}
	var summaries []*v1alpha1.ConstraintSummary
	withSummaries := t.summaries && t.policies.planned
	if withSummaries {
		summaries = t.summaryObjects()
	}
	t.summaries, t.reporting = false, true
	t.mu.Unlock()

	op := &put{a: r.a, loaded: loaded, done: func() {
		t.reported()
		r.a.reported(loaded)
	}}
	err := r.addRuns(op, runs)
	if err == nil && withSummaries {
		err = r.addSummaries(op, summaries)
	}
	if err != nil {
		t.mu.Lock()
		t.summaries, t.reporting = t.summaries || withSummaries, false
		t.mu.Unlock()
		return err
	}
	for _, run := range runs[:len(ended)] {
		klog.FromContext(ctx).Info("Audit run ended", "run", run.Name, "phase", run.Phase, "trigger", run.Trigger, "kinds", len(run.Kinds),
			"listed", run.Listed, "evaluated", run.Evaluated, "unchanged", run.Unchanged, "errors", run.Failed, "differences", run.Differences, "problems", len(run.Problems))
	}
	t.mu.Lock()
	t.ended = t.ended[len(ended):]
	t.loaded = loaded
	t.mu.Unlock()
	if len(op.rows)+len(op.deletes) == 0 {
		t.reported()
		return nil
	}
	r.a.submit(op)
	return nil
}

// runOfRecovered makes a run of the kinds that work again; the caller holds mu.
func (t *tracker) runOfRecovered() {
	if len(t.recovered) == 0 || t.run != nil {
		return
	}
	t.begin(v1alpha1.TriggerKindChange, nil, t.digest, t.problems)
	for gk := range t.recovered {
		k := t.status(gk)
		t.run.kinds[gk] = &v1alpha1.KindRun{Group: gk.Group, Version: k.kind.Version, Kind: gk.Kind, Phase: v1alpha1.RunComplete}
		delete(t.recovered, gk)
	}
	t.finishIfDone()
}

func (r *reporter) addRuns(op *put, runs []*v1alpha1.AuditRun) error {
	for _, obj := range runs {
		row, err := rows.Encode(obj)
		if err != nil {
			return err
		}
		op.rows = append(op.rows, row)
		if i, ok := slices.BinarySearch(r.runs, obj.Name); !ok {
			r.runs = slices.Insert(r.runs, i, obj.Name)
		}
	}
	for len(r.runs) > keptRuns {
		op.deletes = append(op.deletes, rowID{rows.AuditRuns, index.Key{Name: r.runs[0]}})
		r.runs = r.runs[1:]
	}
	return nil
}

func (r *reporter) addSummaries(op *put, summaries []*v1alpha1.ConstraintSummary) error {
	current := make(map[string]*v1alpha1.ConstraintSummary, len(summaries))
	for _, s := range summaries {
		if err := r.count(s); err != nil {
			return err
		}
		if old := r.summaries[s.Name]; old != nil && old.UID == s.UID {
			s.CreationTimestamp = old.CreationTimestamp
		} else {
			s.CreationTimestamp = metav1.NewTime(r.a.clock.Now().Truncate(time.Second))
		}
		row, err := rows.Encode(s)
		if err != nil {
			return err
		}
		op.rows = append(op.rows, row)
		current[s.Name] = s
	}
	for name := range r.summaries {
		if current[name] == nil {
			op.deletes = append(op.deletes, rowID{rows.ConstraintSummaries, index.Key{Name: name}})
		}
	}
	r.summaries = current
	return nil
}

// count fills the totals from the index.
func (r *reporter) count(s *v1alpha1.ConstraintSummary) error {
	for result, total := range map[v1alpha1.Result]*int64{
		v1alpha1.ResultFail:     &s.Totals.Fail,
		v1alpha1.ResultError:    &s.Totals.Error,
		v1alpha1.ResultDeferred: &s.Totals.Deferred,
	} {
		for _, table := range []index.Table{rows.AuditResults, rows.ClusterAuditResults} {
			n, err := r.a.index.Count(table,
				index.Term{Field: "constraint.engine", Value: string(s.Constraint.Engine)},
				index.Term{Field: "constraint.kind", Value: s.Constraint.Kind},
				index.Term{Field: "constraint.name", Value: s.Constraint.Name},
				index.Term{Field: "result", Value: string(result)})
			if err != nil {
				return fmt.Errorf("count results of %s: %w", s.Name, err)
			}
			*total += n
		}
	}
	if s.State == v1alpha1.SummaryCurrent && s.Totals.Deferred > 0 {
		s.State, s.Message = v1alpha1.SummaryDeferred, "the verdicts on some objects wait for data that the policy refers to"
	}
	return nil
}

// object makes the API object of a run.
func (r *run) object() *v1alpha1.AuditRun {
	out := &v1alpha1.AuditRun{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "AuditRun"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              r.name,
			UID:               v1alpha1.SummaryUID(v1alpha1.ConstraintReference{Name: r.name}),
			CreationTimestamp: metav1.NewTime(r.started),
		},
		Trigger:      r.trigger,
		Phase:        r.phase,
		Started:      metav1.NewTime(r.started),
		Finished:     timeOrNil(r.finished),
		PolicyDigest: r.digest,
	}
	for _, k := range r.kinds {
		out.Kinds = append(out.Kinds, *k)
		out.Listed += k.Listed
		out.Evaluated += k.Evaluated
		out.Unchanged += k.Unchanged
		out.Failed += k.Failed
		out.Differences += k.Differences
	}
	if r.trigger == v1alpha1.TriggerSweep && r.phase != v1alpha1.RunRunning {
		out.Conditions = append(out.Conditions, r.consistent())
	}
	sort.Slice(out.Kinds, func(i, j int) bool {
		if out.Kinds[i].Group != out.Kinds[j].Group {
			return out.Kinds[i].Group < out.Kinds[j].Group
		}
		return out.Kinds[i].Kind < out.Kinds[j].Kind
	})
	for _, p := range r.problems {
		out.Problems = append(out.Problems, v1alpha1.RunProblem{Subject: p.Subject, Message: p.Message})
	}
	return out
}

// consistent is the condition of a sweep that has ended.
func (r *run) consistent() metav1.Condition {
	c := metav1.Condition{
		Type:               v1alpha1.ConditionConsistent,
		Status:             metav1.ConditionTrue,
		Reason:             "NothingMissed",
		Message:            "what was listed is what the audit knew",
		LastTransitionTime: metav1.NewTime(r.finished),
	}
	if len(r.missed) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, "ChangesMissed"
		c.Message, _ = truncate("changes were missed and the kinds are listed again: "+strings.Join(r.missed, "; "), maxProblemBytes)
	}
	return c
}

// summaryObjects makes the summaries without their totals of results; the caller
// holds mu.
func (t *tracker) summaryObjects() []*v1alpha1.ConstraintSummary {
	var out []*v1alpha1.ConstraintSummary
	for i := range t.policies.constraints {
		c := &t.policies.constraints[i]
		ref := constraintReference(c.Constraint)
		s := newSummary(ref, c.EnforcementAction)
		if s.State, s.Message = t.constraintState(c); s.Message == "" {
			s.Message, _ = truncate(c.Note, maxProblemBytes)
		}
		for _, gk := range c.kinds {
			s.Totals.Evaluated += t.status(gk).objects
		}
		if done, ok := t.completed[c.ID]; ok {
			s.LastCompletedRun, s.LastCompletedTime = done.run, timeOrNil(done.time)
		}
		out = append(out, s)
	}
	for i := range t.policies.rejections {
		rejection := &t.policies.rejections[i]
		ref := referenceOf(rejection.ID)
		ref.UID, ref.Generation = rejection.UID, rejection.Generation
		s := newSummary(ref, rejection.EnforcementAction)
		s.State = v1alpha1.SummaryRejected
		s.Message, _ = truncate(rejection.Message, maxMessageBytes)
		out = append(out, s)
	}
	return distinctNames(out)
}

// distinctNames gives summaries names of their own. Kinds that differ in case only,
// and names with dots, can lead to the same one; the first keeps it.
func distinctNames(summaries []*v1alpha1.ConstraintSummary) []*v1alpha1.ConstraintSummary {
	taken := make(map[string]struct{}, len(summaries))
	for _, s := range summaries {
		if _, ok := taken[s.Name]; ok {
			s.Name = v1alpha1.SummaryHashedName(s.Constraint)
		}
		taken[s.Name] = struct{}{}
	}
	return summaries
}

func newSummary(ref v1alpha1.ConstraintReference, action string) *v1alpha1.ConstraintSummary {
	labels := map[string]string{v1alpha1.LabelConstraintKind: ref.Kind}
	if ref.Name != "" && len(ref.Name) <= 63 {
		labels[v1alpha1.LabelConstraintName] = ref.Name
	}
	return &v1alpha1.ConstraintSummary{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ConstraintSummary"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   strings.ToLower(v1alpha1.SummaryName(ref)),
			UID:    v1alpha1.SummaryUID(ref),
			Labels: labels,
		},
		Constraint:         ref,
		EnforcementAction:  action,
		ObservedGeneration: ref.Generation,
	}
}
