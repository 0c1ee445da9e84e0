package access

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"

	"policy.example.io/policy-apiserver/pkg/index"
)

// maxReviews is after how many questions to the authorizer a page of a list is made
// to end, with fewer rows than its limit, if it has any. With the question whether the
// user may list findings at all they are 20.
const maxReviews = 19

// List returns the visible rows that a query selects. It decides about one namespace
// after the other until the page is full. Page.Remaining is known only if it could decide
// about all of them.
func (v *View) List(ctx context.Context, q index.Query) (*index.Page, error) {
	if v.following {
		v.recall()
	}
	page, err := v.list(ctx, q)
	if err == nil {
		v.Listed(page.Revision)
	}
	v.paged = true
	return page, err
}

// Listed says that the client gets a list of a revision, and may watch from there. List
// says it as well.
func (v *View) Listed(revision uint64) {
	if v.subject != nil {
		v.subject.listedAt(revision, v.epoch)
	}
}

func (v *View) list(ctx context.Context, q index.Query) (*index.Page, error) {
	if v.whole {
		return v.read(ctx, q)
	}
	if q.Revision == 0 {
		// What is decided about below are the groups of this revision.
		q.Revision = v.access.Index.Revision()
	}
	namespaces, all, err := v.reach(ctx, &q)
	if err != nil {
		return nil, err
	}
	if all {
		if err := v.noteAll(q.Revision); err != nil {
			return nil, err
		}
		return v.read(ctx, q)
	}
	l := lister{view: v, query: q, limit: q.Limit, left: namespaces, page: &index.Page{Revision: q.Revision}}
	if err := l.run(ctx); err != nil {
		return nil, err
	}
	return l.page, nil
}

// reach returns the namespaces in which rows that a query selects may be visible,
// sorted. all is true if each group of rows is visible in all of them.
func (v *View) reach(ctx context.Context, q *index.Query) (namespaces []string, all bool, err error) {
	switch {
	case q.Namespace != "":
		return []string{q.Namespace}, false, nil
	case slices.Contains(clusterTables, v.table):
		return []string{""}, false, nil
	}
	groups, err := v.access.Index.AllGroups(v.table, q.Revision)
	if err != nil {
		return nil, false, err
	}
	questions := v.gets("", groups)
	err = traced(ctx, spanDecide, func(ctx context.Context) error { return v.askAll(ctx, questions) }, attribute.Int("kinds", len(groups)))
	if err != nil {
		return nil, false, err
	}
	if v.allEverywhere(groups) {
		return nil, true, nil
	}
	// Where a question about all namespaces was worth asking, each single namespace is.
	wide := v.grants == nil || slices.ContainsFunc(questions, func(q question) bool { return v.grants.May("", q.group, q.rbacResource()) })
	if wide {
		namespaces, err = v.access.Index.Namespaces(v.table, q.Revision)
	} else {
		namespaces = v.grants.Namespaces()
	}
	if q.After != nil {
		at, _ := slices.BinarySearch(namespaces, q.After.Namespace)
		namespaces = namespaces[at:]
	}
	return namespaces, false, err
}

// lister fills one page.
type lister struct {
	view  *View
	query index.Query
	limit int
	// left are the namespaces that have not been looked into.
	left []string
	page *index.Page
}

// run looks into the namespaces, twice as many each time, and from one on again when
// the page is full and all that is left to find out is whether there is more.
func (l *lister) run(ctx context.Context) error {
	for size, full := 1, false; ; size *= 2 {
		switch {
		case l.limit == 0:
			size = len(l.left)
		case l.full() && !full:
			size, full = 1, true
		}
		spans, err := l.next(size)
		if err != nil {
			return err
		}
		if len(spans) == 0 && len(l.left) > 0 {
			l.page.More, err = l.anyLeft(ctx)
			if l.page.More {
				l.page.Remaining = -1
			}
			return err
		}
		if err := traced(ctx, spanDecide, func(ctx context.Context) error { return l.view.decide(ctx, spans) }, attribute.Int("namespaces", len(spans))); err != nil {
			return err
		}
		// The index is asked even if nothing is visible: whether there is such a revision.
		if err := l.read(ctx, spans); err != nil {
			return err
		}
		if l.page.More || len(l.left) == 0 {
			return nil
		}
	}
}

func (l *lister) full() bool { return l.limit > 0 && len(l.page.Rows) == l.limit }

// next takes at most size namespaces that have rows, and of these only as many as can
// be decided about with the questions that the page has left. It takes one in any case
// if the page would be empty without.
func (l *lister) next(size int) ([]index.Span, error) {
	var spans []index.Span
	v := l.view
	pending := 0
	for len(spans) < size && len(l.left) > 0 {
		groups, err := v.access.Index.Groups(v.table, l.left[0], l.query.Revision)
		if err != nil {
			return nil, err
		}
		if len(groups) == 0 {
			l.left = l.left[1:]
			continue
		}
		questions := v.gets(l.left[0], groups)
		if !v.allEverywhere(groups) {
			questions = append(questions, unscopedIn(l.left[0]))
		}
		for _, q := range questions {
			if v.open(q) && !v.subject.knows(q, v.access.TTL) {
				pending++
			}
		}
		left := maxReviews - v.reviewed()
		if len(l.left) > 1 {
			left-- // one question is kept to find out whether there is more
		}
		if l.bounded() && pending > left && len(spans)+len(l.page.Rows) > 0 {
			break
		}
		spans = append(spans, index.Span{Namespace: l.left[0], Groups: groups})
		l.left = l.left[1:]
	}
	return spans, nil
}

// bounded is true if the page may end before it is full: the first of a request, for
// which its client waits. Without a narrower most questions are about namespaces in which
// nothing is visible, and a page must not tell by where it ends that there are some.
func (l *lister) bounded() bool { return l.limit > 0 && l.view.grants != nil && !l.view.paged }

// anyLeft tells whether anything is visible in the namespaces that are left.
func (l *lister) anyLeft(ctx context.Context) (bool, error) {
	for _, namespace := range l.left {
		groups, err := l.view.access.Index.Groups(l.view.table, namespace, l.query.Revision)
		if err != nil {
			return false, err
		}
		for _, group := range groups {
			if visible, err := l.view.visibleGroups(ctx, namespace, []string{group}); err != nil || len(visible) > 0 {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// read reads the visible rows of spans into the page.
func (l *lister) read(ctx context.Context, spans []index.Span) error {
	var visible []index.Span
	for _, span := range spans {
		groups, err := l.view.visibleGroups(ctx, span.Namespace, span.Groups)
		if err != nil {
			return err
		}
		if len(groups) > 0 {
			visible = append(visible, index.Span{Namespace: span.Namespace, Groups: groups})
		}
	}
	l.view.note(visible)
	q := l.query
	q.Scope = index.NewScope(visible...)
	if q.Limit = l.limit - len(l.page.Rows); l.full() {
		q.Limit = 1 // one more row tells whether there is more
	}
	part, err := l.view.read(ctx, q)
	if err != nil {
		return err
	}
	remaining := part.Remaining
	if l.full() {
		l.page.More = len(part.Rows) > 0
		remaining += int64(len(part.Rows))
	} else {
		l.page.Rows = append(l.page.Rows, part.Rows...)
		l.page.More = part.More
	}
	switch {
	case !l.page.More:
		l.page.Remaining = 0
	case part.Remaining < 0 || len(l.left) > 0:
		l.page.Remaining = -1
	default:
		l.page.Remaining = remaining
	}
	return nil
}
