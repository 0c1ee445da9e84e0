// Package auditrun serves auditruns.
package auditrun

import (
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Resource returns the resource auditruns.
func Resource() readonly.Resource {
	columns := v1alpha1.RunColumns()
	return readonly.Resource{
		Table:      rows.AuditRuns,
		Singular:   "auditrun",
		ShortNames: []string{"arun"},
		Fields:     readonly.FieldsOf(v1alpha1.RunFields()),
		New:        func() readonly.Object { return &v1alpha1.AuditRun{} },
		NewList:    func() runtime.Object { return &v1alpha1.AuditRunList{} },
		Columns:    readonly.ColumnDefinitions(columns),
		Cells: func(obj runtime.Object) []any {
			run, ok := obj.(*v1alpha1.AuditRun)
			if !ok {
				run = &v1alpha1.AuditRun{}
			}
			return readonly.CellsOf(columns, run)
		},
	}
}
