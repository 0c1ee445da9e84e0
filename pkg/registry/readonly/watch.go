package readonly

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	// bookmarkInterval is how often a watch that allows bookmarks gets one.
	bookmarkInterval = time.Minute
	// lastBookmark is how long before the end of a watch it gets its last bookmark,
	// as from kube-apiserver's watch cache.
	lastBookmark = 2 * time.Second
	// watchBuffer is how many events wait for the client: enough for the handler to
	// flush them together. A client that does not read holds up only its own watch.
	watchBuffer = 100
	// snapshotPage is how many rows of the initial state are in memory at a time.
	snapshotPage = 500
	// changesPage is how many changes are read at a time.
	changesPage = 500
)

// Watch implements rest.Watcher.
//
// With initial events, which the framework asks for where no resourceVersion is
// given, the watch begins with the current state, not older than the
// resourceVersion, as ADDED events; where bookmarks are allowed one with the
// annotation k8s.io/initial-events-end follows. Else it begins with what changed
// after the resourceVersion, or from now on if that is unset or 0. An object that
// comes to match the selectors is ADDED, one that ceases to is DELETED.
//
// Errors that depend on the revision come as an ERROR event, as from
// kube-apiserver. When what the user may see changes the watch ends with 410 Expired,
// and so does one from a revision since which that may have changed.
func (r *REST) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	revision, err := parseRevision(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	selected, err := r.selection(r.namespace(ctx), options)
	if err != nil {
		return nil, err
	}
	view, err := r.view(ctx)
	if err != nil {
		return nil, err
	}
	request := ctx
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{
		ctx:       request,
		rest:      r,
		view:      view,
		selected:  selected,
		positions: r.fieldPositions(),
		bookmarks: options.AllowWatchBookmarks,
		initial:   revision == 0,
		cancel:    cancel,
		events:    make(chan watch.Event, watchBuffer),
	}
	if options.SendInitialEvents != nil {
		w.initial = *options.SendInitialEvents
		w.initialBookmark = w.initial && options.AllowWatchBookmarks
	}
	// Without timeoutSeconds the handler chooses a deadline.
	w.deadline, _ = ctx.Deadline()
	go w.run(ctx, revision)
	return w, nil
}

// watcher is one watch.
type watcher struct {
	rest            *REST
	view            *access.View
	selected        *selected
	positions       map[string]int
	initial         bool // send the current state first
	initialBookmark bool // and mark its end
	bookmarks       bool
	deadline        time.Time // of the request, zero if it has none

	ctx    context.Context // of the request
	cancel context.CancelFunc
	once   sync.Once
	events chan watch.Event
	sent   atomic.Int64 // events with objects
}

