// Package auditsummary serves auditsummaries.
package auditsummary

import (
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Resource returns the resource auditsummaries.
func Resource() readonly.Resource {
	columns := v1alpha1.AuditSummaryColumns()
	return readonly.Resource{
		Table:      rows.AuditSummaries,
		Singular:   "auditsummary",
		ShortNames: []string{"asum"},
		Namespaced: true,
		Fields:     readonly.FieldsOf(v1alpha1.AuditSummaryFields()),
		New:        func() readonly.Object { return &v1alpha1.AuditSummary{} },
		NewList:    func() runtime.Object { return &v1alpha1.AuditSummaryList{} },
		Columns:    readonly.ColumnDefinitions(columns),
		Cells: func(obj runtime.Object) []any {
			summary, ok := obj.(*v1alpha1.AuditSummary)
			if !ok {
				summary = &v1alpha1.AuditSummary{}
			}
			return readonly.CellsOf(columns, summary)
		},
	}
}
