package rows

import (
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
)

// Tables of the index: the plural names of the resources.
const (
	AuditResults        index.Table = "auditresults"
	ClusterAuditResults index.Table = "clusterauditresults"
	AuditSummaries      index.Table = "auditsummaries"
	AuditRuns           index.Table = "auditruns"
	ConstraintSummaries index.Table = "constraintsummaries"
	AuditChanges        index.Table = "auditchanges"
	ClusterAuditChanges index.Table = "clusterauditchanges"
)

// Schemas returns the tables of the index and their selectable fields. Findings, and
// their summaries and changes, are grouped by the kind of the objects, which decides who
// may see them.
func Schemas() []index.Schema {
	subject := []string{"resource.apiGroup", "resource.kind"}
	return []index.Schema{
		{Table: AuditResults, Fields: paths(v1alpha1.ResultFields()), GroupBy: subject},
		{Table: ClusterAuditResults, Fields: paths(v1alpha1.ResultFields()), GroupBy: subject},
		{Table: AuditSummaries, Fields: paths(v1alpha1.AuditSummaryFields()), GroupBy: subject},
		{Table: AuditRuns, Fields: paths(v1alpha1.RunFields())},
		{Table: ConstraintSummaries, Fields: paths(v1alpha1.SummaryFields())},
		{Table: AuditChanges, Fields: paths(v1alpha1.ChangeFields()), GroupBy: subject},
		{Table: ClusterAuditChanges, Fields: paths(v1alpha1.ChangeFields()), GroupBy: subject},
	}
}

// Row is an object as the index keeps it.
type Row struct {
	Table index.Table
	Key   index.Key
	Attrs index.Attrs
	Value []byte
}

// Encode turns an object of a resource that is kept into its row. The object's
// resourceVersion is not kept: it is the revision
// that the index gives to the row.
func Encode(obj metav1.Object) (*Row, error) {
	row := &Row{
		Key:   index.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()},
		Attrs: index.Attrs{Labels: obj.GetLabels()},
	}
	switch o := obj.(type) {
	case *v1alpha1.AuditResult:
		row.Table, row.Attrs.Fields = AuditResults, values(v1alpha1.ResultFields(), &o.Finding)
	case *v1alpha1.ClusterAuditResult:
		row.Table, row.Attrs.Fields = ClusterAuditResults, values(v1alpha1.ResultFields(), &o.Finding)
	case *v1alpha1.AuditSummary:
		row.Table, row.Attrs.Fields = AuditSummaries, values(v1alpha1.AuditSummaryFields(), o)
	case *v1alpha1.AuditRun:
		row.Table, row.Attrs.Fields = AuditRuns, values(v1alpha1.RunFields(), o)
	case *v1alpha1.ConstraintSummary:
		row.Table, row.Attrs.Fields = ConstraintSummaries, values(v1alpha1.SummaryFields(), o)
	case *v1alpha1.AuditChange:
		row.Table, row.Attrs.Fields = AuditChanges, values(v1alpha1.ChangeFields(), &o.Change)
	case *v1alpha1.ClusterAuditChange:
		row.Table, row.Attrs.Fields = ClusterAuditChanges, values(v1alpha1.ChangeFields(), &o.Change)
	default:
		return nil, fmt.Errorf("no table for objects of type %T", obj)
	}
	resourceVersion := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	value, err := json.Marshal(obj)
	obj.SetResourceVersion(resourceVersion)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", row.Table, row.Key.Namespace, row.Key.Name, err)
	}
	row.Value = value
	return row, nil
}

// Decode fills obj, a new object of the row's type, from a row. The object
// shares nothing with the row.
func Decode(row *index.Row, obj metav1.Object) error {
	if err := json.Unmarshal(row.Value, obj); err != nil {
		return fmt.Errorf("decode row %s/%s: %w", row.Namespace, row.Name, err)
	}
	obj.SetResourceVersion(FormatRevision(row.Revision))
	return nil
}

// FormatRevision returns the resourceVersion of a revision.
func FormatRevision(revision uint64) string {
	return strconv.FormatUint(revision, 10)
}

func paths[T any](fields []v1alpha1.SelectableField[T]) []string {
	out := make([]string, len(fields))
	for i := range fields {
		out[i] = fields[i].Path
	}
	return out
}

func values[T any](fields []v1alpha1.SelectableField[T], obj T) []string {
	out := make([]string, len(fields))
	for i := range fields {
		out[i] = fields[i].Value(obj)
	}
	return out
}

// Field returns the value of a selectable field of a row, "" if its table has no
// such field.
func Field(table index.Table, row *index.Row, path string) string {
	for _, schema := range Schemas() {
		if schema.Table != table {
			continue
		}
		for i, field := range schema.Fields {
			if field == path && i < len(row.Fields) {
				return row.Fields[i]
			}
		}
	}
	return ""
}

// GroupKind returns the kind of the objects that a group of findings is about.
func GroupKind(group string) schema.GroupKind {
	values := index.GroupValues(group)
	if len(values) != 2 {
		return schema.GroupKind{}
	}
	return schema.GroupKind{Group: values[0], Kind: values[1]}
}
