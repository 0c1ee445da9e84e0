package readonly

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// ConvertToTable implements rest.TableConvertor. It is called for lists, for
// single objects and for the objects of watch events, empty ones of bookmarks
// among them.
func (r *REST) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if obj, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = obj.GetResourceVersion()
	}
	if opts, ok := options.(*metav1.TableOptions); !ok || !opts.NoHeaders {
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{
			Name: "Name", Type: "string", Format: "name", Description: "name of the object",
		})
		table.ColumnDefinitions = append(table.ColumnDefinitions, r.Columns...)
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{
			Name: "Age", Type: "string", Description: "time since the object was created",
		})
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(object, func(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		cells := append([]any{name}, r.Cells(obj)...)
		return append(cells, age), nil
	})
	return table, err
}

// ColumnDefinitions turns a table of columns into what Resource.Columns needs.
func ColumnDefinitions[T any](columns []v1alpha1.Column[T]) []metav1.TableColumnDefinition {
	out := make([]metav1.TableColumnDefinition, len(columns))
	for i, c := range columns {
		out[i] = metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority}
	}
	return out
}

// oneLine replaces what would end a line or a column of a printed table; kubectl
// shows nothing of what follows a line break.
var oneLine = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ", "\f", " ", "\v", " ", "\t", " ")

// CellsOf returns the cells of an object; part is what the columns are about. Each
// cell is one line.
func CellsOf[T any](columns []v1alpha1.Column[T], part T) []any {
	out := make([]any, len(columns))
	for i, c := range columns {
		out[i] = c.Value(part)
		if text, ok := out[i].(string); ok {
			out[i] = strings.TrimSpace(oneLine.Replace(text))
		}
	}
	return out
}
