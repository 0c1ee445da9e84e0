// Package constraintsummary serves constraintsummaries.
package constraintsummary

import (
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Resource returns the resource constraintsummaries.
func Resource() readonly.Resource {
	columns := v1alpha1.SummaryColumns()
	return readonly.Resource{
		Table:      rows.ConstraintSummaries,
		Singular:   "constraintsummary",
		ShortNames: []string{"csum"},
		Fields:     readonly.FieldsOf(v1alpha1.SummaryFields()),
		New:        func() readonly.Object { return &v1alpha1.ConstraintSummary{} },
		NewList:    func() runtime.Object { return &v1alpha1.ConstraintSummaryList{} },
		Columns:    readonly.ColumnDefinitions(columns),
		Cells: func(obj runtime.Object) []any {
			summary, ok := obj.(*v1alpha1.ConstraintSummary)
			if !ok {
				summary = &v1alpha1.ConstraintSummary{}
			}
			return readonly.CellsOf(columns, summary)
		},
	}
}
