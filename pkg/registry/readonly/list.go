package readonly

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// List implements rest.Lister.
//
//	resourceVersion, match             answers with
//	unset, or 0                        the current state
//	N, unset, without limit            the current state, not older than N
//	N, unset, with limit               the state at N
//	N, NotOlderThan                    the current state, not older than N
//	N, Exact                           the state at N
//	unset or 0, with continue          the state of the first page
//
// A state that has not been written yet is waited for a little and is 504 then;
// one that is not kept any more is 410. A page of a list whose revision is not
// kept any more is 410 with a token by which the client can go on in the current
// state. If what the user may see has changed since the first page, it is 410 without
// one.
func (r *REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	selected, err := r.selection(r.namespace(ctx), options)
	if err != nil {
		return nil, err
	}
	view, err := r.view(ctx)
	if err != nil {
		return nil, err
	}
	list, err := r.list(ctx, view, selected, options)
	if err != nil {
		view.Annotate(ctx)
		return nil, err
	}
	var once sync.Once
	list.done = func(n int) {
		once.Do(func() {
			view.Annotate(ctx)
			annotateRows(ctx, n)
		})
	}
	if mayStream(ctx) {
		return list, nil
	}
	return list.decode()
}

// list reads the first page of a list.
func (r *REST) list(ctx context.Context, view *access.View, selected *selected, options *metainternalversion.ListOptions) (*stream, error) {
	query := selected.query(r.Table)
	query.Limit = int(options.Limit)
	query.WithoutAttrs = true
	digest := selectionDigest(r.Table, r.namespace(ctx), selected.text)
	var left int64
	var err error
	if options.Continue != "" {
		left, err = r.continueQuery(&query, options, digest, view.Epoch())
	} else {
		query.Revision, err = r.listRevision(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	whole := query.Limit <= 0
	if whole && mayStream(ctx) {
		query.Limit = firstStreamPage
	}
	page, err := r.firstPage(ctx, view, selected, query)
	if err != nil {
		return nil, r.listError(err, &query, digest, view.Epoch())
	}
	s := &stream{rest: r, list: r.NewList(), first: page}
	if whole {
		s.next = r.pagesBehind(ctx, view, query, page.Revision)
	}
	if err := s.describe(selected, digest, view.Epoch(), left); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return s, nil
}

// firstPage reads the first page that is asked for. If the selectors contradict each
// other it is empty, but of a revision that can be read.
func (r *REST) firstPage(ctx context.Context, view *access.View, selected *selected, query index.Query) (*index.Page, error) {
	if !selected.none {
		return view.List(ctx, query)
	}
	if query.Revision == 0 {
		query.Revision = r.backend.Index.Revision()
	}
	// There is no row without a name.
	if _, err := r.backend.Index.Get(r.Table, index.Key{}, query.Revision); !errors.Is(err, index.ErrNotFound) {
		return nil, err
	}
	view.Listed(query.Revision)
	return &index.Page{Revision: query.Revision}, nil
}

// continueQuery makes a query start where a token says. It returns how many objects
// there are from there on, 0 if that is not known.
func (r *REST) continueQuery(query *index.Query, options *metainternalversion.ListOptions, digest, epoch string) (left int64, err error) {
	if options.ResourceVersion != "" && options.ResourceVersion != "0" {
		return 0, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	token, err := decodeContinue(options.Continue, digest)
	if err != nil {
		return 0, err
	}
	if token.Epoch != epoch {
		return 0, toAPIError(access.ErrChanged, v1alpha1.Resource(string(r.Table)), "")
	}
	query.Revision = token.Revision
	query.After = &index.Key{Namespace: token.Namespace, Name: token.Name}
	return token.Left, nil
}

// listRevision returns the revision to read at, 0 for the current one.
func (r *REST) listRevision(ctx context.Context, options *metainternalversion.ListOptions) (uint64, error) {
	revision, err := parseRevision(options.ResourceVersion)
	if err != nil || revision == 0 {
		return 0, err
	}
	if err := r.waitFor(ctx, revision); err != nil {
		return 0, err
	}
	switch options.ResourceVersionMatch {
	case metav1.ResourceVersionMatchExact:
		return revision, nil
	case metav1.ResourceVersionMatchNotOlderThan:
		return 0, nil
	}
	if options.Limit > 0 {
		return revision, nil
	}
	return 0, nil
}

// listError adds to a 410 of a further page the token to go on with.
func (r *REST) listError(err error, query *index.Query, digest, epoch string) error {
	expired := errors.Is(err, index.ErrCompacted) || errors.Is(err, index.ErrFutureRevision)
	err = toAPIError(err, v1alpha1.Resource(string(r.Table)), "")
	var status *apierrors.StatusError
	if !expired || query.After == nil || !errors.As(err, &status) {
		return err
	}
	token, encodeErr := continueToken{Version: tokenVersion, Namespace: query.After.Namespace, Name: query.After.Name, Selection: digest, Epoch: epoch}.encode()
	if encodeErr != nil {
		return apierrors.NewInternalError(encodeErr)
	}
	status.ErrStatus.Message = "the continue token is too old to go on with the same list; start anew, or go on in the current state with the token of this status, which may miss or repeat what has changed in between"
	status.ErrStatus.Continue = token
	return status
}

// describe fills in the metadata of a list; left is the number of objects from its
// first page on, 0 if only the page knows.
func (s *stream) describe(selected *selected, digest, epoch string, left int64) error {
	if err := setItems(s.list, []runtime.Object{}); err != nil {
		return err
	}
	list, err := meta.ListAccessor(s.list)
	if err != nil {
		return err
	}
	list.SetResourceVersion(rows.FormatRevision(s.first.Revision))
	if s.next != nil || !s.first.More {
		return nil
	}
	// With selectors the number is left out, as upstream does.
	remaining := s.first.Remaining
	if left > 0 {
		remaining = left - int64(len(s.first.Rows))
	}
	if !selected.all || remaining < 0 {
		remaining = 0
	}
	if remaining > 0 {
		list.SetRemainingItemCount(&remaining)
	}
	last := s.first.Rows[len(s.first.Rows)-1]
	token, err := continueToken{
		Version: tokenVersion, Revision: s.first.Revision, Namespace: last.Namespace, Name: last.Name,
		Left: remaining, Selection: digest, Epoch: epoch,
	}.encode()
	list.SetContinue(token)
	return err
}
