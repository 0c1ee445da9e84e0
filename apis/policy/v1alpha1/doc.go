// Package v1alpha1 is the public API of the group policy.example.io: what an
// audit of a cluster against its policies found, how complete the audit is, and
// what each constraint amounts to.
//
// Findings, runs and summaries are read-only for clients. They are served by policy-apiserver from
// its own index and are never stored in etcd. Findings are flat, like the
// metrics API's NodeMetrics: there is no spec and no status, because nobody
// declares a finding and no controller converges on one. Reviews are questions:
// they can be created, are answered, and are not kept.
//
// Besides the types the package holds the tables that everything else reads:
// the selectable fields (SelectableField) and the printed columns (Column),
// and the naming rules of findings (ResultName, ResultUID, SummaryName,
// AuditSummaryName).
//
// It imports only k8s.io/apimachinery.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.example.policy.v1alpha1
// +groupName=policy.example.io
package v1alpha1
