package readonly

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
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
	namespace := r.namespace(ctx)
	selected, err := r.selection(namespace, options)
	if err != nil {
		return nil, err
	}
	view, err := r.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Annotate(ctx)
	query := selected.query(r.Table)
	query.Limit = int(options.Limit)
	digest := selectionDigest(r.Table, namespace, selected.text)
	if options.Continue != "" {
		err = r.continueQuery(&query, options, digest, view.Epoch())
	} else {
		query.Revision, err = r.listRevision(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	page := &index.Page{Revision: r.backend.Index.Revision()}
	if selected.none {
		view.Listed(page.Revision)
	} else {
		if page, err = view.List(ctx, query); err != nil {
			return nil, r.listError(err, &query, digest, view.Epoch())
		}
	}
	return r.listOf(page, selected, digest, view.Epoch())
}

// continueQuery makes a query start where a token says.
func (r *REST) continueQuery(query *index.Query, options *metainternalversion.ListOptions, digest, epoch string) error {
	if options.ResourceVersion != "" && options.ResourceVersion != "0" {
		return apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	token, err := decodeContinue(options.Continue, digest)
	if err != nil {
		return err
	}
	if token.Epoch != epoch {
		return toAPIError(access.ErrChanged, v1alpha1.Resource(string(r.Table)), "")
	}
	query.Revision = token.Revision
	query.After = &index.Key{Namespace: token.Namespace, Name: token.Name}
	return nil
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

// listOf makes the list of a page.
func (r *REST) listOf(page *index.Page, selected *selected, digest, epoch string) (runtime.Object, error) {
	objs := make([]runtime.Object, len(page.Rows))
	for i, row := range page.Rows {
		obj, err := r.decode(row)
		if err != nil {
			return nil, err
		}
		objs[i] = obj
	}
	list := r.NewList()
	accessor, err := setItems(list, objs, page.Revision)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if !page.More {
		return list, nil
	}
	last := page.Rows[len(page.Rows)-1]
	token, err := continueToken{Version: tokenVersion, Revision: page.Revision, Namespace: last.Namespace, Name: last.Name, Selection: digest, Epoch: epoch}.encode()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	accessor.SetContinue(token)
	if selected.all && page.Remaining > 0 {
		accessor.SetRemainingItemCount(ptr.To(page.Remaining))
	}
	return list, nil
}
