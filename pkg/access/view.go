package access

import (
	"context"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/audit"

	"policy.example.io/policy-apiserver/pkg/index"
	findings "policy.example.io/policy-apiserver/pkg/rows"
)

// Audit annotations of requests for findings.
const (
	// AnnotationScope is unscoped if all findings are visible, else scoped.
	AnnotationScope = "policy.example.io/scope"
	// AnnotationNamespaces is in how many namespaces something was visible, of those
	// that had to be decided about.
	AnnotationNamespaces = "policy.example.io/scope-namespaces"
	// AnnotationReviews is how many questions the request put to the authorizer.
	AnnotationReviews = "policy.example.io/access-reviews"
)

// View is what one request may see of a table. It reads as the index does, and is used by
// one goroutine at a time. What is decided holds for as long as the view is used; one that
// follows changes ends before it does not hold any more.
type View struct {
	rows  Reader
	table index.Table
	// whole is true if everything is visible.
	whole bool

	// The fields below are only set if there is somebody to decide about.
	access  *Access
	subject *subject
	epoch   string
	grants  Grants // nil if everything is asked
	// paged is true once a page has been read: what follows is for the same request.
	paged bool
	// following is true if the subject keeps the answers, and ends the watch when one
	// changes.
	following bool

	mu      sync.Mutex // protects the fields below
	answers map[question]bool
	reviews int
	visible map[string]struct{} // namespaces
}

// Whole returns the view of everything in a table.
func Whole(reader Reader, table index.Table) *View {
	return &View{rows: reader, table: table, whole: true}
}

// Epoch names what is visible for as long as that does not change. It is empty if
// everything is.
func (v *View) Epoch() string {
	if v.whole {
		return ""
	}
	return v.epoch
}

// Get returns a row at a revision, index.ErrNotFound if it is not visible.
func (v *View) Get(ctx context.Context, key index.Key, revision uint64) (*index.Row, error) {
	row, err := v.rows.Get(v.table, key, revision)
	if err != nil || v.whole {
		return row, err
	}
	visible, err := v.Shows(ctx, row)
	if err == nil && !visible {
		err = index.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return row, nil
}

// Shows tells whether a row is visible. It may be called for nil, which is not.
func (v *View) Shows(ctx context.Context, row *index.Row) (bool, error) {
	if row == nil || v.whole {
		return row != nil, nil
	}
	group, err := v.access.Index.GroupOf(v.table, row)
	if err != nil {
		return false, err
	}
	if v.following {
		v.recall()
		// One answer about all namespaces is less to keep than one about each.
		if q, known := v.get("", group); known {
			if _, err := v.ask(ctx, q); err != nil {
				return false, err
			}
		}
	}
	groups, err := v.visibleGroups(ctx, row.Namespace, []string{group})
	return len(groups) > 0, err
}

// Follow has a watch end when what its user may see changes: the context that it
// returns is then done, with the reason as its cause. from is the revision that the
// client goes on from, 0 if the watch sends the state itself. It returns ErrChanged if
// the client has to list anew first.
func (v *View) Follow(ctx context.Context, from uint64) (followed context.Context, stop func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop = func() { cancel(nil) }
	if v.subject == nil {
		return ctx, stop, nil
	}
	if from > 0 {
		if err := v.subject.refresh(ctx, v.access.TTL); err != nil {
			stop()
			return nil, nil, err
		}
	}
	w := &watch{end: cancel}
	if err := v.subject.follow(w, v.epoch, from, v.whole); err != nil {
		stop()
		return nil, nil, err
	}
	v.following = true
	return ctx, func() { v.subject.unfollow(w); cancel(nil) }, nil
}

// Annotate adds what was visible to the audit event of the request. It is called once.
func (v *View) Annotate(ctx context.Context) {
	if v.subject == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.whole {
		audit.AddAuditAnnotations(ctx, AnnotationScope, "unscoped", AnnotationReviews, strconv.Itoa(v.reviews))
		return
	}
	audit.AddAuditAnnotations(ctx, AnnotationScope, "scoped",
		AnnotationNamespaces, strconv.Itoa(len(v.visible)), AnnotationReviews, strconv.Itoa(v.reviews))
}

// recall has a view that follows changes take its answers from its subject again, which
// keeps those that are still of use.
func (v *View) recall() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.answers)
}