// Stop implements watch.Interface. The handler calls it before the request is logged
// as complete.
func (w *watcher) Stop() {
	w.once.Do(func() {
		w.cancel()
		annotateRows(w.ctx, int(w.sent.Load()))
	})
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

// run produces the events and closes the channel at the end.
func (w *watcher) run(ctx context.Context, revision uint64) {
	defer close(w.events)
	defer w.Stop()
	err := w.produceVisible(ctx, revision)
	if ctx.Err() != nil {
		return
	}
	var status apierrors.APIStatus
	if err = toAPIError(err, v1alpha1.Resource(string(w.rest.Table)), ""); !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	w.send(ctx, watch.Event{Type: watch.Error, Object: &object})
}

// produceVisible produces events for as long as what the user may see is the same.
func (w *watcher) produceVisible(ctx context.Context, revision uint64) error {
	from := revision
	if w.initial {
		from = 0
	}
	ctx, stop, err := w.view.Follow(ctx, from)
	if err != nil {
		return err
	}
	defer stop()
	err = w.produce(ctx, revision)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// send delivers an event and tells whether the watch goes on.
func (w *watcher) send(ctx context.Context, event watch.Event) bool {
	select {
	case w.events <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *watcher) produce(ctx context.Context, revision uint64) error {
	if err := w.rest.waitFor(ctx, revision); err != nil {
		return err
	}
	if w.initial {
		var err error
		if revision, err = w.sendState(ctx); err != nil {
			return err
		}
	} else if revision == 0 {
		revision = w.rest.backend.Index.Revision()
	}
	w.view.Annotate(ctx)
	utilflowcontrol.WatchInitialized(ctx)
	return w.follow(ctx, revision)
}

// sendState sends the current state and returns its revision.
func (w *watcher) sendState(ctx context.Context) (uint64, error) {
	query := w.selected.query(w.rest.Table)
	query.Limit = snapshotPage
	query.WithoutAttrs = true
	query.Revision = w.rest.backend.Index.Revision()
	for !w.selected.none {
		page, err := w.view.List(ctx, query)
		if err != nil {
			return 0, err
		}
		for _, row := range page.Rows {
			object := &eventObject{storedObject: storedObject{rest: w.rest, row: row, revision: row.Revision}}
			if err := w.sendObject(ctx, watch.Added, object); err != nil {
				return 0, err
			}
		}
		if !page.More {
			break
		}
		query.After = &page.Rows[len(page.Rows)-1].Key
	}
	w.view.Listed(query.Revision)
	if w.initialBookmark {
		return query.Revision, w.sendBookmark(ctx, query.Revision, storage.AnnotateInitialEventsEndBookmark)
	}
	return query.Revision, nil
}

// follow sends what changes after a revision.
func (w *watcher) follow(ctx context.Context, revision uint64) error {
	next := w.nextBookmark(time.Now())
	for {
		changes, err := w.changes(ctx, revision, next)
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			// Nothing has changed up to now: all that was written is behind the watch.
			if err := w.sendBookmark(ctx, revision, nil); err != nil {
				return err
			}
			next = w.nextBookmark(time.Now())
			continue
		default:
			return err
		}
		for i := range changes {
			if err := w.sendChange(ctx, &changes[i]); err != nil {
				return err
			}
			revision = changes[i].Revision
		}
		if w.bookmarks && !time.Now().Before(next) {
			if err := w.sendBookmark(ctx, revision, nil); err != nil {
				return err
			}
			next = w.nextBookmark(time.Now())
		}
	}
}

// changes waits for changes, or until the next bookmark is due.
func (w *watcher) changes(ctx context.Context, revision uint64, next time.Time) ([]index.Change, error) {
	if w.bookmarks {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, next)
		defer cancel()
	}
	changes, _, err := w.rest.backend.Feed.Next(ctx, revision, changesPage)
	return changes, err
}

func (w *watcher) nextBookmark(now time.Time) time.Time {
	next := now.Add(bookmarkInterval)
	if last := w.deadline.Add(-lastBookmark); !w.deadline.IsZero() && last.After(now) && last.Before(next) {
		return last
	}
	return next
}

// sees tells whether a row is selected and visible.
func (w *watcher) sees(ctx context.Context, row *index.Row) (bool, error) {
	if !w.selected.selects(row, w.positions) {
		return false, nil
	}
	return w.view.Shows(ctx, row)
}

// sendChange sends a change as the selectors, and what the user may see, let it appear.
func (w *watcher) sendChange(ctx context.Context, c *index.Change) error {
	if c.Table != w.rest.Table {
		return nil
	}
	before, err := w.sees(ctx, c.Old)
	if err != nil {
		return err
	}
	after, err := w.sees(ctx, c.New)
	if err != nil {
		return err
	}
	switch {
	case after && before:
		return w.sendRow(ctx, watch.Modified, c.New, c.Revision)
	case after:
		return w.sendRow(ctx, watch.Added, c.New, c.Revision)
	case before:
		// What is sent of an object that is gone is its last state, with the revision of
		// its end.
		return w.sendRow(ctx, watch.Deleted, c.Old, c.Revision)
	}
	return nil
}

func (w *watcher) sendRow(ctx context.Context, event watch.EventType, row *index.Row, revision uint64) error {
	return w.sendObject(ctx, event, w.rest.events.object(w.rest, row, revision))
}

func (w *watcher) sendObject(ctx context.Context, event watch.EventType, obj runtime.Object) error {
	if !w.send(ctx, watch.Event{Type: event, Object: obj}) {
		return ctx.Err()
	}
	if event != watch.Bookmark {
		w.sent.Add(1)
	}
	return nil
}

// sendBookmark tells the client that it has seen everything up to a revision.
func (w *watcher) sendBookmark(ctx context.Context, revision uint64, annotate func(runtime.Object) error) error {
	obj := w.rest.Resource.New()
	obj.SetResourceVersion(rows.FormatRevision(revision))
	if annotate != nil {
		if err := annotate(obj); err != nil {
			return err
		}
	}
	return w.sendObject(ctx, watch.Bookmark, obj)
}

var _ watch.Interface = (*watcher)(nil)
