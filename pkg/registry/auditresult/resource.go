// Package auditresult serves auditresults and clusterauditresults.
package auditresult

import (
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Namespaced returns the resource auditresults.
func Namespaced() readonly.Resource {
	resource := base()
	resource.Table = rows.AuditResults
	resource.Singular = "auditresult"
	resource.ShortNames = []string{"ar"}
	resource.Namespaced = true
	resource.New = func() readonly.Object { return &v1alpha1.AuditResult{} }
	resource.NewList = func() runtime.Object { return &v1alpha1.AuditResultList{} }
	return resource
}

// Cluster returns the resource clusterauditresults.
func Cluster() readonly.Resource {
	resource := base()
	resource.Table = rows.ClusterAuditResults
	resource.Singular = "clusterauditresult"
	resource.ShortNames = []string{"car"}
	resource.New = func() readonly.Object { return &v1alpha1.ClusterAuditResult{} }
	resource.NewList = func() runtime.Object { return &v1alpha1.ClusterAuditResultList{} }
	return resource
}

func base() readonly.Resource {
	columns := v1alpha1.ResultColumns()
	return readonly.Resource{
		Fields:  readonly.FieldsOf(v1alpha1.ResultFields()),
		Columns: readonly.ColumnDefinitions(columns),
		Cells: func(obj runtime.Object) []any {
			finding := &v1alpha1.Finding{}
			switch o := obj.(type) {
			case *v1alpha1.AuditResult:
				finding = &o.Finding
			case *v1alpha1.ClusterAuditResult:
				finding = &o.Finding
			}
			return readonly.CellsOf(columns, finding)
		},
	}
}
