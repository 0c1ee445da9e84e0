package readonly

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Index that resources are read from.
type Index interface {
	Get(t index.Table, k index.Key, revision uint64) (*index.Row, error)
	List(ctx context.Context, q index.Query) (*index.Page, error)
	Revision() uint64
}

// Feed of the changes of the index.
type Feed interface {
	Next(ctx context.Context, after uint64, limit int) (changes []index.Change, complete uint64, err error)
	WaitFor(ctx context.Context, revision uint64) error
}

// Readiness tells whether the rows of a table can be served; the error says what
// is being waited for.
type Readiness interface {
	Ready(t index.Table) error
	// Stalled returns why rows are not kept up at the moment, nil if they are.
	Stalled() error
}

// Access decides what a request may see of a table.
type Access interface {
	View(ctx context.Context, table index.Table) (*access.View, error)
}

// Backend is what all resources share.
type Backend struct {
	Index     Index
	Feed      Feed
	Readiness Readiness
	// Access decides what is shown; nil shows everything to whoever may use the
	// resource.
	Access Access
}

// Object is an API object of a resource.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource describes a resource.
type Resource struct {
	// Table has the rows of the resource, and its plural name.
	Table      index.Table
	Singular   string
	ShortNames []string
	Namespaced bool
	// Fields are the selectable fields, as in the table's schema.
	Fields []Field
	// New and NewList return empty objects.
	New     func() Object
	NewList func() runtime.Object
	// Columns of the printed table, without NAME and AGE.
	Columns []metav1.TableColumnDefinition
	// Cells of an object, one for each of Columns.
	Cells func(obj runtime.Object) []any
}

// Field is a selectable field.
type Field struct {
	// Path as it is written in a field selector.
	Path string
	// Values that the field can have, nil if any.
	Values []string
}

// REST serves a resource.
type REST struct {
	Resource
	backend Backend
	events  events
}

var (
	_ rest.Storage              = (*REST)(nil)
	_ rest.Scoper               = (*REST)(nil)
	_ rest.Getter               = (*REST)(nil)
	_ rest.Lister               = (*REST)(nil)
	_ rest.Watcher              = (*REST)(nil)
	_ rest.ShortNamesProvider   = (*REST)(nil)
	_ rest.CategoriesProvider   = (*REST)(nil)
	_ rest.SingularNameProvider = (*REST)(nil)
)

// NewREST returns the storage of a resource.
func NewREST(resource Resource, backend Backend) *REST {
	return &REST{Resource: resource, backend: backend}
}

// New implements rest.Storage.
func (r *REST) New() runtime.Object { return r.Resource.New() }

// Destroy implements rest.Storage. The index is closed by who opened it.
func (r *REST) Destroy() {}

// NewList implements rest.Lister.
func (r *REST) NewList() runtime.Object { return r.Resource.NewList() }

// NamespaceScoped implements rest.Scoper.
func (r *REST) NamespaceScoped() bool { return r.Namespaced }

// GetSingularName implements rest.SingularNameProvider.
func (r *REST) GetSingularName() string { return r.Singular }

// ShortNames implements rest.ShortNamesProvider.
func (r *REST) ShortNames() []string { return r.Resource.ShortNames }

// Categories implements rest.CategoriesProvider.
func (r *REST) Categories() []string { return []string{"policy"} }

// Get implements rest.Getter. A resourceVersion means not older than that one.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	if options != nil {
		revision, err := parseRevision(options.ResourceVersion)
		if err != nil {
			return nil, err
		}
		if err := r.waitFor(ctx, revision); err != nil {
			return nil, err
		}
	}
	view, err := r.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Annotate(ctx)
	row, err := view.Get(ctx, index.Key{Namespace: r.namespace(ctx), Name: name}, 0)
	if err != nil {
		return nil, toAPIError(err, v1alpha1.Resource(string(r.Table)), name)
	}
	annotateRows(ctx, 1)
	return r.decode(row)
}

// AnnotationRows is the audit annotation of how many objects the answer to a request
// has, or how many events that of a watch has had, bookmarks not counted.
const AnnotationRows = v1alpha1.GroupName + "/rows"

func annotateRows(ctx context.Context, n int) {
	audit.AddAuditAnnotation(ctx, AnnotationRows, strconv.Itoa(n))
}

// view returns what a request may see.
func (r *REST) view(ctx context.Context) (*access.View, error) {
	if r.backend.Access == nil {
		return access.Whole(r.backend.Index, r.Table), nil
	}
	view, err := r.backend.Access.View(ctx, r.Table)
	return view, toAPIError(err, v1alpha1.Resource(string(r.Table)), "")
}

// namespace of a request, empty for all.
func (r *REST) namespace(ctx context.Context) string {
	if !r.Namespaced {
		return ""
	}
	return genericapirequest.NamespaceValue(ctx)
}

// decode makes a new object of a row.
func (r *REST) decode(row *index.Row) (Object, error) {
	obj := r.Resource.New()
	if err := rows.Decode(row, obj); err != nil {
		return nil, toAPIError(err, v1alpha1.Resource(string(r.Table)), row.Name)
	}
	return obj, nil
}

// setItems puts objects into a list.
func setItems(list runtime.Object, objs []runtime.Object) error {
	if err := meta.SetList(list, objs); err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}
