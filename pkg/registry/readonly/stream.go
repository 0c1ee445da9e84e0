package readonly

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Pages of a list that is streamed: a small one, so that the first byte comes
// early, and larger ones, which cost less a row.
const (
	firstStreamPage  = 500
	laterStreamPages = 2000
)

// stream is a list of which only one page of rows is in memory at a time. Nothing
// of the index is held between pages: all are of one revision, which the history
// window keeps for longer than a request may take. Codec encodes it.
type stream struct {
	rest *REST
	// list has the metadata and no items.
	list runtime.Object
	// first page of the list, which was read before the answer began.
	first *index.Page
	// next reads the page behind a key; nil if the first page is all that is wanted.
	next func(after *index.Key) (*index.Page, error)
	// done is called when the last page has been read, with the number of rows.
	done func(n int)
}

// GetObjectKind implements runtime.Object.
func (s *stream) GetObjectKind() schema.ObjectKind { return s.list.GetObjectKind() }

// DeepCopyObject implements runtime.Object. Rows are immutable.
func (s *stream) DeepCopyObject() runtime.Object {
	out := *s
	out.list = s.list.DeepCopyObject()
	return &out
}

// each calls fn for each row. It can be called more than once: the request may be
// logged with its answer.
func (s *stream) each(fn func(*index.Row) error) error {
	n := 0
	defer func() { s.done(n) }()
	page := s.first
	for {
		for _, row := range page.Rows {
			if err := fn(row); err != nil {
				return err
			}
			n++
		}
		if s.next == nil || !page.More {
			return nil
		}
		var err error
		if page, err = s.next(&page.Rows[len(page.Rows)-1].Key); err != nil {
			return err
		}
	}
}

// decode makes the whole list, for encodings other than the stored one.
func (s *stream) decode() (runtime.Object, error) {
	objs := []runtime.Object{}
	err := s.each(func(row *index.Row) error {
		obj, err := s.rest.decode(row)
		objs = append(objs, obj)
		return err
	})
	if err != nil {
		return nil, err
	}
	list := s.list.DeepCopyObject()
	return list, setItems(list, objs)
}

// appendItem appends a row as JSON.
func (r *REST) appendItem(dst []byte, row *index.Row) ([]byte, error) {
	if out, ok := rows.AppendJSON(dst, row, row.Revision); ok {
		return out, nil
	}
	obj, err := r.decode(row)
	if err != nil {
		return dst, err
	}
	text, err := json.Marshal(obj)
	return append(dst, text...), err
}

// pagesBehind returns a function that reads the pages behind the first one of a list.
func (r *REST) pagesBehind(ctx context.Context, view *access.View, query index.Query, revision uint64) func(*index.Key) (*index.Page, error) {
	query.Revision, query.Limit = revision, laterStreamPages
	return func(after *index.Key) (*index.Page, error) {
		query.After = after
		page, err := view.List(ctx, query)
		return page, toAPIError(err, v1alpha1.Resource(string(r.Table)), "")
	}
}

var _ runtime.Object = (*stream)(nil)