// ask decides a question for the life of the view.
func (v *View) ask(ctx context.Context, q question) (bool, error) {
	if !v.open(q) {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.answers[q], nil
	}
	maxAge := v.access.TTL
	if v.following {
		maxAge = v.access.TTL * staleTTLs // the subject sees to younger ones
	}
	allowed, reviewed, err := v.subject.ask(ctx, q, maxAge)
	if err != nil {
		return false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.answers == nil {
		v.answers = map[question]bool{}
	}
	v.answers[q] = allowed
	if reviewed {
		v.reviews++
	}
	return allowed, nil
}

// open tells whether a question has to be asked: it is not decided, and not hopeless.
func (v *View) open(q question) bool {
	v.mu.Lock()
	_, decided := v.answers[q]
	v.mu.Unlock()
	return !decided && (v.grants == nil || v.grants.May(q.namespace, q.group, q.rbacResource()))
}

// askAll decides questions, several at a time.
func (v *View) askAll(ctx context.Context, questions []question) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, q := range questions {
		if v.open(q) {
			group.Go(func() error {
				_, err := v.ask(ctx, q)
				return err
			})
		}
	}
	return group.Wait()
}

// get is the question whether objects of a group of findings may be had. It is not
// known if the resource of their kind is not.
func (v *View) get(namespace, group string) (q question, known bool) {
	gvr, known := v.access.Resources.Resource(findings.GroupKind(group))
	return question{namespace: namespace, group: gvr.Group, version: gvr.Version, resource: gvr.Resource}, known
}

// reviewed returns how many questions the authorizer was asked.
func (v *View) reviewed() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reviews
}

// note counts the namespaces in which something is visible.
func (v *View) note(spans []index.Span) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.visible == nil {
		v.visible = map[string]struct{}{}
	}
	for _, span := range spans {
		v.visible[span.Namespace] = struct{}{}
	}
}

// noteAll counts all namespaces, once.
func (v *View) noteAll(revision uint64) error {
	if v.paged {
		return nil
	}
	namespaces, err := v.access.Index.Namespaces(v.table, revision)
	if err != nil {
		return err
	}
	spans := make([]index.Span, len(namespaces))
	for i, namespace := range namespaces {
		spans[i].Namespace = namespace
	}
	v.note(spans)
	return nil
}

// allows tells what was decided.
func (v *View) allows(q question) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.answers[q]
}

// everywhere tells whether a group was decided to be visible in all namespaces.
func (v *View) everywhere(group string) bool {
	q, known := v.get("", group)
	return known && v.allows(q)
}

func (v *View) allEverywhere(groups []string) bool {
	for _, group := range groups {
		if !v.everywhere(group) {
			return false
		}
	}
	return true
}

// gets are the questions that decide about groups of a namespace one by one; those
// that are visible everywhere need none.
func (v *View) gets(namespace string, groups []string) []question {
	var out []question
	for _, group := range groups {
		if q, known := v.get(namespace, group); known && !v.everywhere(group) {
			out = append(out, q)
		}
	}
	return out
}

// visibleGroups returns those of a namespace's groups that are visible.
func (v *View) visibleGroups(ctx context.Context, namespace string, groups []string) ([]string, error) {
	span := index.Span{Namespace: namespace, Groups: groups}
	if err := v.decide(ctx, []index.Span{span}); err != nil {
		return nil, err
	}
	if v.allows(unscopedIn(namespace)) {
		return groups, nil
	}
	var out []string
	for _, group := range groups {
		if q, known := v.get(namespace, group); known && (v.everywhere(group) || v.allows(q)) {
			out = append(out, group)
		}
	}
	return out, nil
}

// decide decides about groups of namespaces: first whether all of a namespace is
// visible.
func (v *View) decide(ctx context.Context, spans []index.Span) error {
	var unscoped, gets []question
	for _, span := range spans {
		if !v.allEverywhere(span.Groups) {
			unscoped = append(unscoped, unscopedIn(span.Namespace))
		}
	}
	if err := v.askAll(ctx, unscoped); err != nil {
		return err
	}
	for _, span := range spans {
		if !v.allows(unscopedIn(span.Namespace)) {
			gets = append(gets, v.gets(span.Namespace, span.Groups)...)
		}
	}
	return v.askAll(ctx, gets)
}
