// Package auditchange serves auditchanges and clusterauditchanges.
package auditchange

import (
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Namespaced returns the resource auditchanges.
func Namespaced() readonly.Resource {
	resource := base()
	resource.Table = rows.AuditChanges
	resource.Singular = "auditchange"
	resource.ShortNames = []string{"ach"}
	resource.Namespaced = true
	resource.New = func() readonly.Object { return &v1alpha1.AuditChange{} }
	resource.NewList = func() runtime.Object { return &v1alpha1.AuditChangeList{} }
	return resource
}

// Cluster returns the resource clusterauditchanges.
func Cluster() readonly.Resource {
	resource := base()
	resource.Table = rows.ClusterAuditChanges
	resource.Singular = "clusterauditchange"
	resource.ShortNames = []string{"cach"}
	resource.New = func() readonly.Object { return &v1alpha1.ClusterAuditChange{} }
	resource.NewList = func() runtime.Object { return &v1alpha1.ClusterAuditChangeList{} }
	return resource
}

func base() readonly.Resource {
	columns := v1alpha1.ChangeColumns()
	return readonly.Resource{
		Fields:  readonly.FieldsOf(v1alpha1.ChangeFields()),
		Columns: readonly.ColumnDefinitions(columns),
		Cells: func(obj runtime.Object) []any {
			change := &v1alpha1.Change{}
			switch o := obj.(type) {
			case *v1alpha1.AuditChange:
				change = &o.Change
			case *v1alpha1.ClusterAuditChange:
				change = &o.Change
			}
			return readonly.CellsOf(columns, change)
		},
	}
}
